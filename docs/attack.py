"""Writes the tables of docs/attack.md from results/attack; run as `python docs/attack.py`."""

from __future__ import annotations

from pathlib import Path

from bayesdp.attack.findings_page import page_with_tables, read

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "attack"
PAGE = HERE / "attack.md"


def main() -> None:
    PAGE.write_text(page_with_tables(PAGE.read_text(), read(RESULTS)))


if __name__ == "__main__":
    main()
