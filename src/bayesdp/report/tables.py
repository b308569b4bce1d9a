"""Epsilon by share and by delta, epsilon over training, exposure over training: what the charts of a report draw.

All of it comes from the audit set and from settings, as order statistics and quantiles over all audit records.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from bayesdp.claims.ex_post import ORDERS, ex_post_epsilons
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.claims.shares import share_epsilon
from bayesdp.formatting import finite_or_none
from bayesdp.guarantees.clip_bound import LAMBDAS, ClipBound
from bayesdp.ledger import SNAPSHOT_LAMBDAS as KEPT
from bayesdp.ledger import StoredLedger
from bayesdp.validation import FloatArray

Column = list[float | None]
"""Figures of a chart; None where nothing can be claimed."""


def ranked(epsilons: FloatArray, shares: Sequence[float], gamma: float) -> Column:
    """For each share the epsilon that it does not exceed, with confidence 1 - gamma; None where records are too few."""
    found = [share_epsilon(epsilons, share, gamma) for share in shares]
    return [None if one is None else _finite(one) for one in found]


@dataclass(frozen=True)
class ByDelta:
    """Epsilon at each delta: for everyone [D], and for shares [S][D] ex-post and as an estimate.

    And the total variation distance between outputs with and without a person: for everyone, and for shares [S] as an
    estimate. A guess at even odds succeeds with probability (1 + distance) / 2 at most.
    """

    deltas: list[float]
    everyone: Column
    ex_post: list[Column]
    estimate: list[Column]
    everyone_distance: float = 1.0
    distance: Column = field(default_factory=list[float | None])


def by_delta(
    ledger: StoredLedger, figures: RecordFigures, deltas: Sequence[float], shares: Sequence[float], gamma: float
) -> ByDelta:
    """What ``Ledger.claims`` says at each of several deltas, computed together: bounds of the same kind, as tight."""
    bound = figures.clip_bound
    everyone: Column = [None] * len(deltas)
    everyone_distance = 1.0
    if bound is not None:
        everyone = [_finite(one) for one in bound.epsilons(deltas)]
        everyone_distance = min(1.0, float(bound.deltas(np.zeros(1), min(deltas))[0]))
    if not ledger.audit_records:
        nothing: list[Column] = [[None] * len(deltas) for _ in shares]
        return ByDelta(list(deltas), everyone, nothing, nothing, everyone_distance)
    sure = [ranked(figures.ex_post_at(delta), shares, gamma) for delta in deltas]
    bounds = np.array([math.inf if one is None else one for one in everyone])
    estimates, distances = figures.estimates_at(deltas)
    estimated = [ranked(column, shares, gamma) for column in np.minimum(estimates, bounds).T]
    distance = ranked(np.minimum(distances, everyone_distance), shares, gamma)
    return ByDelta(list(deltas), everyone, _turned(sure), _turned(estimated), everyone_distance, distance)


@dataclass(frozen=True)
class OverTraining:
    """At some steps: epsilon for everyone and for shares ex-post, and the mean exposure so far of shares.

    Between each and the one before: how many norms were clipped.
    """

    steps: list[int]
    everyone: Column
    ex_post: list[Column]
    exposure: list[Column]
    "For shares: the root of costs up to the step over those at the clip bound, about the root mean square of norms."
    clipped: Column
    "Share of the norms of audit records that were above the clip bound."


def over_training(
    ledger: StoredLedger, figures: RecordFigures, delta: float, shares: Sequence[float], gamma: float
) -> OverTraining:
    """From the costs that the ledger has kept on the way; at the end from those that the claims are made of."""
    points, costs = ledger.snapshots() if ledger.audit_records else ([], np.zeros((0, 0, len(KEPT))))
    before = [number for number, point in enumerate(points) if point < ledger.steps]
    points, costs = [points[number] for number in before], costs[before]
    # the two highest orders of an ex-post claim were not kept: without them the figure is only larger
    padded = [np.c_[at, np.full((len(at), len(ORDERS) - len(KEPT)), np.inf)] for at in costs]
    ex_post = [ranked(ex_post_epsilons(at, delta), shares, gamma) for at in padded]
    if ledger.steps:
        points.append(ledger.steps)
        if ledger.audit_records:
            costs = np.concatenate([costs, figures.costs[None, :, np.searchsorted(LAMBDAS, KEPT)]])
            ex_post.append(ranked(figures.ex_post, shares, gamma))
    bounds = [_clip_bound(ledger, point) for point in points]
    everyone = [None if one is None else _finite(one.epsilons([delta])[0]) for one in bounds]
    clipped = [ledger.history.share_clipped(*between) for between in pairwise([0, *points])]
    return OverTraining(
        steps=points,
        everyone=everyone,
        ex_post=_turned(ex_post) if ex_post else [[] for _ in shares],
        exposure=_exposures(costs, bounds, shares, gamma),
        clipped=[None if bound is None else share for bound, share in zip(bounds, clipped, strict=True)],
    )


def _clip_bound(ledger: StoredLedger, steps: int) -> ClipBound | None:
    """Of the first so many steps."""
    runs: list[tuple[float, float, int]] = []
    for one in ledger.history.stretches:
        if one.clip is None:
            return None
        taken = min(one.steps, steps - (one.first - 1))
        if taken > 0:
            runs.append((one.noise_std / one.clip, one.sample_rate, taken))
    return ClipBound.of(runs)


def _exposures(
    costs: FloatArray, bounds: Sequence[ClipBound | None], shares: Sequence[float], gamma: float
) -> list[Column]:
    """The root of what a record has spent over what it could have, at the lowest order, as order statistics.

    Costs are rounded up when they are kept, so what was spent in between cannot be told exactly; what was so far can.
    """
    lowest = int(np.searchsorted(LAMBDAS, KEPT[0]))
    found: list[Column] = []
    for at, bound in zip(costs, bounds, strict=False):
        if bound is None or not bound.costs[lowest] > 0:
            found.append([None] * len(shares))
        else:
            found.append(ranked(np.sqrt(np.minimum(at[:, 0] / bound.costs[lowest], 1.0)), shares, gamma))
    return _turned(found) if found else [[] for _ in shares]


def _turned(rows: list[Column]) -> list[Column]:
    return [list(column) for column in zip(*rows, strict=True)]


def _finite(value: Any) -> float | None:
    return finite_or_none(float(value))
