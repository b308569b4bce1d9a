"""Writes the tables of docs/attack.md from results/; run as `python docs/attack.py`."""

from __future__ import annotations

from pathlib import Path

from bayesdp.attack.faults_page import page_with_faults
from bayesdp.attack.findings_page import page_with_tables, read

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
PAGE = HERE / "attack.md"


def main() -> None:
    page = page_with_tables(PAGE.read_text(), read(RESULTS / "attack"))
    PAGE.write_text(page_with_faults(page, RESULTS))


if __name__ == "__main__":
    main()
