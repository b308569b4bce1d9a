"""The walk to the smallest epsilon at which the audit records support that the average delta is small enough.

The hypotheses "the average delta at epsilon_j exceeds delta" are tested along a fixed grid that goes down from the
worst case, each at level gamma, until one cannot be rejected. The average delta falls as epsilon grows, so all false
claims lie below the true ones, and the walk meets the one with the largest epsilon first. It passes that one with
probability at most gamma: no correction for the number of tests is needed. (Bisection would need one.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bayesdp.estimators import DistributionFree
from bayesdp.validation import FloatArray

RATIO = 0.99
_POINTS = 920  # the last epsilon is less than a ten-thousandth of the first
_WITHOUT_WORST_CASE = 100.0


def walk(worst_case: float) -> FloatArray:
    """Return the grid of epsilons [G], falling from the worst case; it depends only on the settings of the run."""
    if worst_case == 0:
        return np.zeros(1)
    first = worst_case if math.isfinite(worst_case) else _WITHOUT_WORST_CASE
    return np.geomspace(first, first * RATIO ** (_POINTS - 1), _POINTS)


@dataclass(frozen=True)
class Walked:
    """The smallest epsilon that was supported, infinite if none was, and whether the walk reached the end."""

    epsilon: float
    to_the_end: bool


def least_epsilon(
    estimator: DistributionFree,
    epsilons: FloatArray,
    deltas: FloatArray,
    bounds: FloatArray,
    delta: float,
    *,
    known: bool,
) -> Walked:
    """Walk down ``epsilons`` [g], given the records' deltas there, [m, g], and the worst case's deltas ``bounds`` [g].

    ``known`` says that the first epsilon needs no test because it holds for everyone.
    """
    supported = float(epsilons[0]) if known else math.inf
    for number in range(1 if known else 0, len(epsilons)):
        bound = float(bounds[number])
        if not (bound <= delta or estimator.supports(np.minimum(deltas[:, number], bound), delta, bound=bound)):
            return Walked(supported, to_the_end=False)
        supported = float(epsilons[number])
    return Walked(supported, to_the_end=True)


def floor(estimator: DistributionFree, samples: int, epsilons: FloatArray, bounds: FloatArray, delta: float) -> float:
    """Return the smallest of the epsilons [g] that ``samples`` records could support if all their deltas were 0.

    0 means that every epsilon is within reach.
    """
    reachable = estimator.floor(samples) * bounds <= delta
    return 0.0 if reachable.all() else float(epsilons[max(int(np.argmin(reachable)) - 1, 0)])
