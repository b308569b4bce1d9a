"""log sum_{k>=2} Bin(k; lambda+1, q) (e^{k(k-1)u/2} - 1) for many u and lambda, fast and without overflow.

Exponents below ``_SAFE`` go through one matrix product for all lambdas at once. Above it, sums of a few
terms at the top end (in log space) nearly always say everything; what they leave out is bounded through
convexity in k, added, and where the bound is not negligible the whole sum is taken in log space.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bayesdp.mechanisms.binomial import log_binomial
from bayesdp.validation import FloatArray

IntArray = NDArray[np.int_]

_SAFE = 600.0  # e^600 and its inverse are well inside float64
_FIRST_WINDOW, _WINDOWS = 4, (32,)
_NEGLIGIBLE = -33.0  # e^-33 < 1e-14
_ROWS = 512


def log_excess_moment(u: FloatArray, lambdas: IntArray, sample_rate: float) -> FloatArray:
    """The sum above, [n, L], for u = e^2 >= 0; -inf at u = 0, inf at u = inf. Needs 0 < sample_rate < 1."""
    result = np.empty((len(u), len(lambdas)))
    result[u == 0] = -np.inf
    result[np.isinf(u)] = np.inf
    orders, inverse = np.unique(lambdas, return_inverse=True)
    chunks = _chunks_of_one_octave(u)
    if not chunks:
        return result
    k = np.arange(2, _safe_terms(float(u[chunks[0]].max()), orders) + 2)
    log_weights = np.stack([log_binomial(k, n, sample_rate) for n in (orders + 1).tolist()], axis=1)
    for rows in chunks:
        result[rows] = _chunk(u[rows], orders, sample_rate, log_weights)[:, inverse]
    return result


def _safe_terms(u: float, orders: IntArray) -> int:
    """How many of the terms k = 2, 3, ... have exponents that are safe at u."""
    k = np.arange(2, int(orders[-1]) + 2)
    return int(np.searchsorted(0.5 * k * (k - 1.0) * u, _SAFE, side="right"))


def _chunks_of_one_octave(u: FloatArray) -> list[IntArray]:
    """Indices of finite positive u, in groups within a factor 2 and of bounded size."""
    usable = np.flatnonzero((u > 0) & np.isfinite(u))
    ordered = usable[np.argsort(u[usable], kind="stable")]
    octave = np.frexp(u[ordered])[1]
    groups = np.split(ordered, np.flatnonzero(np.diff(octave)) + 1)
    return [g[i : i + _ROWS] for g in groups for i in range(0, len(g), _ROWS)]


def _chunk(u: FloatArray, orders: IntArray, rate: float, log_weights: FloatArray) -> FloatArray:
    top = float(u.max())
    safe = _safe_terms(top, orders)  # terms k = 2 .. safe + 1
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
    some = int(np.searchsorted(orders, safe, side="right"))
    many = int(np.searchsorted(orders, first + _FIRST_WINDOW - 1))
    todo = np.full(result.shape, False)
    todo[:, some:many] = True
    if many < len(orders):
        result[:, many:], done = _with_top_terms(u, orders[many:], rate, first, result[:, many:])
        todo[:, many:] = ~done
    for column in np.flatnonzero(todo.any(axis=0)).tolist():
        rows = todo[:, column]
        result[rows, column] = _with_large_terms(u[rows], int(orders[column]), rate, first, result[rows, column])
    return result


def _with_top_terms(
    u: FloatArray, orders: IntArray, rate: float, first: int, low: FloatArray
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """low + the highest terms of each order, [n, L], and where they say everything; elsewhere low is returned."""
    n = orders + 1
    ks = np.stack([np.full(len(n), first), *(n - i for i in range(_FIRST_WINDOW + 1))])
    log_weights = np.stack([log_binomial(k, trials, rate) for k, trials in zip(ks.T, n.tolist(), strict=True)], axis=1)
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


def _with_large_terms(u: FloatArray, order: int, rate: float, first: int, low: FloatArray) -> FloatArray:
    """low + the terms k = first .. n = order+1, whose exponents may exceed float64 (e^x - 1 is e^x there)."""
    n = order + 1
    k = np.arange(first, n + 1)
    log_weight, pairs = log_binomial(k, n, rate), 0.5 * k * (k - 1.0)
    # Weights and exponents of thousands may cancel: what their rounding can lose is added.
    rounding = 4 * np.finfo(float).eps * float(np.abs(log_weight).max())
    result = np.full(len(u), np.nan)
    todo = np.arange(len(u))
    for window in (*_WINDOWS, len(k)):
        if window > len(k) or not len(todo):
            continue
        v = u[todo]
        total = np.logaddexp(low[todo], _log_sum(log_weight[-window:] + v[:, None] * pairs[-window:]))
        if window < len(k):
            # Log terms are convex in k between the ends first and last if u is at least this at both ends.
            last = n - window
            room = min((first + 1.0) * (n - first), (last + 1.0) * (n - last))
            ends = np.maximum(log_weight[0] + v * pairs[0], log_weight[-window - 1] + v * pairs[-window - 1])
            rest = ends + np.log(len(k) - window)
            done = (v >= (n + 1) / room) & (rest - total < _NEGLIGIBLE)
            total = np.logaddexp(total, rest)
        else:
            done = np.full(len(v), True)
        result[todo[done]] = total[done]
        todo = todo[~done]
    return result + rounding


def _log_sum(terms: FloatArray) -> FloatArray:
    """log of the sum of e^terms along each row, [n]; finite terms."""
    top = terms.max(axis=1)
    return top + np.log(np.exp(terms - top[:, None]).sum(axis=1))
