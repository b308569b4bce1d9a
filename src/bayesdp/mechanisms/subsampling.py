"""Poisson subsampling of any mechanism through its divergences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from bayesdp import validation
from bayesdp.logspace import log1p_exp, log_expm1
from bayesdp.mechanisms.binomial import log_binomial
from bayesdp.mechanisms.mechanism import ROUND_UP, Mechanism
from bayesdp.validation import FloatArray


@dataclass(frozen=True, kw_only=True)
class PoissonSubsampled(Mechanism):
    """``mechanism``, in which each record takes part with probability ``sample_rate``; M = (1-q) Q + q P.

    Forward, exact:    log sum_k Bin(k; lambda+1, q) e^{(k-1) D_k(P || Q)}; the terms k = 0, 1 are their weights.
    Reverse, a bound:  E_Q[(Q/M)^lambda] <= sum_k Bin(k; lambda, q) e^{k D_{k+1}(Q || P)}, by convexity of 1/x.

    If an involution swaps P and Q (``mechanism.swaps``), the exact reverse never exceeds the forward
    and the forward alone is the answer; otherwise ``log_moment`` takes the larger. lambda is whole.
    For the Gaussian use ``SubsampledGaussian``: the same numbers, much faster.
    """

    mechanism: Mechanism
    sample_rate: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "sample_rate", validation.sample_rate(self.sample_rate))
        if not isinstance(self.mechanism, Mechanism):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise validation.refuse("mechanism", self.mechanism, "a Mechanism such as Laplace()")

    def forward(self, exposure: Any, lambdas: ArrayLike | range) -> FloatArray:
        """See the class."""
        lam = validation.lambdas(lambdas, whole=True)
        base = self.mechanism.forward(exposure, np.arange(1, int(lam.max()) + 1))
        # the k-th term, k >= 2, carries (k-1) D_k, which is the base log-moment at lambda = k-1
        return log_mean_over_binomial(base, lam + 1, self.sample_rate, first=2)

    def reverse(self, exposure: Any, lambdas: ArrayLike | range) -> FloatArray:
        """See the class."""
        lam = validation.lambdas(lambdas, whole=True)
        base = self.mechanism.reverse(exposure, np.arange(1, int(lam.max()) + 1))
        return log_mean_over_binomial(base, lam, self.sample_rate, first=1)

    def log_moment(self, exposure: Any, lambdas: ArrayLike | range) -> FloatArray:
        """The larger direction, [n, L]."""
        if self.mechanism.swaps:
            return self.forward(exposure, lambdas)
        return super().log_moment(exposure, lambdas)


def log_mean_over_binomial(log_terms: FloatArray, trials: FloatArray, sample_rate: float, *, first: int) -> FloatArray:
    """log sum_k Bin(k; trials, q) e^{a_k}, [n, L], where a_k = 0 for k < first and column k - first otherwise.

    Computed as log1p sum_{k >= first} Bin(k) (e^{a_k} - 1): exact also where the result is 1e-30.
    """
    if sample_rate == 1.0:
        return log_terms[:, trials.astype(int) - first]
    log_excess = log_expm1(log_terms)
    columns: list[FloatArray] = []
    for n in (int(t) for t in trials):
        k = np.arange(first, n + 1)
        terms = log_binomial(k, n, sample_rate) + log_excess[:, : len(k)]
        columns.append(np.asarray(logsumexp(terms, axis=1)))
    return log1p_exp(np.stack(columns, axis=1)) * ROUND_UP
