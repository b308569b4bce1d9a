"""Run everything that needs an engine with an environment of its own: its tests, slow ones too, and its page.

    python -m benchmarks.engines [jax]      (in .venv-engines: make test-engines)
    python -m benchmarks.engines flower     (in .venv-flower: make test-flower)

Writes results/engines.json or results/engine_flower.json: versions, how many tests passed and were skipped, and how
long it took. Exit code 1 if a test fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from benchmarks.machine import description

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Engine:
    """What is run for an engine, which libraries matter, and where the outcome is written."""

    tests: tuple[str, ...]
    libraries: tuple[str, ...]
    result: Path


ENGINES = {
    "jax": Engine(
        tests=(
            "tests/with_jax_privacy",
            "tests/contracts/test_adapter_contract.py",
            "tests/test_documents.py::test_python_blocks_run[jax-privacy.md]",
        ),
        libraries=("jax", "jaxlib", "jax-privacy", "optax", "keras", "torch", "opacus", "dp-accounting"),
        result=ROOT / "results" / "engines.json",
    ),
    "flower": Engine(
        tests=("tests/with_flower", "tests/test_documents.py::test_python_blocks_run[flower.md]"),
        libraries=("flwr", "ray", "torch", "opacus", "dp-accounting"),
        result=ROOT / "results" / "engine_flower.json",
    ),
}


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


def versions(libraries: tuple[str, ...]) -> dict[str, str | None]:
    """Versions of the libraries; None for one that is not installed."""
    found: dict[str, str | None] = {}
    for library in libraries:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            found[library] = None
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", nargs="?", choices=ENGINES, default="jax")
    name = parser.parse_args().engine
    engine, outcomes, begin = ENGINES[name], Outcomes(), time.monotonic()
    tests = [str(ROOT / test) for test in engine.tests]
    code = pytest.main(["-m", "slow or not slow", *tests], plugins=[outcomes])
    result = {
        "command": f"python -m benchmarks.engines {name}",
        "tests": engine.tests,
        "versions": description() | versions(engine.libraries),
        "passed": outcomes.passed,
        "failed": outcomes.failed,
        "skipped": outcomes.skipped,
        "seconds": round(time.monotonic() - begin),
    }
    engine.result.write_text(json.dumps(result, indent=2) + "\n")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
