"""Runs the examples of the docstrings, of docs/python.md and of the README, those of torch where torch is installed."""

import doctest
import importlib
import importlib.util
import re
from pathlib import Path

import pytest

import undraft.ops
import undraft.pool

HAS_TORCH = importlib.util.find_spec("torch") is not None
ROOT = Path(__file__).resolve().parents[3]
BLOCKS = [
    block
    for page in ("docs/python.md", "README.md")
    for block in re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
]


def test_the_pages_have_examples() -> None:
    assert len(BLOCKS) >= 5
    assert sum("import torch" in block for block in BLOCKS) >= 2


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_examples_of_the_pages(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "import torch" in BLOCKS[number] and not HAS_TORCH:
        pytest.skip("torch is not installed")
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[number], f"example {number + 1}", "exec"), {})


@pytest.mark.parametrize("name", ["undraft.ops", "undraft.pool", "undraft.torch.ops"])
def test_examples_of_docstrings(name: str) -> None:
    if name.startswith("undraft.torch") and not HAS_TORCH:
        pytest.skip("torch is not installed")
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
