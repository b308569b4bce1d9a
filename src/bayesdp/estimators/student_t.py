"""The paper's estimator for continuous values: mean plus a Student-t multiple of the standard error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import stdtrit

from bayesdp import validation
from bayesdp.estimators.estimator import Estimator, scaled
from bayesdp.validation import FloatArray, InvalidInputError, refuse

NEARLY_EQUAL = 1e-6
"""Relative spread (standard deviation over mean) below which samples say nothing about unseen data."""
_LEAST_GAMMA = 1e-300
"""The least failure probability that is accepted: no quantile is beyond float64."""
_EXACT_GAMMA = 1e-100
"""The least failure probability at which SciPy's quantile of Student's t is exact for all numbers of samples."""


@dataclass(frozen=True, kw_only=True)
class StudentT(Estimator):
    """The estimate M + isf(gamma, m-1) S / sqrt(m-1), M and S (ddof 0) mean and standard deviation of m values.

    From the paper's Theorem 4 (Oliphant 2006, "A Bayesian perspective on estimating mean, variance, and
    standard-deviation from data": flat prior, maximum entropy); isf is the upper quantile of Student's t.

    **Model-based**: on skewed data it is not a confidence bound. Even at gamma = 1e-15 it misses most of the time where
    0.1 % of the values are outliers and m is small (docs/sharp-edges.md). It is not monotone: raising a value can lower
    the result, so values must not be replaced by upper bounds of them.

    | samples | with a known bound | without | ``as_published`` |
    |---|---|---|---|
    | spread | the formula, at most the bound | the formula | the formula |
    | nearly equal | moves continuously (in the logarithm) to the bound | refused | the formula |
    | all equal | the bound | refused | their mean |

    "Nearly equal" is a relative spread below ``NEARLY_EQUAL``; "refused" raises InvalidInputError, as does a gamma
    outside [1e-300, 0.5).
    """

    gamma: float = 1e-15
    as_published: bool = False

    def __post_init__(self) -> None:
        gamma = validation.probability("gamma", self.gamma)
        if not _LEAST_GAMMA <= gamma < 0.5:
            raise refuse("gamma", self.gamma, f"a failure probability in [{_LEAST_GAMMA:g}, 0.5)")
        object.__setattr__(self, "gamma", gamma)

    def _log_upper(self, columns: FloatArray, cap: FloatArray | None) -> FloatArray:
        values, scale = scaled(columns)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            mean = values.mean(axis=0)
            deviation = np.sqrt(((values - mean) ** 2).mean(axis=0))  # two passes: no cancellation
            log_mean, log_deviation = np.log(mean) + scale, np.log(deviation) + scale
            # Logarithms are rounded in proportion to their size; that is not a spread of the values.
            distinct = columns.max(axis=0) - columns.min(axis=0) > 4 * np.finfo(float).eps * np.abs(scale)
            spread = np.where(distinct & (mean > 0), deviation / mean, 0.0)
        infinite = np.isposinf(columns).any(axis=0)
        result = self.combine(log_mean, log_deviation, np.where(infinite, 1.0, spread), len(columns), cap)
        return np.where(infinite, np.inf, result)

    def combine(
        self,
        log_mean: FloatArray,
        log_deviation: FloatArray,
        spread: FloatArray,
        samples: int,
        cap: FloatArray | None,
    ) -> FloatArray:
        """Return the log estimate [L] from the logarithms of means and standard deviations of m ``samples``, [L] each.

        ``spread``: lower bounds [L] of standard deviation over mean, which say whether samples are nearly equal.
        ``cap``: log bounds [L], None for no bound. The table in the class says what happens when.
        """
        factor = standard_errors(self.gamma, samples)
        with np.errstate(divide="ignore", invalid="ignore"):
            formula = np.logaddexp(log_mean, math.log(factor) + log_deviation)
        if self.as_published:
            return formula
        if spread.min() >= NEARLY_EQUAL:
            return formula if cap is None else np.minimum(formula, cap)
        if cap is None:
            raise InvalidInputError(
                f"spread={float(np.min(spread)):.3g}: the samples are nearly equal and say nothing about "
                "unseen data; expected a known bound (clip), or samples that differ."
            )
        silent = np.clip(1.0 - spread / NEARLY_EQUAL, 0.0, 1.0)
        with np.errstate(invalid="ignore"):
            between = np.where(silent >= 1.0, cap, (1.0 - silent) * formula + silent * cap)
        return np.minimum(np.where(silent > 0, np.maximum(between, formula), formula), cap)


@lru_cache(maxsize=256)
def standard_errors(gamma: float, samples: int) -> float:
    """Return isf(gamma, m-1) / sqrt(m-1): how many standard deviations (ddof 0) of m samples are added to their mean.

    By symmetry it is taken from the lower tail, because ppf(1 - gamma) is infinite where gamma is tiny. Below
    ``_EXACT_GAMMA``, where SciPy's quantile can be too small or has the wrong sign, it is an upper bound: without the 1
    in its density c (1 + x^2/n)^{-(n+1)/2}, the tail of Student's t beyond x is c n^{(n-1)/2} x^{-n}.
    """
    n = samples - 1
    if gamma >= _EXACT_GAMMA:
        return -float(stdtrit(n, gamma)) / math.sqrt(n)
    log_density = math.lgamma((n + 1) / 2) - math.lgamma(n / 2) - 0.5 * math.log(n * math.pi)
    log_quantile = (log_density + 0.5 * (n - 1) * math.log(n) - math.log(gamma)) / n
    return math.exp(log_quantile + 1e-12) / math.sqrt(n)
