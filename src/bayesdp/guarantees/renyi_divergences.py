"""Rényi divergences of Poisson-sampled Gaussian steps, as dp-accounting's but with all terms of its sums at once.

dp-accounting adds up each order term by term in Python, which takes most of the time of a bound by Rényi divergences.
Here the terms are arrays and only their sum is a loop; operations and their order are dp-accounting's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, log_ndtr

from bayesdp.validation import FloatArray

_MOST_TERMS = 1000  # of an order that is not whole; dp-accounting leaves an order out that needs more
_TERMS = (0, 32, 128, _MOST_TERMS)  # how many are computed together: most orders need few
_NEGLIGIBLE = -30.0  # logarithm of a term beside the sum


def sampled_divergences(noise_multiplier: float, rate: float, orders: FloatArray) -> FloatArray:
    """Return the Rényi divergences [A] of a Gaussian step at sampling rate 0 < q < 1, for orders [A] above 1.

    They are those of dp-accounting's ``RdpAccountant``, to the last bit: log(A_alpha) / (alpha - 1) with the sums for
    A_alpha in section 3.3 of Mironov, Talwar & Zhang (arXiv:1908.10530); infinite for an order whose sum needs more
    than 1000 terms.
    """
    logs = np.full(len(orders), math.inf)
    whole = orders == np.floor(orders)
    for number in np.flatnonzero(whole).tolist():
        logs[number] = _of_whole_order(noise_multiplier, rate, int(orders[number]))
    todo = np.flatnonzero(~whole)
    sums = [_TwoSums() for _ in orders]
    for first, last in pairwise(_TERMS):
        below, above = _terms(noise_multiplier, rate, orders[todo], np.arange(first, last))
        left: list[int] = []
        for number, *terms in zip(todo.tolist(), below.tolist(), above.tolist(), strict=True):
            if sums[number].add(*terms):
                logs[number] = sums[number].log
            else:
                left.append(number)
        todo = np.array(left, np.intp)
    return logs / (orders - 1)


def _of_whole_order(noise: float, rate: float, order: int) -> float:
    """Return log A_alpha = log sum_i Bin(i; alpha, q) e^{(i^2 - i) / (2 sigma^2)}."""
    i = np.arange(order + 1)
    terms = _log_choose(order, i) + i * math.log(rate) + (order - i) * math.log1p(-rate)
    terms = terms + (i * i - i) / (2 * noise**2)
    total = -math.inf
    for term in terms.tolist():
        total = _log_add(total, term)
    return total


def _terms(noise: float, rate: float, orders: FloatArray, i: NDArray[np.int_]) -> tuple[FloatArray, FloatArray]:
    """Return terms ``i`` [N] of log A_alpha for orders [A] that are not whole, [A, N].

    The integral over outputs up to z0 and the one from there on, where both parts of the mixture are equally likely.
    """
    order = orders[:, None]
    z0 = noise**2 * math.log(1 / rate - 1) + 0.5
    choose, j = _log_choose(order, i), order - i
    log_rate, log_rest, log_half, spread = math.log(rate), math.log1p(-rate), math.log(0.5), math.sqrt(2) * noise
    below = choose + i * log_rate + j * log_rest
    above = choose + j * log_rate + i * log_rest
    tail_below = log_half + (math.log(2) + log_ndtr(-((i - z0) / spread) * 2**0.5))
    tail_above = log_half + (math.log(2) + log_ndtr(-((z0 - j) / spread) * 2**0.5))
    return (
        below + (i * i - i) / (2 * noise**2) + tail_below,
        above + (j * j - j) / (2 * noise**2) + tail_above,
    )


class _TwoSums:
    """Sums of e^terms below and above z0; ``log`` is the logarithm of both together."""

    def __init__(self) -> None:
        self.log = -math.inf
        self._sums = (-math.inf, -math.inf)
        self._last = (-math.inf, -math.inf)

    def add(self, below: Iterable[float], above: Iterable[float]) -> bool:
        """Add further terms; return True at the first pair that falls and is negligible, after which none is added."""
        sum_below, sum_above = self._sums
        last_below, last_above = self._last
        for term_below, term_above in zip(below, above, strict=True):
            sum_below, sum_above = _log_add(sum_below, term_below), _log_add(sum_above, term_above)
            self.log = _log_add(sum_below, sum_above)
            falls = term_below < last_below and term_above < last_above
            if falls and max(term_below, term_above) < self.log + _NEGLIGIBLE:
                return True
            last_below, last_above = term_below, term_above
        self._sums, self._last = (sum_below, sum_above), (last_below, last_above)
        return False


def _log_choose(n: FloatArray | int, k: NDArray[np.int_]) -> FloatArray:
    return gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)


def _log_add(x: float, y: float) -> float:
    """Return log(e^x + e^y)."""
    low, high = (x, y) if x < y else (y, x)
    return high if low == -math.inf else math.log1p(math.exp(low - high)) + high
