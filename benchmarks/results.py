"""Writes results/: a run that tried less than the one before it leaves the larger result where it is."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def add_output(parser: argparse.ArgumentParser, path: Path) -> None:
    """Add the option ``-o`` to a command whose result is otherwise written to ``path``."""
    parser.add_argument(
        "-o", "--output", type=Path, help=f"write here, in place of {path.name} if that is not of a larger run"
    )


def write_result(
    report: dict[str, Any], path: Path, size: Callable[[dict[str, Any]], tuple[int, ...]], output: Path | None = None
) -> bool:
    """Write a report to ``output``, or else to ``path`` unless that has one that tried more; return whether it did.

    ``size`` returns how much a report tried, in several ways; none of them may fall.
    """
    if output is None and path.is_file():
        before, now = size(json.loads(path.read_text())), size(report)
        if any(few < many for few, many in zip(now, before, strict=True)):
            print(f"{path} is left as it is: it is of a larger run, {before} against {now}. Write elsewhere with -o.")
            return False
    target = path if output is None else output
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(report, indent=2) + "\n")
    return True
