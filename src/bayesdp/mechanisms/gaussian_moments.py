"""The sum behind the subsampled Gaussian, for many squared exposures and orders, fast and without overflow.

Exponents below ``_SAFE`` go through one matrix product for all orders at once. Above it, the few highest terms, summed
in log space, are nearly always all that counts; what they leave out is bounded through convexity in k and added, and
where that bound is not negligible the whole sum is taken in log space.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bayesdp.mechanisms.binomial import log_binomial, log_binomials
from bayesdp.validation import FloatArray

IntArray = NDArray[np.int_]

_SAFE = 600.0  # e^600 and its inverse are well inside float64
_FIRST_WINDOW, _WINDOW = 4, 32  # highest terms that are tried alone
_CELLS = 1 << 18  # terms that are computed together
_NEGLIGIBLE = -33.0  # e^-33 < 1e-14
_ROWS = 512  # numbers u that are computed together
_MOST = 1e290  # a larger u stands for infinity: products with k (k-1) / 2 would overflow


def log_excess_moment(u: FloatArray, lambdas: IntArray, sample_rate: float) -> FloatArray:
    """Return log sum_{k>=2} Bin(k; lambda+1, q) (e^{k(k-1)u/2} - 1), [n, L], for n numbers u = e^2 and L orders.

    ``u`` are of at least 0; the result is -inf at 0 and inf from 1e290 on. ``lambdas`` are whole, in any order and with
    repetitions. Needs 0 < sample_rate < 1. Whatever is left out of the sum is bounded and added; what rounding may
    still lose is for the caller's ``ROUND_UP`` to cover.
    """
    result = np.empty((len(u), len(lambdas)))
    result[u == 0] = -np.inf
    result[u >= _MOST] = np.inf
    distinct, inverse = np.unique(lambdas, return_inverse=True)
    chunks = _chunks_of_one_octave(u)
    if not chunks:
        return result
    k = np.arange(2, _safe_terms(float(u[chunks[0]].max()), distinct) + 2)
    log_weights = np.stack([log_binomial(k, n, sample_rate) for n in (distinct + 1).tolist()], axis=1)
    for chunk in chunks:
        result[chunk] = _chunk(u[chunk], distinct, sample_rate, log_weights)[:, inverse]
    return result


def _safe_terms(u: float, lambdas: IntArray) -> int:
    """Return how many of the terms k = 2, 3, ... have exponents that are safe at u; ``lambdas`` ascend."""
    k = np.arange(2, int(lambdas[-1]) + 2)
    return int(np.searchsorted(0.5 * k * (k - 1.0) * u, _SAFE, side="right"))


def _chunks_of_one_octave(u: FloatArray) -> list[IntArray]:
    """Return indices of positive u below ``_MOST`` in groups of bounded size, each within a factor 2."""
    usable = np.flatnonzero((u > 0) & (u < _MOST))
    ordered = usable[np.argsort(u[usable], kind="stable")]
    octave = np.frexp(u[ordered])[1]
    groups = np.split(ordered, np.flatnonzero(np.diff(octave)) + 1)
    return [g[i : i + _ROWS] for g in groups for i in range(0, len(g), _ROWS)]


def _chunk(u: FloatArray, lambdas: IntArray, rate: float, log_weights: FloatArray) -> FloatArray:
    top = float(u.max())
    safe = _safe_terms(top, lambdas)  # terms k = 2 .. safe + 1
    k = np.arange(2, safe + 2)
    pairs: FloatArray = 0.5 * k * (k - 1.0)
    # Columns are scaled by e^{pairs * top}, so that neither factor leaves the range of float64.
    exponent = pairs * u[:, None]
    scaled = np.where(
        exponent < 1.0,
        np.expm1(np.minimum(exponent, 1.0)) * np.exp(-pairs * top),
        np.exp(exponent - pairs * top) - np.exp(-pairs * top),
    )
    with np.errstate(divide="ignore", under="ignore"):
        result = np.log(scaled @ np.exp(log_weights[:safe] + pairs[:, None] * top))
    first = safe + 2
    unsafe = int(np.searchsorted(lambdas, safe, side="right"))
    windowed = int(np.searchsorted(lambdas, first + _FIRST_WINDOW - 1))
    todo = np.full(result.shape, False)
    todo[:, unsafe:windowed] = True
    if windowed < len(lambdas):
        result[:, windowed:], done = _with_top_terms(u, lambdas[windowed:], rate, first, result[:, windowed:])
        todo[:, windowed:] = ~done
        result[:, windowed:], todo[:, windowed:] = _with_more_terms(
            u, lambdas[windowed:], rate, first, result[:, windowed:], todo[:, windowed:]
        )
    for column in np.flatnonzero(todo.any(axis=0)).tolist():
        rows = todo[:, column]
        result[rows, column] = _with_large_terms(u[rows], int(lambdas[column]), rate, first, result[rows, column])
    return result


def _with_top_terms(
    u: FloatArray, lambdas: IntArray, rate: float, first: int, low: FloatArray
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return ``low`` plus the highest terms of each order, [n, L], and where these are enough; elsewhere ``low``."""
    n = lambdas + 1
    ks = np.stack([np.full(len(n), first), *(n - i for i in range(_FIRST_WINDOW + 1))])
    log_weights = log_binomials(ks, n, rate)
    terms = [weight + u[:, None] * (0.5 * k * (k - 1.0)) for weight, k in zip(log_weights, ks, strict=True)]
    top = np.maximum.reduce(terms[1:-1])
    total = np.logaddexp(low, top + np.log(sum(np.exp(term - top) for term in terms[1:-1])))
    # As below, for one window and all orders: what lies between the first term and the highest ones.
    last = n - _FIRST_WINDOW
    room = np.minimum((first + 1.0) * (n - first), (last + 1.0) * (n - last))
    rest = np.maximum(terms[0], terms[-1]) + np.log(n + 1.0 - first - _FIRST_WINDOW)
    done = (u[:, None] >= (n + 1) / room) & (rest - total < _NEGLIGIBLE)
    # The logarithm of a binomial probability is concave in k: it is largest in size at an end.
    rounding = 4 * np.finfo(float).eps * np.maximum(np.abs(log_weights[0]), np.abs(log_weights[1]))
    return np.where(done, np.logaddexp(total, rest) + rounding, low), done


