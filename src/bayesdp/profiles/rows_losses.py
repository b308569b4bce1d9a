"""The privacy loss of one step for a person with several rows, on the points of a grid, never too small.

Each of k rows is in the batch with probability q, independently, and moves the sum by at most one exposure e. The step
compares M = sum_j Bin(j; k, q) N(j e, 1) with Q = N(0, 1): rows that point in one direction, each at the clip bound.
No other rows of one person cost more (docs/theory.md, "Several rows of one person": Kahane's convexity inequality;
Ganesh 2024, "Tight group-level DP guarantees for DP-SGD with sampling via mixture of Gaussians mechanisms").
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtrc, ndtr, ndtri

from bayesdp.profiles.step_losses import Intervals, Losses, connect_the_dots, mass_between
from bayesdp.validation import FloatArray

_MOST_SHIFTS = 64  # numbers of drawn rows that are told apart
_LITTLE = 1e-5  # the probability of fewer drawn rows than the least number that is told apart
_ROUND_UP = 1e-11  # relative, of the binomial tails and the shifts
_TABLE = 4097  # outputs from which the inverse of the loss is interpolated before Newton's method refines it
_BLOCK = 1 << 20  # shifts times points that are computed at a time


@dataclass(frozen=True)
class RowsStep:
    """A step with a person's rows: the sum moves by ``shifts`` [J] (in units of the noise) with ``weights`` [J].

    Ascending; a first shift of 0 stands for no row drawn. ``dropped`` is the probability of still more rows, which
    counts as an infinite loss, so the weights sum to 1 - dropped.
    """

    shifts: FloatArray
    weights: FloatArray
    dropped: float

    @staticmethod
    def of(rate: float, exposure: float, rows: int, most_dropped: float) -> RowsStep:
        """Return a step that dominates that of ``rows`` rows, each drawn with probability ``rate``.

        Numbers of rows are rounded up to at most 64 different ones, their probabilities to the side of more rows:
        shifts that are larger with the same probability dominate. At most ``most_dropped`` is dropped.
        """
        if rate == 1:
            return RowsStep(np.array([rows * exposure * (1 + _ROUND_UP)]), np.ones(1), 0.0)
        most = _least_number(rows, rate, most_dropped)
        least = 0 if most < _MOST_SHIFTS else min(most, _least_number(rows, rate, 1 - _LITTLE))
        numbers = np.unique(np.linspace(least, most, min(_MOST_SHIFTS, most - least + 1)).round())
        tails = np.minimum(_tail(numbers, rows, rate) * (1 + _ROUND_UP), 1.0)
        tails[-1] = tails[-1] if most < rows else 0.0
        weights = np.maximum(-np.diff(tails, prepend=1.0), 0.0)
        return RowsStep(numbers * (exposure * (1 + _ROUND_UP)), weights, float(tails[-1]))

    def loss(self, output: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the loss log(M/Q) of each output x [P], and its slope: log sum_j w_j e^{s_j x - s_j^2/2}."""
        value, slope = np.empty_like(output), np.empty_like(output)
        block = max(1, _BLOCK // len(self.shifts))
        with np.errstate(divide="ignore", under="ignore"):
            logs = np.log(self.weights)[:, None]
        shifts, weights = self.shifts[:, None], self.weights[:, None]
        for first in range(0, len(output), block):
            here = slice(first, first + block)
            powers = shifts * output[here] - shifts**2 / 2
            with np.errstate(under="ignore", divide="ignore", invalid="ignore"):
                top = (powers + logs).max(axis=0)
                terms = np.exp(powers + logs - top)
                total = terms.sum(axis=0)
                # Near 0 the sum of small differences is exact where the logarithm of a sum near 1 is not.
                small = np.log1p((weights * np.expm1(np.minimum(powers, 1.0))).sum(axis=0) - self.dropped)
            value[here] = np.where(powers.max(axis=0) < 1.0, small, top + np.log(total))
            slope[here] = (terms * shifts).sum(axis=0) / total
        return value, slope

    def least_loss(self) -> float:
        """Return the loss below which no output comes: that of no row drawn, -infinity if some row always is."""
        return math.log(self.weights[0]) if self.shifts[0] == 0 and self.weights[0] > 0 else -math.inf

    def second_moment(self) -> float:
        """Return log E_Q[(M/Q)^2], about the variance of the loss where that is small."""
        exponents = np.minimum(np.multiply.outer(self.shifts, self.shifts), 300.0)
        return math.log1p(max(0.0, float(self.weights @ np.expm1(exponents) @ self.weights)))

    def span(self, truncation: float) -> tuple[float, float]:
        """Return the losses between which all outputs but a probability of ``truncation`` at each end lie."""
        far = -float(ndtri(truncation))
        low, high = self.loss(np.array([-far, float(self.shifts[-1]) + far]))[0].tolist()
        return low, high


def rows_losses(steps: list[RowsStep], interval: float, truncation: float) -> tuple[Losses, Losses]:
    """Return the losses of several rows of a person in B kinds of steps, on a grid: those in, and those out.

    Formal guarantee: as that of ``step_losses``, for the laws M and Q above; what a step dropped is part of ``lost``
    for the rows in, and makes the rows out no less.
    """
    parts = [_intervals(step, interval, truncation) for step in steps]
    points = [len(part.point) for part in parts]
    together = Intervals(
        interval,
        np.cumsum([0, *points[:-1]]),
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("point", "q", "m", "below_q", "above_q", "below_m", "above_m")
        ),
    )
    rows_in, rows_out = connect_the_dots(together)
    dropped = np.array([step.dropped for step in steps])
    lost = np.minimum(rows_in.lost + dropped, 1.0)
    return Losses(interval, rows_in.start, rows_in.point, rows_in.mass, lost), rows_out


