"""The worst case for a person with several rows: mixtures of Gaussians, or group privacy where these give nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from bayesdp import properties
from bayesdp.claims.claim import Claim
from bayesdp.claims.spending import BudgetBound
from bayesdp.guarantees.clip_bound import ClipBound
from bayesdp.guarantees.selection import SelectedBound
from bayesdp.guarantees.several_rows import rows_bound

_EPSILONS = np.geomspace(1, 1024, 2000)  # epsilons of one row, as multiples of its worst case
_LEAST_DELTA = 1e-11  # below this delta profiles are no better than Rényi divergences


def rows_claim(clip_bound: ClipBound | BudgetBound | SelectedBound | None, everyone: Claim, rows: int) -> Claim:
    """Return the claim for everyone with up to ``rows`` rows, at the same delta as ``everyone``.

    The smaller of ``rows_bound`` and, where that has no privacy loss distribution and is not exact, group privacy; both
    err upwards. Never below ``everyone``, which is for one row. Kind, condition, assumptions and notes are those of
    ``everyone``: ``clip_bound`` must be that of the same steps, taken or planned.
    """
    claim = replace(
        everyone,
        epsilon=math.inf,
        method=f"group privacy, {rows} rows of one person",
        notes=(*everyone.notes, f"It holds for a person with up to {rows} rows."),
    )
    if clip_bound is None or math.isinf(everyone.epsilon):
        return claim
    tight = False
    if isinstance(clip_bound, ClipBound):  # a budget says what everyone may lose, and not by which steps
        bound = rows_bound(clip_bound, rows, everyone.delta)
        tight, figure = bound.tight, max(bound.epsilon, everyone.epsilon)
        claim = replace(claim, epsilon=figure, method=f"{bound.accountant}, {rows} rows of one person")
    if not tight:
        group = _group_privacy(clip_bound, everyone, rows)
        if group < claim.epsilon:
            claim = replace(claim, epsilon=group, method=f"group privacy, {rows} rows of one person")
    if math.isinf(claim.epsilon):
        return claim.without(f"no finite epsilon for {rows} rows at this delta")
    return claim


def _group_privacy(clip_bound: ClipBound | BudgetBound | SelectedBound, everyone: Claim, rows: int) -> float:
    """Return what group privacy gives at the best epsilon for a single row; infinite if it gives nothing.

    A single row satisfies (epsilon, delta(epsilon))-DP for every epsilon. The result uses the smallest epsilon of a
    fixed grid at which group privacy keeps the group's delta within ``everyone.delta``, so it errs upwards.
    """
    if everyone.epsilon == 0:
        return math.inf
    epsilons = everyone.epsilon * _EPSILONS
    small = max(_LEAST_DELTA, everyone.delta * math.exp(-min(rows * everyone.epsilon, 700.0)))
    deltas = np.minimum(*(clip_bound.deltas(epsilons, delta) for delta in (everyone.delta, small)))
    for epsilon, delta in zip(epsilons.tolist(), deltas.tolist(), strict=True):
        total, group_delta = properties.group_privacy(epsilon, min(delta, 1.0), rows)
        if group_delta <= everyone.delta:
            return total
    return math.inf