def _with_more_terms(
    u: FloatArray, lambdas: IntArray, rate: float, first: int, low: FloatArray, todo: NDArray[np.bool_]
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return ``low`` plus the ``_WINDOW`` highest terms where that is ``todo`` and enough, and what is left to do.

    Does for all orders at once what ``_with_large_terms`` does first for each, in the same operations.
    """
    result, todo = low.copy(), todo.copy()
    n = lambdas + 1
    columns = np.flatnonzero(todo.any(axis=0) & (n + 1 - first > _WINDOW))
    if not len(columns):
        return result, todo
    n = n[columns]
    # The first term, the one before the window, and those in it.
    k = np.concatenate([np.full((len(n), 1), first), n[:, None] + np.arange(-_WINDOW, 1)], axis=1)
    weights = log_binomials(k, n[:, None], rate)
    pairs = 0.5 * k * (k - 1.0)
    last = n - _WINDOW
    room = np.minimum((first + 1.0) * (n - first), (last + 1.0) * (n - last))
    # Concave in k, so largest in size at an end.
    rounding = 4 * np.finfo(float).eps * np.maximum(np.abs(weights[:, 0]), np.abs(weights[:, -1]))
    rows, at = np.nonzero(todo[:, columns])
    for some in np.array_split(np.arange(len(rows)), max(1, len(rows) * _WINDOW // _CELLS)):
        row, column = rows[some], at[some]
        v = u[row]
        before = low[row, columns[column]]
        total = np.logaddexp(before, _log_sum(weights[column, 2:] + v[:, None] * pairs[column, 2:]))
        ends = np.maximum(*(weights[column, end] + v * pairs[column, end] for end in (0, 1)))
        rest = ends + np.log(n[column] + 1 - first - _WINDOW)
        done = (v >= (n[column] + 1) / room[column]) & (rest - total < _NEGLIGIBLE)
        row, column, value = row[done], column[done], np.logaddexp(total, rest)[done]
        result[row, columns[column]] = value + rounding[column]
        todo[row, columns[column]] = False
    return result, todo


def _with_large_terms(u: FloatArray, order: int, rate: float, first: int, low: FloatArray) -> FloatArray:
    """Return ``low`` plus the terms k = first .. n = order+1, [n].

    Their e^x may exceed float64, and e^x - 1 is e^x there.
    """
    n = order + 1
    k = np.arange(first, n + 1)
    log_weight, pairs = log_binomial(k, n, rate), 0.5 * k * (k - 1.0)
    # Weights and exponents of thousands may cancel: what their rounding can lose is added.
    rounding = 4 * np.finfo(float).eps * float(np.abs(log_weight).max())
    return np.logaddexp(low, _log_sum(log_weight + u[:, None] * pairs)) + rounding


def _log_sum(terms: FloatArray) -> FloatArray:
    """Return log of the sum of e^terms along each row, [n]; terms are finite."""
    top = terms.max(axis=1)
    return top + np.log(np.exp(terms - top[:, None]).sum(axis=1))
