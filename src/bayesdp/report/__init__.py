"""The report: one page for whoever decides, from a ledger.

contents.py   what the page says, as plain values
cards.py      its first screen
tables.py     what its charts draw
page.py       the page itself, with page.html, page.css and page.js
live.py       a line about a run while it goes on
summary.py    what `bayesdp show` prints
"""

from __future__ import annotations

from pathlib import Path

from bayesdp.claims import RunClaims
from bayesdp.ledger import StoredLedger
from bayesdp.report.contents import contents
from bayesdp.report.page import check_libraries, render
from bayesdp.whole_file import write_text

__all__ = ["check_libraries", "write_report"]


def write_report(
    ledger: StoredLedger,
    path: str | Path,
    *,
    delta: float = 1e-5,
    gamma: float = 0.01,
    title: str | None = None,
    claims: RunClaims | None = None,
) -> None:
    """Write the page of a run; nothing in it comes from training members.

    ``claims`` are those of the ledger at this delta and gamma, if they were computed already. Raises OSError if the
    file cannot be written, ImportError if plotly or jinja2 is missing.
    """
    write_text(Path(path), render(contents(ledger, delta=delta, gamma=gamma, title=title, claims=claims)))
