"""Options and skips of the tests."""

import os

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") is None:
        return
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        if "cuda" in os.environ.get("UNDRAFT_REQUIRE", "").split(","):
            pytest.fail("UNDRAFT_REQUIRE has cuda, and torch finds no CUDA device")
        pytest.skip("torch finds no CUDA device")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cuda: runs on a CUDA device")
