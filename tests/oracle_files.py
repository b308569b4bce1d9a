"""Reads the oracle tables of tests/oracles."""

import csv
from pathlib import Path

FOLDER = Path(__file__).parent / "oracles"


def rows(name: str) -> list[dict[str, str]]:
    """Return the lines of a table, each as a mapping from column to text."""
    with (FOLDER / name).open(newline="") as file:
        return list(csv.DictReader(file))
