"""The cost of a step for all orders at once, without an exponential per sample and order.

The work of a step is to count the samples onto a grid in u = e^2 and to take a matrix product over the grid.
Exponentials are taken once per table, and for a handful of the largest samples.

Why the result is never below exact: F(u) = e^{T kappa(u)} - 1 is convex and increasing and 0 at 0, so its chord
between two nodes lies above it: a sample between nodes counts as a fraction of a sample at each, and the mean of F can
only grow; likewise that of F^2. kappa is convex too, and the largest samples, which alone matter where T kappa is
large, take its chord instead. The estimate is U = M + a S, S^2 = Q - M^2, from M and Q that are both too large if
anything: dU/dM = 1 - a M / S >= 0 as long as S >= a M, and there U is too large as well. Elsewhere S may fall short by
at most rms(chord - F), which is then added: convexity bounds the gap of a cell by w (1-w) h (slope of the next cell -
slope of the previous cell). Whether samples are nearly equal is not judged by chords, which may be far steeper than F:
their relative spread is that of u times the least slope of log F nearby.
"""

from __future__ import annotations

import numpy as np

from bayesdp.estimators.estimator import MINIMUM_SAMPLES
from bayesdp.estimators.student_t import StudentT, standard_errors
from bayesdp.logspace import log1p_exp, log_expm1
from bayesdp.paper.holder_sums import PlacedSamples
from bayesdp.paper.nodes import Nodes
from bayesdp.validation import FloatArray, refuse

_SMALLEST = 1e-290  # squared exposures below it count as this
_ALIKE = 2.0**-11  # relative range of squared exposures within which log F is a straight line
_ROUND_UP = 1.0 + 1e-12


class ExcessTable:
    """The costs of steps of the subsampled Gaussian under Hölder with T = ``total_steps``, for all ``lambdas`` [L].

    Formal guarantee: ``cost`` is never below what ``estimator`` gives from every sample at every order (up to relative
    rounding of about 1e-15 at the ceiling), nor above the ceiling. Typically it is within 1e-5 of it. What one call
    computes is kept for the next; memory stays bounded.
    """

    def __init__(self, sample_rate: float, lambdas: FloatArray, total_steps: int) -> None:
        self._total_steps = total_steps
        self._nodes = Nodes(sample_rate, lambdas, total_steps)
        self._unbounded = np.full(len(lambdas), np.inf)

    def cost(self, exposure: FloatArray, bound: float | None, estimator: StudentT) -> tuple[FloatArray, FloatArray]:
        """Return the cost of a step, (1/T) log of the estimate of E e^{T kappa}, [L], and its ceiling, [L].

        ``exposure`` [m]: those of the samples, each at most ``bound``, and below 1e100. The ceiling is the cost at the
        bound, infinite without one. Raises InvalidInputError for fewer than 3 samples, and for nearly equal ones
        without a bound.
        """
        m = len(exposure)
        if m < MINIMUM_SAMPLES:
            raise refuse("samples", m, f"at least {MINIMUM_SAMPLES}")
        ordered = np.sort(exposure)
        ceiling, cap = self._unbounded, None
        if bound is not None:
            ceiling, cap = self._nodes.at_bound(bound)
            ordered = ordered[: ordered.searchsorted(bound)]
            if not len(ordered) or bound * bound < _SMALLEST:
                return ceiling, ceiling
        u = np.maximum(ordered * ordered, _SMALLEST)
        with np.errstate(over="ignore", invalid="ignore"):
            log_upper = self._log_upper(u, bound, cap, m, estimator)
        return np.minimum(log1p_exp(log_upper) * (_ROUND_UP / self._total_steps), ceiling), ceiling

    def _log_upper(
        self, u: FloatArray, bound: float | None, cap: FloatArray | None, m: int, estimator: StudentT
    ) -> FloatArray:
        """Return log U, [L], from the samples u below the bound, in ascending order, out of m samples in all.

        The m - len(u) others are at the bound, where log F is ``cap`` [L].
        """
        at_bound = m - len(u)
        table = self._nodes.up_to(float(u[-1]), None if bound is None else bound * bound)
        samples = PlacedSamples(table, u)
        scale = cap if at_bound and cap is not None else log_expm1(samples.highest_exponent())
        first, second = samples.one_by_one(scale)
        rest = samples.on_grid(scale)
        mean = (first + rest.first + at_bound) / m
        square = (second + rest.second + at_bound) / m
        variance, rounding = square - mean * mean, 4e-15 * square  # one pass loses a few ulp
        deviation = np.sqrt(np.maximum(variance + rounding, 0.0))
        factor = standard_errors(estimator.gamma, m)
        short = (deviation < factor * mean).any()
        if short:
            gaps = np.sqrt(samples.squared_gaps(scale, rest.first) / m)
            deviation = np.where(rest.crude, np.sqrt(square), deviation + gaps)
        highest = bound * bound if at_bound and bound is not None else u[-1]
        if highest - u[0] <= _ALIKE * u[0]:
            every = np.concatenate([u, np.full(at_bound, highest)])
            rounding_of_u = 4 * np.finfo(float).eps * highest
            spread = samples.least_log_slope() * max(every.std() - rounding_of_u, 0.0)
        elif short:
            spread = np.where(rest.crude, 1.0, np.sqrt(np.maximum(variance - rounding, 0.0)) / mean)
        else:
            return np.log(mean + factor * deviation) + scale  # spread at least factor: far from nearly equal
        with np.errstate(divide="ignore"):
            return estimator.combine(np.log(mean) + scale, np.log(deviation) + scale, spread, m, cap)
