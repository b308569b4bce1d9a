"""The exact profile of a Gaussian release: delta(epsilon) for exposure mu, equal in both directions.

Balle & Wang 2018, "Improving the Gaussian mechanism for differential privacy", Theorem 8. Steps without sampling are
together one release whose squared exposure is the sum of theirs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import log_ndtr

from bayesdp import validation
from bayesdp.profiles.conversion import LEAST_DELTA
from bayesdp.validation import FloatArray, refuse

_ROUND_UP = 2.0**-48  # relative to the larger of the two terms that delta is the difference of
_MOST = 1e6
_NEWTON_STEPS, _NEAR = 7, 2.0**-44  # how far from a root it ends, relative: more only costs time


def gaussian_delta(mu: Any, epsilon: Any) -> FloatArray:
    """Return delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu); arrays broadcast.

    ``mu``: distance over noise, at least 0; 0 gives delta 0, infinity gives 1. Never below the exact value: rounding is
    bounded relative to the larger of the two terms and added, which shows only where they nearly cancel, at tiny mu,
    and what underflows becomes 1e-300. Raises InvalidInputError for a negative or NaN mu, for an epsilon that is
    negative or not finite, and for shapes that do not broadcast.
    """
    exposure = validation.non_negative_array("mu", mu, finite=False)
    at = validation.non_negative_array("epsilon", epsilon)
    try:
        np.broadcast_shapes(exposure.shape, at.shape)
    except ValueError:
        raise refuse("epsilon.shape", at.shape, f"one that broadcasts with mu of shape {exposure.shape}") from None
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return _delta(exposure, at)


def gaussian_epsilon(mu: Any, delta: float) -> Any:
    """Return the least epsilon with ``gaussian_delta(mu, epsilon)`` <= delta: a float for one mu, an array for many.

    By Newton's method and then bisection, which ends on the private side: never below the exact epsilon. Infinite for
    mu above 1e6. Raises InvalidInputError for a negative or NaN mu, and unless delta is strictly between 0 and 1.
    """
    delta = validation.probability("delta", delta)
    exposures = validation.non_negative_array("mu", mu, finite=False)
    reachable = exposures <= _MOST
    finite: FloatArray = np.where(reachable, exposures, 0.0).ravel()
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # Pr[L > epsilon] <= delta at the upper end, by the tail bound of the normal law.
        high: FloatArray = np.square(finite) / 2 + finite * np.sqrt(-2 * np.log(delta)) + 1e-9
        high[_delta(finite, np.zeros(())) <= delta] = 0.0
        low: FloatArray = np.zeros_like(high)
        near = _newton(finite, high, delta)
        _narrow(finite, low, high, near * (1 + _NEAR), delta)
        _narrow(finite, low, high, near * (1 - _NEAR), delta)
        for _ in range(64):
            if not _narrow(finite, low, high, (low + high) / 2, delta):
                break
    result = np.where(reachable, high.reshape(exposures.shape), np.inf)
    return float(result) if result.ndim == 0 else result


def _newton(exposure: FloatArray, start: FloatArray, delta: float) -> FloatArray:
    """Return about the roots of log delta(epsilon) = log delta, from above, where it is concave; anything elsewhere."""
    at, log_target = start, np.log(delta)
    for _ in range(_NEWTON_STEPS):
        ratio, half = at / exposure, exposure / 2
        larger, smaller = log_ndtr(half - ratio), at + log_ndtr(-half - ratio)
        log_delta = larger + np.log(-np.expm1(smaller - larger))
        at = at + (log_delta - log_target) * np.exp(log_delta - smaller)  # the slope of delta is minus the second term
    return at


def _narrow(exposure: FloatArray, low: FloatArray, high: FloatArray, at: FloatArray, delta: float) -> bool:
    """Move an end of each search to ``at`` if that lies between its ends; False if none does. High stays private."""
    inside = np.flatnonzero((low < at) & (at < high))
    private = _delta(exposure[inside], at[inside]) <= delta
    high[inside[private]] = at[inside[private]]
    low[inside[~private]] = at[inside[~private]]
    return len(inside) > 0


def _delta(exposure: FloatArray, at: FloatArray) -> FloatArray:
    """Return ``gaussian_delta`` of checked arguments; division by 0 and overflow are expected."""
    ratio, half = at / exposure, exposure / 2
    larger = log_ndtr(half - ratio)
    smaller = at + log_ndtr(-half - ratio)
    # A logarithm is off in proportion to its own size; near -700 its exponential is nothing anyway.
    error = _ROUND_UP * (1 + np.abs(larger) + at)
    delta = np.exp(larger) * (np.minimum(-np.expm1(smaller - larger), 1.0) + error)
    # delta is at most its first term; where the logarithm of that is -inf, the difference above is NaN.
    delta = np.where(larger == -np.inf, LEAST_DELTA, delta)
    delta = np.where(np.isnan(delta) | (exposure == np.inf), 1.0, delta)
    return np.where(exposure == 0, 0.0, np.minimum(np.maximum(delta, LEAST_DELTA), 1.0))
