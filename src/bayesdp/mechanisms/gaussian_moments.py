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
_TOP_TERMS = (4, 32)
_NEGLIGIBLE = -33.0  # e^-33 < 1e-14
_ROWS = 512


def log_excess_moment(u: FloatArray, lambdas: IntArray, sample_rate: float) -> FloatArray:
    """The sum above, [n, L], for u = e^2 >= 0; -inf at u = 0, inf at u = inf. Needs 0 < sample_rate < 1."""
    result = np.empty((len(u), len(lambdas)))
    result[u == 0] = -np.inf
    result[np.isinf(u)] = np.inf
    orders, inverse = np.unique(lambdas, return_inverse=True)
    for rows in _chunks_of_one_octave(u):
        result[rows] = _chunk(u[rows], orders, sample_rate)[:, inverse]
    return result


def _chunks_of_one_octave(u: FloatArray) -> list[IntArray]:
    """Indices of finite positive u, in groups within a factor 2 and of bounded size."""
    usable = np.flatnonzero((u > 0) & np.isfinite(u))
    ordered = usable[np.argsort(u[usable], kind="stable")]
    octave = np.frexp(u[ordered])[1]
    groups = np.split(ordered, np.flatnonzero(np.diff(octave)) + 1)
    return [g[i : i + _ROWS] for g in groups for i in range(0, len(g), _ROWS)]


def _chunk(u: FloatArray, orders: IntArray, rate: float) -> FloatArray:
    top = float(u.max())
    k = np.arange(2, int(orders[-1]) + 2)
    pairs: FloatArray = 0.5 * k * (k - 1.0)
    safe = int(np.searchsorted(pairs * top, _SAFE, side="right"))  # terms k = 2 .. safe + 1
    # Columns are scaled by e^{pairs * top}, so that neither factor leaves the range of float64.
    exponent = pairs[:safe] * u[:, None]
    scaled = np.where(
        exponent < 1.0,
        np.expm1(np.minimum(exponent, 1.0)) * np.exp(-pairs[:safe] * top),
        np.exp(exponent - pairs[:safe] * top) - np.exp(-pairs[:safe] * top),
    )
    weights = np.stack([log_binomial(k[:safe], n, rate) for n in (orders + 1).tolist()], axis=1)
    with np.errstate(divide="ignore", under="ignore"):
        result = np.log(scaled @ np.exp(weights + pairs[:safe, None] * top))
    for column, order in enumerate(orders.tolist()):
        if order > safe:
            result[:, column] = _with_large_terms(u, order, rate, safe + 2, result[:, column])
    return result


def _with_large_terms(u: FloatArray, order: int, rate: float, first: int, low: FloatArray) -> FloatArray:
    """low + the terms k = first .. n = order+1, whose exponents may exceed float64 (e^x - 1 is e^x there)."""
    n = order + 1
    k = np.arange(first, n + 1)
    log_weight, pairs = log_binomial(k, n, rate), 0.5 * k * (k - 1.0)
    # Weights and exponents of thousands may cancel: what their rounding can lose is added.
    rounding = 4 * np.finfo(float).eps * float(np.abs(log_weight).max())
    result = np.full(len(u), np.nan)
    todo = np.arange(len(u))
    for window in (*_TOP_TERMS, len(k)):
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
