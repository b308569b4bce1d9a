"""A distribution-free bound from the mean of the samples alone: Hoeffding's, in its Kullback-Leibler form."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bayesdp.estimators.distribution_free import DistributionFree
from bayesdp.logspace import minus_log1p
from bayesdp.validation import FloatArray


@dataclass(frozen=True, kw_only=True)
class KullbackLeibler(DistributionFree):
    """The upper bound bound * u, u the root above M of m kl(M, u) = log(1/gamma), M the mean of m values / bound.

    kl(p, u) = p log(p/u) + (1-p) log((1-p)/(1-u)). By Hoeffding (1963, Theorem 1), Pr[M <= p] <= e^{-m kl(p, t)} for a
    true mean t and p <= t, and the result is below t only if M is below the p with m kl(p, t) = log(1/gamma). It
    increases in every sample. It is best where values are 0 or the bound, and takes no advantage of a small variance.
    The root is rounded up.

    **Distribution-free**: for independent samples of any law on [0, bound], at every sample size.
    """

    def _upper_fraction(self, fractions: FloatArray) -> FloatArray:
        mean = np.clip(fractions.mean(axis=0), 1e-300, 1.0)  # a mean of 0 would divide 0 by 0
        target = -math.log(self.gamma) / len(fractions)
        low: FloatArray = mean
        high: FloatArray = np.ones_like(mean)
        for _ in range(64):
            middle: FloatArray = 0.5 * (low + high)
            enough = divergence(mean, middle) >= target
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return high

    def _floor(self, samples: int) -> float:
        return -math.expm1(math.log(self.gamma) / samples)


def divergence(p: FloatArray, u: FloatArray) -> FloatArray:
    """Return kl(p, u) elementwise for 0 < p <= u, as a sum of two non-negative terms that do not cancel near u = p."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return p * minus_log1p((u - p) / p) + (1.0 - p) * minus_log1p((p - u) / (1.0 - p))
