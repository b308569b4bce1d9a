"""The worst case for a person with several rows: group privacy, at the best epsilon for a single row."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from bayesdp import properties
from bayesdp.claims.claim import Claim
from bayesdp.claims.spending import BudgetBound
from bayesdp.guarantees.clip_bound import ClipBound

_EPSILONS = np.geomspace(1, 1024, 2000)  # epsilons of one row, as multiples of its worst case
_LEAST_DELTA = 1e-11  # below this delta profiles are no better than Rényi divergences


def rows_claim(clip_bound: ClipBound | BudgetBound | None, everyone: Claim, rows: int) -> Claim:
    """Return the claim for everyone with up to ``rows`` rows, at the same delta as ``everyone``.

    A single row satisfies (epsilon, delta(epsilon))-DP for every epsilon. The result uses the smallest epsilon of a
    fixed grid at which group privacy keeps the group's delta within ``everyone.delta``, so it errs upwards.
    """
    claim = replace(
        everyone,
        epsilon=math.inf,
        method=f"group privacy, {rows} rows of one person",
        notes=(f"It holds for a person with up to {rows} rows.",),
    )
    if clip_bound is None or math.isinf(everyone.epsilon):
        return claim
    if everyone.epsilon == 0:
        return claim.without("an epsilon of 0 for one row implies nothing for several rows")
    epsilons = everyone.epsilon * _EPSILONS
    small = max(_LEAST_DELTA, everyone.delta * math.exp(-min(rows * everyone.epsilon, 700.0)))
    deltas = np.minimum(*(clip_bound.deltas(epsilons, delta) for delta in (everyone.delta, small)))
    for epsilon, delta in zip(epsilons.tolist(), deltas.tolist(), strict=True):
        total, group_delta = properties.group_privacy(epsilon, min(delta, 1.0), rows)
        if group_delta <= everyone.delta:
            return replace(claim, epsilon=total)
    return claim.without(f"no finite epsilon for {rows} rows at this delta")
