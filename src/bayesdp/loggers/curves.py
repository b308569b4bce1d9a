"""What a dashboard shows of a run: two curves of epsilon, the statement, the page, and how to read the curves."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bayesdp import validation
from bayesdp.claims import RunClaims
from bayesdp.claims.everyone import IF_NOT_LOOKED
from bayesdp.formatting import confidence
from bayesdp.ledger import StoredLedger
from bayesdp.ledger.snapshots import spacing
from bayesdp.loggers.dashboards import Dashboard, dashboard
from bayesdp.report import write_report
from bayesdp.report.curve_points import CurvePoint, PacedPoints, points_along
from bayesdp.run_ledger import Ledger

PAGE = "report.html"


class LiveCurves:
    """The curves of a run while it is training: a ``View`` that ``watch(log=...)`` shows.

    Points lie at multiples of a power of 2 that doubles as the run grows: every step at first, and then 16 points for
    each doubling of the run. Computing them takes at most 2 % of the time; a point that is not due yet is left out.
    ``finish`` adds the last point, the figures of the claims.
    """

    def __init__(
        self,
        ledger: StoredLedger,
        log: Any,
        *,
        delta: float = 1e-5,
        gamma: float = 0.01,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger, self._dashboard = ledger, dashboard(log)
        self._points = PacedPoints(ledger, validation.probability("delta", delta), gamma, clock)
        self._dashboard.words("how_to_read_epsilon", reading(delta, gamma))
        self._failed = False

    def show(self) -> None:
        """Add a point if one is due. A dashboard that fails ends the curves, with one warning, and not the run."""
        steps = self._ledger.steps
        if self._failed or steps % spacing(steps) or (point := self._points.new()) is None:
            return
        try:
            self._dashboard.figures(steps, point.named())
        except Exception as error:
            self._failed = True
            warnings.warn(f"log={type(error).__name__}: {error}; the curves end at step {steps}.", stacklevel=2)

    def end(self) -> None:
        """Do nothing: the last point belongs to ``finish``."""

    def finish(self, claims: RunClaims) -> None:
        """Add the last point, statement and page."""
        _write(self._ledger, self._dashboard, claims, points_along(self._ledger, claims)[-1:])


def log_run(ledger: Ledger, log: Any, *, delta: float = 1e-5, gamma: float = 0.01) -> None:
    """Write what a ledger knows about its run to a dashboard: curves of epsilon, the statement and the page.

    ``log`` is a SummaryWriter of TensorBoard, the run of ``mlflow.start_run()`` or the run of ``wandb.init()``. The
    curves have about 32 points, at which the ledger has kept the costs of audit records, so nothing was computed while
    the model was training. ``epsilon`` is for everyone, ``epsilon_half`` ex-post for half of the people, with
    confidence 1 - ``gamma`` at each point and never above ``epsilon``; what is not a bound has "estimate" in its name.
    Nothing comes from training members. The page goes to the artifacts of MLflow and wandb and to the folder of a
    SummaryWriter.

    Raises InvalidInputError for another ``log`` and for a delta or gamma out of range, MissingLibraryError if plotly or
    jinja2 is missing.
    """
    written = dashboard(log)
    claims = ledger.claims(delta, gamma)
    written.words("how_to_read_epsilon", reading(delta, gamma))
    _write(ledger, written, claims, points_along(ledger, claims))


def _write(ledger: StoredLedger, written: Dashboard, claims: RunClaims, points: Sequence[CurvePoint]) -> None:
    for point in points:
        written.figures(point.steps, point.named())
    written.words("privacy_statement", claims.statement())
    with TemporaryDirectory() as folder:
        page = Path(folder) / PAGE
        write_report(ledger, page, claims=claims)
        written.file(page)


def reading(delta: float, gamma: float) -> str:
    """Return the words beside the curves: what they are, and what it costs to act on them."""
    return (
        f"epsilon is for everyone, at delta = {delta:g}. epsilon_half is ex-post, for half of the people who are like "
        f"the audit records and whose data is not used, with {confidence(gamma)} confidence at each point. A name that "
        "ends with estimate is not a bound. Without a plan or a budget, declared before the run and kept, both hold "
        f"only {IF_NOT_LOOKED}.\n"
        "Looking is free. If you stop, or choose anything, because of epsilon_half, then the audit records have been "
        "used: ask for claims(looks=n), where n is the number of points that you looked at, or declare it with "
        "audit_used_for."
    )
