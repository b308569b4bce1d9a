"""Arithmetic on logarithms of moments, without overflow and without cancellation."""

from __future__ import annotations

import numpy as np

from bayesdp.validation import FloatArray


def log_expm1(x: FloatArray) -> FloatArray:
    """Return log(e^x - 1) elementwise for x >= 0: -inf at 0, about log x for tiny x, about x for large x.

    Neither overflows nor cancels: tiny x keep all their digits.
    """
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        small = np.log(np.expm1(np.minimum(x, 40.0)))
        return np.where(x > 37.0, x + np.log1p(-np.exp(-x)), small)


def log1p_exp(x: FloatArray) -> FloatArray:
    """Return log(1 + e^x) elementwise, to full relative precision even where e^x is tiny; the inverse of log_expm1."""
    return np.logaddexp(0.0, x)


def expm1_minus(x: FloatArray) -> FloatArray:
    """Return e^x - 1 - x >= 0 elementwise for real x, by its series near 0, where the plain form would cancel."""
    with np.errstate(over="ignore"):
        return np.where(np.abs(x) < 0.5, _series_expm1_minus(x), np.expm1(x) - x)


def minus_log1p(x: FloatArray) -> FloatArray:
    """Return x - log(1 + x) >= 0 elementwise for x > -1, by its series near 0, where the plain form would cancel.

    Infinite at -1, NaN below it.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.abs(x) < 0.25, _series_minus_log1p(x), x - np.log1p(x))


def _series_expm1_minus(x: FloatArray) -> FloatArray:
    x = np.clip(x, -0.5, 0.5)
    total = np.zeros_like(x)
    for k in range(18, 1, -1):  # x^2/2! (1 + x/3 (1 + x/4 (...)))
        total = (1.0 + total) * x / k
    return total * x


def _series_minus_log1p(x: FloatArray) -> FloatArray:
    x = np.clip(x, -0.25, 0.25)
    total = np.zeros_like(x)
    for k in range(28, 1, -1):  # x^2/2 - x^3/3 + x^4/4 - ...
        total = 1.0 / k - x * total
    return total * x * x
