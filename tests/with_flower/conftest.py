"""Tests with Flower are skipped, with a reason, where it is not installed: `make test-flower` runs them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest


class Skipped(pytest.Module):
    """A file of tests that is not read."""

    def collect(self):
        pytest.skip("Flower is not installed; make test-flower runs this in an environment of its own")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Skip all files of this folder, before they import anything."""
    if importlib.util.find_spec("flwr") is None:
        return Skipped.from_parent(parent, path=module_path)
    return None