def _intervals(step: RowsStep, interval: float, truncation: float) -> Intervals:
    low, high = step.span(truncation)
    point = np.arange(math.floor(low / interval), math.ceil(high / interval) + 1)
    output = _outputs(step, np.float64(interval) * point, truncation)
    q, m = mass_between(output), np.zeros(len(point))
    for shift, weight in zip(step.shifts.tolist(), step.weights.tolist(), strict=True):
        m += weight * mass_between(output - shift)
    first, last = output[:1], output[-1:]
    below = np.array([step.weights @ ndtr(first - step.shifts)])
    above = np.array([step.weights @ ndtr(step.shifts - last)])
    return Intervals(interval, np.zeros(1, np.int64), point, q, m, ndtr(first), ndtr(-last), below, above)


def _outputs(step: RowsStep, losses: FloatArray, truncation: float) -> FloatArray:
    """Return the output that has each of the ascending ``losses`` [P]; -infinity for losses below the least.

    Interpolated in a table, then by Newton's method kept between neighbours of the table. An error of size h in an
    output changes delta by h^2 only, since the masses of the intervals are those between the outputs returned.
    """
    far = -float(ndtri(truncation))
    ends = [-far, float(step.shifts[-1]) + far]
    reached = losses > step.least_loss()
    asked = losses[reached]
    for end, sign in ((0, -1.0), (1, 1.0)):
        for doubling in range(200):
            there = float(step.loss(np.array([ends[end]]))[0][0])
            if (there <= asked[0]) if end == 0 else (there >= asked[-1]):
                break
            ends[end] += sign * 2.0**doubling * 1e-3
    table: FloatArray = np.linspace(ends[0], ends[1], _TABLE)
    values = np.maximum.accumulate(step.loss(table)[0])
    place = np.clip(np.searchsorted(values, asked), 1, _TABLE - 1)
    low: FloatArray = table[place - 1]
    high: FloatArray = table[place]
    output: FloatArray = np.clip(np.interp(asked, values, table), low, high)
    for _ in range(60):
        value, slope = step.loss(output)
        excess = value - asked
        if not (np.abs(excess) > 1e-13 * (1 + np.abs(asked))).any():
            break
        low, high = np.where(excess > 0, low, output), np.where(excess > 0, output, high)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            guess = output - excess / slope
        following = np.where((guess > low) & (guess < high), guess, (low + high) / 2)
        if (following == output).all():
            break
        output = following
    result = np.full(len(losses), -np.inf)
    result[reached] = np.maximum.accumulate(output)
    return result


def _tail(number: FloatArray | float, rows: int, rate: float) -> FloatArray:
    """Return the probability that more than ``number`` of the rows are drawn."""
    return np.where(np.asarray(number) >= rows, 0.0, bdtrc(number, rows, rate))


def _least_number(rows: int, rate: float, tail: float) -> int:
    """Return the least number of rows that is exceeded with probability at most ``tail``."""
    low, high = -1, rows
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _tail(middle, rows, rate) <= tail else (middle, high)
    return high
