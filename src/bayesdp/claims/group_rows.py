"""The worst case of a person with several rows: group privacy at its best."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from bayesdp import properties
from bayesdp.claims.claim import Claim
from bayesdp.guarantees.clip_bound import ClipBound

_EPSILONS = np.geomspace(1, 1024, 2000)  # of one row, over the worst case of one row
_LEAST_DELTA = 1e-11  # below it profiles are no better than Rényi divergences


def rows_claim(clip_bound: ClipBound | None, everyone: Claim, rows: int) -> Claim:
    """For everyone with up to so many rows, at the same delta.

    One row has (epsilon, delta(epsilon)) for every epsilon. The least for which group privacy keeps to delta is taken.
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
        return claim.without("at an epsilon of 0 for one row nothing follows for several")
    epsilons = everyone.epsilon * _EPSILONS
    small = max(_LEAST_DELTA, everyone.delta * math.exp(-min(rows * everyone.epsilon, 700.0)))
    deltas = np.minimum(*(clip_bound.deltas(epsilons, delta) for delta in (everyone.delta, small)))
    for epsilon, delta in zip(epsilons.tolist(), deltas.tolist(), strict=True):
        total, group_delta = properties.group_privacy(epsilon, min(delta, 1.0), rows)
        if group_delta <= everyone.delta:
            return replace(claim, epsilon=total)
    return claim.without(f"no finite epsilon for {rows} rows at this delta")
