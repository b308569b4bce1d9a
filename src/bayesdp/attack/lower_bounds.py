"""Lower bounds of epsilon from scores of runs with and without a record.

Whatever guesses from the outputs that the record was in has, under (epsilon, delta)-DP, TPR <= e^epsilon FPR + delta.
So a lower bound of TPR and an upper bound of FPR (Clopper-Pearson) bound epsilon from below, and the same with in and
out exchanged. The threshold is chosen on one half of the runs and evaluated on the other, which is fresh for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import beta, norm

from bayesdp.profiles import gaussian_epsilon
from bayesdp.validation import FloatArray

_THRESHOLDS = 200


def at_least(events: Any, trials: int, alpha: float) -> FloatArray:
    """Return Clopper-Pearson lower bounds of probabilities, each above its own with probability at most ``alpha``."""
    counts = np.asarray(events, np.float64)
    bounds = beta.ppf(alpha, np.maximum(counts, 1.0), trials - counts + 1)
    return np.where(counts == 0, 0.0, bounds)


def at_most(events: Any, trials: int, alpha: float) -> FloatArray:
    """Return Clopper-Pearson upper bounds of probabilities, each below its own with probability at most ``alpha``."""
    counts = np.asarray(events, np.float64)
    bounds = beta.isf(alpha, counts + 1, np.maximum(trials - counts, 1.0))
    return np.where(counts == trials, 1.0, bounds)


@dataclass(frozen=True, kw_only=True)
class Guessing:
    """Lower bounds from one attack.

    ``epsilon`` holds for every mechanism. ``mu`` is the least mu of a Gaussian trade-off that the attack leaves
    possible, and ``gaussian_epsilon`` its epsilon: a bound only for mechanisms whose trade-off is Gaussian.
    """

    epsilon: float
    mu: float
    gaussian_epsilon: float


def guessing(within: FloatArray, without: FloatArray, delta: float, alpha: float) -> Guessing:
    """Return what scores [R] of runs with the record, and [R'] without it, show; higher scores speak for "in".

    ``epsilon`` is above the truth with probability at most ``alpha``, and so is ``mu``, each by itself.
    """
    chosen, fresh = (within[::2], without[::2]), (within[1::2], without[1::2])
    thresholds: FloatArray = np.unique(np.quantile(np.concatenate(chosen), np.linspace(0.0, 1.0, _THRESHOLDS)))
    best = [thresholds[int(np.argmax(bounds))] for bounds in _bounds(*chosen, thresholds, delta, alpha)]
    epsilons, mus = _bounds(*fresh, np.array(best), delta, alpha)
    epsilon, mu = max(0.0, float(epsilons[0])), max(0.0, float(mus[1]))
    return Guessing(epsilon=epsilon, mu=mu, gaussian_epsilon=float(gaussian_epsilon(mu, delta)) if mu > 0 else 0.0)


def _bounds(
    within: FloatArray, without: FloatArray, thresholds: FloatArray, delta: float, alpha: float
) -> tuple[FloatArray, FloatArray]:
    """Return the lower bounds of epsilon, and of mu, at each threshold, [G]. Four events share ``alpha``."""
    part, inside, outside = alpha / 4, len(within), len(without)
    right = inside - np.searchsorted(np.sort(within), thresholds, side="right")
    wrong = outside - np.searchsorted(np.sort(without), thresholds, side="right")
    sides = (
        (at_least(right, inside, part), at_most(wrong, outside, part)),
        (at_least(outside - wrong, outside, part), at_most(inside - right, inside, part)),
    )
    epsilons = np.maximum(*(np.log(np.maximum(high - delta, 1e-300) / low) for high, low in sides))
    mus = np.maximum(*(norm.ppf(high) - norm.ppf(np.minimum(low, 1 - 1e-16)) for high, low in sides))
    return epsilons, mus
