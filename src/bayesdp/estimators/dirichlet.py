"""The paper's estimator for finitely many values: an upper bound of the Dirichlet posterior's quantile."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bayesdp.estimators.closing_in import root_from_above
from bayesdp.estimators.estimator import ColumnEstimator, scaled
from bayesdp.validation import FloatArray, refuse

_ROUND_UP = 1.0 + 1e-12
_CLOSE = 1e-14  # to the quantile, relative
_LOGITS = -40.0, 36.0  # of theta: where the search begins and ends


@dataclass(frozen=True, kw_only=True)
class Dirichlet(ColumnEstimator):
    """An upper bound of the 1 - gamma posterior quantile of sum_j p_j v_j, p ~ Dirichlet(n_j + 1).

    v_j are the different values, n_j how often each was seen; the prior is flat (the paper's estimator for finitely
    many values). With independent g_j ~ Gamma(n_j + 1), p = g / sum g, and the mean exceeds u exactly if
    sum_j g_j (v_j - u) > 0. For every 0 <= s < 1 / (max v - u), by Chernoff,

        Pr[sum_j p_j v_j > u] <= prod_j (1 - s (v_j - u))^{-(n_j + 1)},

    minimised over s; no sampling, so gamma = 1e-15 is as easy as 0.1. Any s is valid: a search that stops early only
    makes the result larger. A known bound is a value of its own, with n = 0 if it was never seen.

    **Model-based**: ``gamma`` is a posterior probability. A single value without a bound raises InvalidInputError.
    """

    def _log_upper_of_one(self, log_values: FloatArray, cap: float | None) -> float:
        seen, counts = np.unique(log_values, return_counts=True)
        if cap is not None and seen[-1] < cap:
            seen, counts = np.append(seen, cap), np.append(counts, 0)
        if len(seen) == 1:
            if cap is None:
                raise refuse("value", float(np.exp(seen[0])), "two different values, or a known bound")
            return float(cap)
        if seen[-1] == np.inf:
            return math.inf
        values, scale = scaled(seen[:, None])
        return math.log(self._quantile(values[:, 0], np.asarray(counts + 1, dtype=np.float64))) + float(scale[0])

    def _quantile(self, values: FloatArray, weights: FloatArray) -> float:
        """Return u in [mean, 1] whose tail bound is at most gamma, for values in [0, 1] whose largest is 1."""
        mean, target = float(weights @ values / weights.sum()), math.log(self.gamma)
        quantile = root_from_above(lambda u: target - _log_tail(u, values, weights), mean, 1.0, _CLOSE)
        return min(1.0, quantile * _ROUND_UP)


def _log_tail(u: float, values: FloatArray, weights: FloatArray) -> float:
    """Return the least log tail bound over s = theta / (1 - u), 0 < theta < 1; any theta is valid.

    The bound is convex in theta. Its derivative, here times 1 - theta, which keeps it bounded, changes its sign once.
    """
    slope = (values - u) / (1.0 - u)
    weighted = weights * slope

    def derivative(logit: float) -> float:
        theta = 1.0 / (1.0 + math.exp(-logit))
        return float((weighted / np.maximum(1 - theta * slope, 1e-16)).sum()) / (1.0 + math.exp(logit))

    from scipy.optimize import brentq  # slow to import, and only this estimator needs it

    logit = _LOGITS[1]
    if derivative(_LOGITS[0]) >= 0:
        logit = _LOGITS[0]
    elif derivative(_LOGITS[1]) > 0:
        logit = brentq(derivative, *_LOGITS, xtol=1e-6)
    theta = 1.0 / (1.0 + math.exp(-logit))
    return -float(weights @ np.log1p(-np.minimum(theta * slope, 1 - 1e-16)))
