"""Logarithms of binomial probabilities that keep their digits even for thousands of trials."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bayesdp.validation import FloatArray


@lru_cache(maxsize=4)
def _log_factorials(size: int) -> NDArray[np.longdouble]:
    """Return log 0!, ..., log (size-1)!, summed in extended precision because differences of them cancel."""
    k = np.arange(1, size, dtype=np.longdouble)
    return np.concatenate([[np.longdouble(0)], np.cumsum(np.log(k))])


@lru_cache(maxsize=1024)
def _all_log_binomial(trials: int, rate: float) -> FloatArray:
    factorials = _log_factorials(1 << (trials + 1).bit_length())  # few cache entries
    k = np.arange(trials + 1)
    value = factorials[trials] - factorials[k] - factorials[trials - k]
    value += k * np.log(np.longdouble(rate)) + (trials - k) * np.log1p(-np.longdouble(rate))
    return value.astype(np.float64)


def log_binomial(k: NDArray[np.int_], trials: int, rate: float) -> FloatArray:
    """Return log Bin(k; trials, rate) for each k >= 0, in the shape of ``k``; -inf where k > trials.

    Computed in extended precision and rounded once, so the error is about one ulp of the result. Needs
    0 < rate < 1, which callers have checked.
    """
    known = _all_log_binomial(trials, rate)
    return np.where(k <= trials, known[np.minimum(k, trials)], -np.inf)


def log_binomials(k: NDArray[np.int_], trials: NDArray[np.int_], rate: float) -> FloatArray:
    """Return log Bin(k; trials, rate) for arrays that broadcast, 0 <= k <= trials; as ``log_binomial``, bit for bit."""
    factorials = _log_factorials(1 << (int(trials.max()) + 1).bit_length())
    value = factorials[trials] - factorials[k] - factorials[trials - k]
    value = value + (k * np.log(np.longdouble(rate)) + (trials - k) * np.log1p(-np.longdouble(rate)))
    return value.astype(np.float64)
