"""Tables that benchmarks write into pages: epsilons are rounded up, accuracies down."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np


def epsilon_cell(epsilon: float) -> str:
    """Three digits behind the point, rounded up."""
    return f"{np.ceil(1000 * epsilon - 1e-9) / 1000:.3f}"


def percent_cell(share: float) -> str:
    """A share in per cent with two digits behind the point, rounded down; without the sign."""
    return f"{np.floor(10_000 * share + 1e-9) / 100:.2f}"


def write_between(page: Path, marks: tuple[str, str], text: str) -> None:
    """Replace what stands between two marks of a page, which stay."""
    pattern = re.escape(marks[0]) + ".*?" + re.escape(marks[1])
    written = f"{marks[0]}\n{text}\n{marks[1]}"
    page.write_text(re.sub(pattern, lambda _: written, page.read_text(), flags=re.DOTALL))
