"""The two figures that a dashboard draws against steps: epsilon for everyone, and ex-post for half of the people.

They come from settings and from the audit set, never from training members, and no share is above everyone. A figure
that is not a bound has "estimate" in its name.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from bayesdp.claims import RunClaims
from bayesdp.claims.everyone import guaranteed_clip_bound, ledger_caveats
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.claims.shares import share_epsilon
from bayesdp.ledger import StoredLedger
from bayesdp.report.chart_data import over_training

HALF = 0.5
_PART = 0.02  # the largest part of the time that may be spent on figures
_SECONDS = 0.5  # the shortest time between two computations
EVERYONE_NAME, HALF_NAME, ESTIMATE = "epsilon", "epsilon_half", "_estimate"


@dataclass(frozen=True)
class CurvePoint:
    """Epsilon after some steps; None where nothing can be claimed: no clip bound, or too few audit records."""

    steps: int
    everyone: float | None
    half: float | None
    everyone_estimated: bool
    half_estimated: bool

    def named(self) -> dict[str, float]:
        """Return the figures by the names of their curves: ``epsilon`` and ``epsilon_half``, or ``..._estimate``."""
        figures = [
            (EVERYONE_NAME, self.everyone, self.everyone_estimated),
            (HALF_NAME, self.half, self.half_estimated),
        ]
        return {name + ESTIMATE * estimated: epsilon for name, epsilon, estimated in figures if epsilon is not None}


def point_now(ledger: StoredLedger, delta: float, gamma: float) -> CurvePoint:
    """Return the figures of a ledger that is being written, in about the time that the live view takes."""
    if not ledger.steps:
        return _point(ledger, 0, None, None)
    figures = RecordFigures(ledger, delta, math.inf)
    guaranteed = guaranteed_clip_bound(ledger, figures.clip_bound)
    everyone = math.inf if guaranteed is None else float(guaranteed.epsilons([delta])[0])
    half = share_epsilon(figures.ex_post, HALF, gamma) if ledger.audit_records else None
    if half is not None and guaranteed is not None:
        half = min(half, float(guaranteed.epsilons_out([delta])[0]))
    return _point(ledger, ledger.steps, everyone, half)


class PacedPoints:
    """The figures of a run that goes on, cheap enough to ask for at every step.

    New ones are computed after half a second at the earliest, and take at most 2 % of the time. Between them there are
    none: a figure of an earlier step would be too small.
    """

    def __init__(
        self, ledger: StoredLedger, delta: float, gamma: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ledger, self._delta, self._gamma, self._clock = ledger, delta, gamma, clock
        self._due = -math.inf

    def new(self, *, last: bool = False) -> CurvePoint | None:
        """Return the figures as they are now, if they are due or if this is the ``last`` step; None otherwise."""
        started = self._clock()
        if not last and started < self._due:
            return None
        point = point_now(self._ledger, self._delta, self._gamma)
        self._due = started + max(_SECONDS, (self._clock() - started) / _PART)
        return point


def points_along(ledger: StoredLedger, claims: RunClaims) -> list[CurvePoint]:
    """Return the figures at the points that the ledger has kept, about 32 of them, and at its last step.

    ``claims`` are those of the ledger as it is now: delta and gamma are theirs, and so is the last point.
    """
    request = claims.request
    along = over_training(ledger, claims.figures, request.delta, [HALF], request.gamma)
    half = [*along.ex_post[0], *([None] * len(along.steps))]
    return [_point(ledger, *figures) for figures in zip(along.steps, along.everyone, half, strict=False)]


def _point(ledger: StoredLedger, steps: int, everyone: float | None, half: float | None) -> CurvePoint:
    weakened = {caveat.weakens for caveat in ledger_caveats(ledger)}
    most = _finite(everyone)
    return CurvePoint(
        steps, most, _at_most(_finite(half), most), "everything" in weakened, bool(weakened - {"nothing"})
    )


def _at_most(epsilon: float | None, most: float | None) -> float | None:
    """Return a share's epsilon, which is never shown above that for everyone."""
    return epsilon if epsilon is None or most is None else min(epsilon, most)


def _finite(epsilon: float | None) -> float | None:
    return None if epsilon is None or not math.isfinite(epsilon) else epsilon
