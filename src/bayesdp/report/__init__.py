"""The report: one page about a run, made from its ledger, for the person who decides.

contents.py     everything the page says, as plain values
first_screen.py the sentences and people on its first screen
release_checks.py the questions to settle before a release
pictures.py     its pictures of people and of a scale
chart_data.py   the figures that its charts draw
page.py         the page itself, with page.html
clip_page.py    what other clip bounds would do: a chart of the report, and a page of its own with clip.html
single_file.py  pages that load nothing else, with page.css and page.js
curve_points.py the two figures that a dashboard draws
live.py         one line about a run while it is training; views.py: what else may be shown then
summary.py      what `bayesdp show` prints
"""

from __future__ import annotations

from pathlib import Path

from bayesdp.claims import RunClaims
from bayesdp.ledger import StoredLedger
from bayesdp.report.contents import report_contents
from bayesdp.report.page import render
from bayesdp.report.release_checks import ReleasedFile
from bayesdp.report.single_file import check_libraries
from bayesdp.whole_file import write_text

__all__ = ["ReleasedFile", "check_libraries", "write_report"]


def write_report(
    ledger: StoredLedger,
    path: str | Path,
    *,
    delta: float | None = None,
    gamma: float | None = None,
    title: str | None = None,
    claims: RunClaims | None = None,
    model: str | Path | ReleasedFile | None = None,
) -> None:
    """Write the page about a run to ``path``: one HTML file that needs no network.

    Nothing on it is computed from training members. A file that is already there is replaced only when the new one is
    complete. ``delta`` is 1e-5 and ``gamma`` 0.01 unless they are given; ``claims`` saves time if
    ``ledger.claims(delta, gamma)`` was computed already, and brings its own. ``model`` is the file that is to be
    released: the page then shows its fingerprint, so that a reader can tell that it is the one.

    Raises:
        InvalidInputError: For a delta or gamma out of range, and for ``claims`` that were made with other arguments or
            before the last step of the ledger.
        MissingLibraryError: If plotly or jinja2 is missing.
        OSError: If the file cannot be written.
    """
    check_libraries()  # before the work
    if model is not None and not isinstance(model, ReleasedFile):
        model = ReleasedFile.of(model)
    contents = report_contents(ledger, delta=delta, gamma=gamma, title=title, claims=claims, model=model)
    write_text(Path(path), render(contents))
