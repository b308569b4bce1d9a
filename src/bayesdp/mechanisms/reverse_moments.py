"""The reverse log-moment of the subsampled Gaussian, by quadrature: what a step costs a record that was left out.

With m(x) = 1 - q + q e^{e x - e^2/2} the likelihood ratio of the outputs with the record to those without,

    reverse(e, lambda) = log E[m(x)^-lambda],   x ~ N(0, 1).

The forward moment is never below it (``SubsampledGaussian``), but for q < 1 it can be many times as large: an output
shows much more surely that somebody was there than that somebody was not. In fact the reverse moment is bounded however
large the exposure is, since m is at least 1 - q.
"""

from __future__ import annotations

import math

import numpy as np

from bayesdp.validation import FloatArray

_TAIL = 9.5  # standard deviations beyond which a Gaussian has less than 1e-20 of its mass
_STEP, _STEP_BY_EXPOSURE = 0.4, 0.15  # the trapezoidal rule is then accurate to 1e-13, see the tests
_LARGEST = 15.0  # exposures beyond this cost as much as infinite ones, up to 1e-13
_SAFE = 600.0  # e^600 is well inside float64
_CELLS = 1 << 20  # numbers that are computed together
_SMALL = 1e-4  # below it, a series replaces a difference that would cancel; either is then accurate to 3e-12
_ROUND_UP = 1 + 2.0**-36


def reverse_log_moments(exposures: FloatArray, lambdas: FloatArray, sample_rate: float) -> FloatArray:
    """Return log E[m^-lambda] for n exposures and L orders, [n, L]; any real orders above 0, 0 < sample_rate < 1.

    Never below the exact value, and within 1e-9 relative of it. 0 for an exposure of 0; increasing in all arguments.
    """
    result = np.zeros((len(exposures), len(lambdas)))
    most = -lambdas * math.log1p(-sample_rate)  # m >= 1 - q
    result[exposures > _LARGEST] = most
    usable = np.flatnonzero((exposures > 0) & (exposures <= _LARGEST))
    ordered = usable[np.argsort(exposures[usable], kind="stable")]
    octaves = np.split(ordered, np.flatnonzero(np.diff(np.frexp(exposures[ordered])[1])) + 1)
    for octave in octaves:
        for number, order in enumerate(lambdas.tolist()):
            if len(octave):
                result[octave, number] = np.minimum(_of_one_order(exposures[octave], order, sample_rate), most[number])
    return result * _ROUND_UP


def _of_one_order(exposures: FloatArray, order: float, rate: float) -> FloatArray:
    """Return log E[m^-lambda] of exposures within a factor 2, ascending, [n]."""
    largest = float(exposures[-1])
    height = -order * math.log1p(-rate)  # the logarithm of m^-lambda is at most this
    low = -_TAIL - min(order * largest, math.sqrt(2 * height))
    high = 2 * largest + _TAIL
    step = min(_STEP / math.sqrt(1 + order * largest**2 / 4), _STEP_BY_EXPOSURE / largest)
    x = np.linspace(low, high, math.ceil((high - low) / step) + 1)
    log_density = np.log((x[1] - x[0]) / math.sqrt(2 * math.pi)) - x * x / 2
    means = [
        _excess(part, x, log_density, order, rate, height)
        for part in np.array_split(exposures, max(1, len(exposures) * len(x) // _CELLS))
    ]
    return np.concatenate(means)


def _excess(
    exposures: FloatArray, x: FloatArray, log_density: FloatArray, order: float, rate: float, height: float
) -> FloatArray:
    u: FloatArray = rate * np.expm1(exposures[:, None] * x - (exposures * exposures / 2)[:, None])  # m - 1
    logs = -order * np.log1p(u)
    if height > _SAFE:  # large moments: nothing cancels
        logs = logs + log_density
        top = logs.max(axis=1)
        return top + np.log(np.exp(logs - top[:, None]).sum(axis=1))
    # E[m] = 1, so E[m^-lambda] = 1 + E[m^-lambda - 1 + lambda (m - 1)], in which nothing is negative.
    curved = np.expm1(logs) + order * u
    near = np.abs(max(order, 1.0) * u) < _SMALL  # u must be small itself, and not only beside a small order
    v = u[near]
    curved[near] = order * (order + 1) / 2 * v * v * (1 - (order + 2) / 3 * v * (1 - (order + 3) / 4 * v))
    return np.log1p(curved @ np.exp(log_density))
