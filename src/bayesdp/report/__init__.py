"""The report: one page for whoever decides, from a ledger.

contents.py   what it says, as plain values
tables.py     what its charts draw
page.py       the page, with page.html, page.css and page.js
"""

from __future__ import annotations

from pathlib import Path

from bayesdp.ledger import Ledger
from bayesdp.report.contents import contents
from bayesdp.report.page import render
from bayesdp.whole_file import write_text

__all__ = ["write_report"]


def write_report(
    ledger: Ledger, path: str | Path, *, delta: float = 1e-5, gamma: float = 0.01, title: str | None = None
) -> None:
    """Write the page of a run; nothing in it comes from training members."""
    write_text(Path(path), render(contents(ledger, delta=delta, gamma=gamma, title=title)))
