"""Runs the examples of the docstrings and of docs/python.md, those of torch where torch is installed."""

import doctest
import importlib
import importlib.util
import re
from pathlib import Path

import pytest

import undraft.ops
import undraft.pool

HAS_TORCH = importlib.util.find_spec("torch") is not None
PAGE = Path(__file__).resolve().parents[3] / "docs" / "python.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_page_has_examples() -> None:
    assert len(BLOCKS) >= 4
    assert sum("import torch" in block for block in BLOCKS) >= 2


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_examples_of_the_page(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "import torch" in BLOCKS[number] and not HAS_TORCH:
        pytest.skip("torch is not installed")
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[number], f"{PAGE.name}, example {number + 1}", "exec"), {})


@pytest.mark.parametrize("name", ["undraft.ops", "undraft.pool", "undraft.torch.ops"])
def test_examples_of_docstrings(name: str) -> None:
    if name.startswith("undraft.torch") and not HAS_TORCH:
        pytest.skip("torch is not installed")
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
