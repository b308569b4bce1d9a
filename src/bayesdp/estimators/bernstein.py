"""A distribution-free bound in closed form that profits from a small variance, by Maurer and Pontil."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bayesdp.estimators.distribution_free import DistributionFree
from bayesdp.validation import FloatArray


@dataclass(frozen=True, kw_only=True)
class EmpiricalBernstein(DistributionFree):
    """The upper bound M + sqrt(2 V log(2/gamma) / m) + 7 bound log(2/gamma) / (3 (m - 1)), at most ``bound``.

    M and V are mean and variance (ddof 1) of m samples: Maurer & Pontil 2009, "Empirical Bernstein bounds and sample
    variance penalization", Theorem 4. It is not monotone: raising a small value can lower the variance and the result,
    so values must not be replaced by upper bounds of them.

    **Distribution-free**: for independent samples of any law on [0, bound], at every sample size.
    """

    monotone = False

    def _upper_fraction(self, fractions: FloatArray) -> FloatArray:
        samples = len(fractions)
        deviation = np.sqrt(2.0 * fractions.var(axis=0, ddof=1) * self._log_odds / samples)
        return fractions.mean(axis=0) + deviation + self._floor(samples)

    def _floor(self, samples: int) -> float:
        return 7.0 * self._log_odds / (3.0 * (samples - 1))

    @property
    def _log_odds(self) -> float:
        return math.log(2.0) - math.log(self.gamma)
