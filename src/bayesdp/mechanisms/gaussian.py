"""The (subsampled) Gaussian mechanism: one noisy step of DP-SGD."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from bayesdp import validation
from bayesdp.logspace import log1p_exp
from bayesdp.mechanisms.gaussian_moments import log_excess_moment
from bayesdp.mechanisms.mechanism import ROUND_UP, Mechanism, checked_exposures
from bayesdp.mechanisms.reverse_moments import reverse_log_moments
from bayesdp.mechanisms.subsampling import log_mean_over_binomial
from bayesdp.validation import FloatArray

SMALLEST = 1e-300
"""The least cost of an exposure above 0: nothing that is released underflows to no cost at all."""

RepeatedStep = tuple[float, float, int]
"""A Gaussian step taken several times: (noise multiplier, sampling rate, steps), as Opacus keeps its history."""


def by_setting(history: Iterable[RepeatedStep]) -> list[RepeatedStep]:
    """Return a history with one entry for each noise and rate, in the order in which they first occur.

    What steps cost together does not depend on their order, so neither bounds nor profiles change.
    """
    counts: Counter[tuple[float, float]] = Counter()
    for noise_multiplier, rate, steps in history:
        counts[noise_multiplier, rate] += steps
    return [(noise_multiplier, rate, steps) for (noise_multiplier, rate), steps in counts.items()]


@dataclass(frozen=True, kw_only=True)
class SubsampledGaussian(Mechanism):
    """Gaussian noise on a sum in which each record takes part with probability ``sample_rate`` (q).

    The exposure is e = d / s: the distance d by which one record moves the sum, over the standard deviation s of the
    noise. For whole lambda (the paper's Theorem 3, forward; Mironov, Talwar & Zhang 2019)

        kappa_lambda(e) = log sum_k Bin(k; lambda+1, q) e^{k (k-1) e^2 / 2} = lambda D_{lambda+1}(M || Q),

    M = (1-q) Q + q P, computed as log1p sum_{k>=2} Bin(k) (e^{k(k-1)e^2/2} - 1). At q = 1 it is
    lambda (lambda+1) e^2 / 2, for every real lambda > 0.

    Formal guarantees: an upper bound of the exact value in both directions of add/remove (the exact reverse never
    exceeds it: Theorem 5 there), within 1e-10 relative of the forward one; at least 1e-300 for every exposure above 0.
    Convex and increasing in e^2, increasing in lambda and in q. It says nothing about replace-one distances when
    q < 1: there d = |clip(g(x))|, never |g(x) - g(y)|.

    A rate outside (0, 1], and an order that is not whole where q < 1, raise InvalidInputError.
    """

    sample_rate: float = 1.0
    forward_is_larger: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "sample_rate", validation.sample_rate(self.sample_rate))

    def forward(self, exposure: Any, lambdas: ArrayLike | range) -> FloatArray:
        """Return kappa as in the class, [n, L]."""
        e = checked_exposures(exposure)
        lam = validation.lambdas(lambdas, whole=self.sample_rate < 1)
        with np.errstate(over="ignore"):
            u = e * e
            if self.sample_rate == 1:
                kappa = 0.5 * u[:, None] * (lam * (lam + 1)) * ROUND_UP
            else:
                kappa = log1p_exp(log_excess_moment(u, lam.astype(int), self.sample_rate)) * ROUND_UP
        return np.where(e[:, None] > 0, np.maximum(kappa, SMALLEST), 0.0)

    def reverse(self, exposure: Any, lambdas: ArrayLike | range) -> FloatArray:
        """Return lambda D_{lambda+1}(Q || M), [n, L], for any real lambda: what a step costs a record left out.

        Never below the exact value and within 1e-9 relative of it, by quadrature; ``forward`` where q = 1. For q < 1 it
        is at most -lambda log(1 - q), however large the exposure.
        """
        if self.sample_rate == 1:
            return self.forward(exposure, lambdas)
        e, lam = checked_exposures(exposure), validation.lambdas(lambdas, whole=False)
        kappa = reverse_log_moments(e, lam, self.sample_rate)
        return np.where(e[:, None] > 0, np.maximum(kappa, SMALLEST), 0.0)


def published_reverse_cost(exposure: Any, lambdas: ArrayLike | range, sample_rate: float) -> FloatArray:
    """Return the paper's c^R of one step and one record, log sum_k Bin(k; lambda, q) e^{k (k+1) e^2 / 2}, [n, L].

    For comparison only (Theorem 3, reverse). It is a valid bound of the reverse direction, but about
    2 / ((lambda+1) q) times the forward cost where costs are small, so it would always win the theorem's maximum;
    ``SubsampledGaussian`` bounds the reverse direction by the forward one instead. ``exposure`` [n] and
    ``sample_rate`` as there; ``lambdas`` [L] are whole.
    """
    rate = validation.sample_rate(sample_rate)
    e = checked_exposures(exposure)
    lam = validation.lambdas(lambdas, whole=True)
    k = np.arange(1, int(lam.max()) + 1)
    with np.errstate(over="ignore"):
        terms = 0.5 * (e * e)[:, None] * (k * (k + 1.0))
    return log_mean_over_binomial(terms, lam, rate, first=1)
