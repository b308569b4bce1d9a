"""Poisson subsampling of any mechanism, through its log-moments at whole orders."""

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
    """``mechanism``, in which each record takes part with probability ``sample_rate`` (q): M = (1-q) Q + q P.

    With the Rényi divergences D of ``mechanism``, for whole lambda,

    - forward, exact: log sum_k Bin(k; lambda+1, q) e^{(k-1) D_k(P || Q)}, by expanding E_Q[(M/Q)^{lambda+1}]; the terms
      k = 0, 1 are their weights;
    - reverse, an upper bound: E_Q[(Q/M)^lambda] <= sum_k Bin(k; lambda, q) e^{k D_{k+1}(Q || P)}, by convexity of 1/x.

    Formal guarantee: ``log_moment`` is never below the exact value of either direction. Where
    ``mechanism.forward_is_larger``, that is the forward one alone, since the exact reverse does not exceed it (Mironov,
    Talwar & Zhang 2019, Theorem 5); otherwise it is the larger of the two above. Exposures are those of ``mechanism``.

    For the Gaussian use ``SubsampledGaussian``: equal numbers, much faster. A rate outside (0, 1], anything but a
    Mechanism, and orders that are not whole raise InvalidInputError.
    """

    mechanism: Mechanism
    sample_rate: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "sample_rate", validation.sample_rate(self.sample_rate))
        if not isinstance(self.mechanism, Mechanism):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise validation.refuse("mechanism", self.mechanism, "a Mechanism such as Laplace()")

    def forward(self, exposure: Any, lambdas: ArrayLike | range) -> FloatArray:
        """Return the exact forward log-moment, [n, L]."""
        lam = validation.lambdas(lambdas, whole=True)
        base = self.mechanism.forward(exposure, np.arange(1, int(lam.max()) + 1))
        # the k-th term, k >= 2, carries (k-1) D_k, which is the base log-moment at lambda = k-1
        return log_mean_over_binomial(base, lam + 1, self.sample_rate, first=2)

    def reverse(self, exposure: Any, lambdas: ArrayLike | range) -> FloatArray:
        """Return the upper bound of the reverse log-moment, [n, L]."""
        lam = validation.lambdas(lambdas, whole=True)
        base = self.mechanism.reverse(exposure, np.arange(1, int(lam.max()) + 1))
        return log_mean_over_binomial(base, lam, self.sample_rate, first=1)

    def log_moment(self, exposure: Any, lambdas: ArrayLike | range) -> FloatArray:
        """Return an upper bound of both directions, [n, L]: see the class."""
        if self.mechanism.forward_is_larger:
            return self.forward(exposure, lambdas)
        return super().log_moment(exposure, lambdas)


def log_mean_over_binomial(log_terms: FloatArray, trials: FloatArray, sample_rate: float, *, first: int) -> FloatArray:
    """Return log sum_k Bin(k; trials, q) e^{a_k}, [n, L]: a_k is column k - first of ``log_terms``, 0 for k < first.

    ``log_terms`` [n, K] are of at least 0, ``trials`` [L] are whole and need K > max(trials) - first. Computed as log1p
    sum_{k >= first} Bin(k) (e^{a_k} - 1), which keeps its digits even where the result is 1e-30, and rounded up.
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
