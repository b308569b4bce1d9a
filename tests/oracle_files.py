"""Reading the oracle tables."""

import csv
from pathlib import Path

FOLDER = Path(__file__).parent / "oracles"


def rows(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(newline="") as file:
        return list(csv.DictReader(file))
