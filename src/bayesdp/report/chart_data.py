"""The figures that the charts of a report draw: epsilon by share and by delta, epsilon and exposure over training.

All of them come from the audit set and from settings, as order statistics and quantiles over all audit records.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from bayesdp.claims.everyone import guaranteed_clip_bound, kept_budget, kept_plan, ledger_clip_bound
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.claims.shares import share_epsilon
from bayesdp.formatting import finite_or_none
from bayesdp.guarantees.trade_off import Guarantee
from bayesdp.ledger import StoredLedger
from bayesdp.validation import FloatArray

Column = list[float | None]
"""One line of a chart; None where nothing can be claimed."""


def ranked(epsilons: FloatArray, shares: Sequence[float], gamma: float) -> Column:
    """Return for each share the epsilon that it does not exceed, with confidence 1 - gamma.

    None where there are too few records, or where the epsilon is infinite.
    """
    column = [share_epsilon(epsilons, share, gamma) for share in shares]
    return [None if epsilon is None else _finite(epsilon) for epsilon in column]


@dataclass(frozen=True)
class ByDelta:
    """Epsilon at each of D deltas: for everyone [D], and for S shares [S][D], ex-post and as an estimate."""

    deltas: list[float]
    everyone: Column
    ex_post: list[Column]
    estimate: list[Column]


def by_delta(
    ledger: StoredLedger, figures: RecordFigures, deltas: Sequence[float], shares: Sequence[float], gamma: float
) -> ByDelta:
    """Return what ``Ledger.claims`` would say at each of several deltas, computed together.

    The figures are bounds and estimates of the same kinds as the claims, and about as tight.
    """
    bound = guaranteed_clip_bound(ledger, figures.clip_bound)
    bounds = np.full(len(deltas), np.inf) if bound is None else bound.epsilons(deltas)
    everyone = [_finite(epsilon) for epsilon in bounds]
    if not ledger.audit_records:
        nothing: list[Column] = [[None] * len(deltas) for _ in shares]
        return ByDelta(list(deltas), everyone, nothing, nothing)
    bounds_out = bounds if bound is None else bound.epsilons_out(deltas)
    sure = [
        ranked(np.minimum(figures.ex_post_at(delta), most), shares, gamma)
        for delta, most in zip(deltas, bounds_out, strict=True)
    ]
    estimates = np.minimum(figures.estimates_at(deltas), bounds)
    estimated = [ranked(column, shares, gamma) for column in estimates.T]
    return ByDelta(list(deltas), everyone, _turned(sure), _turned(estimated))


@dataclass(frozen=True)
class OverTraining:
    """Figures at P steps of the run: epsilon for everyone [P] and for S shares [S][P], ex-post, and exposures [S][P].

    ``clipped`` [P] covers the steps since the previous point.
    """

    steps: list[int]
    everyone: Column
    ex_post: list[Column]
    exposure: list[Column]
    "The root of the costs so far over those at the clip bound: about the root mean square of the norms, over the clip."
    clipped: Column
    "The fraction of the audit records' norms that were above the clip bound."


def over_training(
    ledger: StoredLedger, figures: RecordFigures, delta: float, shares: Sequence[float], gamma: float
) -> OverTraining:
    """Return figures at the points where the ledger kept costs, and at the last step those of the claims.

    Costs are rounded up when they are kept, so the figures along the way err upwards.
    """
    points, costs = ledger.snapshots()
    before = [number for number, point in enumerate(points) if point < ledger.steps]
    points, costs = [points[number] for number in before], costs[before]
    along = [figures.ex_post_from(at, delta) for at in costs]
    if ledger.steps:
        points.append(ledger.steps)
        if ledger.audit_records:
            costs = np.concatenate([costs, figures.costs_out[None]])
            along.append(figures.ex_post)
    bounds = [ledger_clip_bound(ledger, through=point) for point in points]
    lowest = [None if bound is None else float(bound.mixture_costs(ledger.mixture)[0]) for bound in bounds]
    if kept_plan(ledger) or kept_budget(ledger):  # what is guaranteed does not depend on how far the run has come
        everyone = [_finite(figures.worst_case)] * len(points)
        left_out = [_left_out(guaranteed_clip_bound(ledger, figures.clip_bound), delta)] * len(points)
    else:
        # A run that was chosen among others and left its plan guarantees nothing at any point.
        known = bounds if ledger.declared_selection is None else [None] * len(points)
        everyone = [None if bound is None else _finite(bound.epsilons([delta])[0]) for bound in known]
        if everyone:
            everyone[-1] = _finite(figures.worst_case)
        left_out = [_left_out(bound, delta) for bound in known]
    most = [
        least if ceiling is None else min(least, ceiling) for least, ceiling in zip(left_out, everyone, strict=True)
    ]
    ex_post = [ranked(np.minimum(at, cap), shares, gamma) for at, cap in zip(along, most, strict=False)]
    clipped = [ledger.history.share_clipped(*between) for between in pairwise([0, *points])]
    return OverTraining(
        steps=points,
        everyone=everyone,
        ex_post=_turned(ex_post) if ex_post else [[] for _ in shares],
        exposure=_exposures(costs, lowest, shares, gamma),
        clipped=[None if bound is None else share for bound, share in zip(bounds, clipped, strict=True)],
    )


def _left_out(bound: Guarantee | None, delta: float) -> float:
    return math.inf if bound is None else float(bound.epsilons_out([delta])[0])


def _exposures(
    costs: FloatArray,
    lowest: list[float | None],
    shares: Sequence[float],
    gamma: float,
) -> list[Column]:
    """Return order statistics [S][P] of the root of what records have cost, over what they could have cost so far.

    It is taken at the lowest order, from the beginning up to each point: costs are rounded up when they are kept, so
    their differences between two points are not exact.
    """
    columns: list[Column] = []
    for at, most in zip(costs, lowest, strict=False):
        if most is None or not most > 0:
            columns.append([None] * len(shares))
        else:
            columns.append(ranked(np.sqrt(np.minimum(at[:, 0] / most, 1.0)), shares, gamma))
    return _turned(columns) if columns else [[] for _ in shares]


def _turned(lines: list[Column]) -> list[Column]:
    return [list(column) for column in zip(*lines, strict=True)]


def _finite(value: Any) -> float | None:
    return finite_or_none(float(value))
