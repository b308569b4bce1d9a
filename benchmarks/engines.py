"""Run everything that needs JAX Privacy: its tests, the contract of all adapters, and the blocks of its page.

    python -m benchmarks.engines        (in .venv-engines: make test-engines)

Writes results/engines.json: versions, how many tests passed and were skipped, and how long it took. Exit code 1 if a
test fails.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from benchmarks.machine import description

ROOT = Path(__file__).parents[1]
TESTS = [
    "tests/with_jax_privacy",
    "tests/contracts/test_adapter_contract.py",
    "tests/test_documents.py::test_python_blocks_run[jax-privacy.md]",
]
LIBRARIES = ["jax", "jaxlib", "jax-privacy", "optax", "keras", "torch", "opacus", "dp-accounting"]
RESULT = ROOT / "results" / "engines.json"


class Outcomes:
    """Counts of what became of each test, and the reasons for skipping."""

    def __init__(self) -> None:
        self.passed, self.failed = 0, list[str]()
        self.skipped: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note a report; pytest calls this."""
        if report.failed:
            self.failed.append(report.nodeid)
        elif report.skipped:
            self.skipped[report.nodeid] = str(report.longrepr[-1]).removeprefix("Skipped: ")
        elif report.when == "call":
            self.passed += 1


def versions() -> dict[str, str | None]:
    """Versions of the libraries; None for one that is not installed."""
    found: dict[str, str | None] = {}
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            found[library] = None
    return found


def main() -> int:
    outcomes, begin = Outcomes(), time.monotonic()
    code = pytest.main([str(ROOT / test) for test in TESTS], plugins=[outcomes])
    result = {
        "command": "python -m benchmarks.engines",
        "tests": TESTS,
        "versions": description() | versions(),
        "passed": outcomes.passed,
        "failed": outcomes.failed,
        "skipped": outcomes.skipped,
        "seconds": round(time.monotonic() - begin),
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
