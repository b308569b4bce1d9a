"""Many steps together: upper bounds of delta(epsilon) of records, as sums over a few low frequencies.

The loss of a record is the sum of the losses of its steps, so its characteristic function F_k is a product: add up
n log F_k over the kinds of steps, each taken n times. For many steps F_k is practically 0 beyond a few dozen
frequencies, and

    delta(epsilon) = sum over points x_j > epsilon of p_j (1 - e^{epsilon - x_j}),   p_j = 1/N sum_k F_k zeta_k^j,

is a geometric series in j, zeta_k = e^{2 pi i k / N}: no distribution is ever computed. All errors are added to delta,
record by record:

- *window*: the N points wrap around. Losses above the window may count as nothing: their probability is bounded by
  Chernoff, from the moments of the discretised losses themselves. Losses below it count too much, which is safe.
- *frequencies* that are left out: |F_k| is at most the product of each kind's largest value beyond the last one kept.
- *truncation*: mass that the steps moved to infinity.
- *round-off*: a bound on the error of each transform, times the number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from bayesdp.profiles.step_losses import IntArray, Losses
from bayesdp.validation import FloatArray

MOST_POINTS = 1 << 20
_MOST_TERMS = 1 << 23  # frequencies times kinds or records that are kept
_USUAL_FREQUENCIES = 512  # these are enough for most runs
_FIRST_POINTS = 64  # points of the first, common part of the search for epsilon
_MULTIPLES = np.array([0.5, 1.0, 2.0, 4.0])  # of the best order: where moments are taken to place the window
_BLOCK = 1 << 22  # points that are transformed at a time
_ROUND_OFF = 2.0**-50  # of one transformed step: its masses, the transform, the logarithm and the phase
_SMALLEST = 1e-30  # stands for a zero of a characteristic function

ComplexArray = NDArray[np.complex128]


class ComposedLosses:
    """The profiles of n records in one direction, for records that took ``counts`` [n, B] steps of each kind.

    Formal guarantee: ``deltas`` and ``epsilons`` are never below those of the composed ``losses``; ``error`` [n] is how
    much was added to delta for it. Each source of error is kept near ``allowed`` where that is possible; where it is
    not, ``error`` is larger and the result coarser or infinite, but still an upper bound.

    ``order`` is about the best order lambda for these records; moments around it place the window.
    """

    def __init__(self, losses: Losses, counts: FloatArray, order: float, allowed: float) -> None:
        self._interval = losses.interval
        lambdas = order * _MULTIPLES
        above, below = (counts @ np.minimum(m, 1e300) for m in losses.log_moments(float(lambdas[0]), len(lambdas)))
        self._end, self._length = _window(above, below, lambdas, allowed, losses.interval)
        frequencies = np.arange(1, self._length // 2 + 1)
        angles = 2j * np.pi / self._length * frequencies
        ordinary, tilted = -1 / np.expm1(angles), -1 / np.expm1(angles - losses.interval)
        # Frequencies -k have conjugate values: take twice the real part, except where a frequency is its own mirror.
        twice = np.where(2 * frequencies == self._length, 1.0, 2.0) / self._length
        coefficients = 2 * twice * (np.abs(ordinary) + np.abs(tilted))
        logs, left_out = _characteristic(losses, counts, self._length, coefficients, allowed)
        kept = slice(0, logs.shape[1])
        self._frequencies = frequencies[kept]
        with np.errstate(under="ignore"):
            terms = twice[kept] * np.exp(counts @ logs.real + 1j * (counts @ logs.imag))
        last = self._powers(np.array([self._end]))[:, 0]
        self._terms = terms * (ordinary - tilted)[kept]
        self._ordinary = (terms @ (last * ordinary[kept])).real
        self._tilted = (terms @ (last * tilted[kept])).real
        with np.errstate(over="ignore", under="ignore"):
            beyond = np.exp(np.min(above - lambdas * (self._end * self._interval), axis=1))
        lost = -np.expm1(counts @ np.log1p(-losses.lost))
        rounding = _ROUND_OFF * (1 + coefficients[kept].sum()) * (1 + counts.sum(axis=1))
        self.error: FloatArray = np.minimum(beyond + lost + left_out + rounding, 1.0)

    def deltas(self, epsilons: FloatArray) -> FloatArray:
        """Return upper bounds of delta at ``epsilons`` [G], [n, G]; between grid points, by a chord in e^epsilon."""
        low = np.minimum(np.floor(epsilons / self._interval), self._end - 1).astype(np.int64)
        part = np.expm1(np.minimum(epsilons - low * self._interval, self._interval)) / math.expm1(self._interval)
        both = np.concatenate([low, low + 1])
        at_low, at_high = np.split(self._delta(self._sums(both), both), 2, axis=1)
        return at_low + part * (at_high - at_low)

    def epsilons(self, delta: float) -> FloatArray:
        """Return upper bounds of the least epsilon with delta(epsilon) <= delta, [n]; infinite where ``error`` > delta.

        Looks for the last point of the grid whose delta is too large: at all points if most frequencies were kept, as
        for a few steps, otherwise by a search.
        """
        many = 8 * len(self._frequencies) > self._length
        low, at_low, at_high = self._last_of_all(delta) if many else self._last_by_search(delta)
        # Between two points delta is linear in e^epsilon.
        with np.errstate(divide="ignore", invalid="ignore"):
            part = np.clip((at_low - delta) / (at_low - at_high), 0.0, 1.0)
        epsilon = low * self._interval + np.log1p(part * math.expm1(self._interval))
        epsilon = np.where(at_low > delta, epsilon * (1 + 2.0**-48), 0.0)
        return np.where(np.minimum(at_low, at_high) <= delta, epsilon, np.inf)

    def _last_by_search(self, delta: float) -> tuple[IntArray, FloatArray, FloatArray]:
        """Return the last point whose delta is too large, delta there and at the next point, [n] each.

        A few points common to all records are tried, then bit by bit for each record.
        """
        parts = max(1, min(_FIRST_POINTS, _BLOCK // len(self._frequencies)))
        width = -(-self._end // parts)
        points = np.minimum(np.arange(parts + 1) * width, self._end)
        powers = self._powers(points)
        at = self._delta(self._terms.real @ powers.real - self._terms.imag @ powers.imag, points)
        at[:, -1] = self.error  # at the end of the window nothing else is left
        above = at[:, :-1] > delta
        place = np.where(above.any(axis=1), parts - 1 - np.argmax(above[:, ::-1], axis=1), 0)
        records = np.arange(len(place))
        low, at_low, at_high = points[place], at[records, place], at[records, place + 1]
        turned = self._terms * powers.T[place]
        for bit in reversed(range((width - 1).bit_length())):
            turn = self._powers(np.array([1 << bit]))[:, 0]
            point = low + (1 << bit)
            inside = point < points[place + 1]
            here = np.where(inside, self._delta((turned @ turn).real, np.minimum(point, self._end)), 0.0)
            too_large = here > delta
            at_high = np.where(inside & ~too_large, here, at_high)
            at_low = np.where(too_large, here, at_low)
            low = np.where(too_large, point, low)
            turned *= np.where(too_large[:, None], turn, 1.0)
        return low, at_low, at_high

    def _last_of_all(self, delta: float) -> tuple[IntArray, FloatArray, FloatArray]:
        """Do the work of ``_last_by_search`` from the deltas at all points, by transforms."""
        points = np.arange(self._end + 1)
        low = np.zeros(len(self.error), np.int64)
        at_low, at_high = np.empty(len(low)), np.empty(len(low))
        for here, sums in self._transformed():
            at = self._delta(sums[:, points % self._length], points, here)
            at[:, -1] = self.error[here]  # at the end of the window nothing else is left
            above = at[:, :-1] > delta
            low[here] = np.where(above.any(axis=1), self._end - 1 - np.argmax(above[:, ::-1], axis=1), 0)
            records = np.arange(len(at))
            at_low[here], at_high[here] = at[records, low[here]], at[records, low[here] + 1]
        return low, at_low, at_high

    def _sums(self, points: IntArray) -> FloatArray:
        """Return sums over the frequencies at ``points`` [J], [n, J]: point by point, or by a transform if many."""
        if len(points) * len(self._frequencies) <= 16 * self._length:
            powers = self._powers(points)
            return self._terms.real @ powers.real - self._terms.imag @ powers.imag
        sums = np.empty((len(self.error), len(points)))
        for here, everywhere in self._transformed():
            sums[here] = everywhere[:, points % self._length]
        return sums

    def _transformed(self) -> Iterator[tuple[slice, FloatArray]]:
        """Yield the sums over the frequencies at all points of the window, for some records at a time."""
        rows = max(1, _BLOCK // self._length)
        # irfft counts every frequency twice except one that is its own mirror, as the terms do.
        scale = np.where(2 * self._frequencies == self._length, 1.0, 0.5) * self._length
        for first in range(0, len(self.error), rows):
            here = slice(first, min(first + rows, len(self.error)))
            spectrum = np.zeros((here.stop - first, self._length // 2 + 1), np.complex128)
            spectrum[:, self._frequencies] = self._terms[here] * scale
            yield here, fft.irfft(spectrum, self._length, axis=1, workers=2)

    def _powers(self, points: IntArray) -> ComplexArray:
        """Return zeta_k^j for K frequencies and J points, [K, J], with angles exact however large k and j are."""
        turns = np.multiply.outer(self._frequencies, points) % self._length
        return np.exp(2j * np.pi * (np.where(2 * turns > self._length, turns - self._length, turns) / self._length))

    def _delta(self, sums: FloatArray, point: IntArray, here: slice = slice(None)) -> FloatArray:
        """Return delta of some records at points of the grid, errors added, from the sums over frequencies above 0."""
        shape = (-1,) + (1,) * (sums.ndim - 1)
        ordinary, tilted, error = (x[here].reshape(shape) for x in (self._ordinary, self._tilted, self.error))
        distance = (point - self._end) * self._interval
        constant = (self._end - point - np.expm1(distance) / math.expm1(-self._interval)) / self._length
        return np.clip(sums - ordinary + np.exp(distance) * tilted + constant, 0.0, 1.0) + error


def _window(
    above: FloatArray, below: FloatArray, lambdas: FloatArray, allowed: float, interval: float
) -> tuple[int, int]:
    """Return end and length, in points, of a window outside which the losses of all records have almost no mass."""
    room = math.log(1 / allowed)
    highest = float(np.max(np.min((above + room) / lambdas, axis=1)))
    lowest = float(np.min(np.max(-(below + room) / lambdas, axis=1)))
    end = min(max(1, math.ceil(highest / interval)), MOST_POINTS)
    length = min(max(16, end - math.floor(max(lowest / interval, end - MOST_POINTS))), MOST_POINTS)
    return end, int(fft.next_fast_len(length, real=True))


def _characteristic(
    losses: Losses, counts: FloatArray, length: int, coefficients: FloatArray, allowed: float
) -> tuple[ComplexArray, FloatArray]:
    """Return logarithms [B, K] of the characteristic functions at frequencies 1 .. K, and what the others can add, [n].

    K is the least of a few candidates for which the others can add at most ``allowed``, or the largest candidate.
    """
    limit = max(1, min(_MOST_TERMS // (losses.kinds + len(counts)), length // 2))
    usual = min(_USUAL_FREQUENCIES, limit)
    logs, left_out = _within(losses, counts, length, coefficients, allowed, usual)
    if usual < limit and left_out.max() > allowed:
        logs, left_out = _within(losses, counts, length, coefficients, allowed, limit)
    return logs, left_out


def _within(
    losses: Losses, counts: FloatArray, length: int, coefficients: FloatArray, allowed: float, most: int
) -> tuple[ComplexArray, FloatArray]:
    """Do the work of ``_characteristic`` with at most ``most`` frequencies."""
    tried: IntArray = np.unique(np.geomspace(1, most, 32).astype(np.int64))
    values, largest = _low_and_largest(losses, length, tried)
    remaining = np.append(np.cumsum(coefficients[::-1])[::-1], 0.0)[tried]  # 0 if none is left out
    with np.errstate(under="ignore"):
        left_out: FloatArray = np.exp(counts @ np.log(np.maximum(largest, _SMALLEST))) * remaining
    enough = left_out.max(axis=0) <= allowed
    chosen = int(np.argmax(enough)) if enough.any() else len(tried) - 1
    kept = values[:, : int(tried[chosen])]
    logs: ComplexArray = np.log(np.maximum(np.abs(kept), _SMALLEST)) + np.complex128(1j) * np.angle(kept)
    return logs, left_out[:, chosen]


def _low_and_largest(losses: Losses, length: int, tried: IntArray) -> tuple[ComplexArray, FloatArray]:
    """Return characteristic functions [B, K] at low frequencies, and their largest size [B, t] beyond each tried."""
    most = int(tried[-1])
    values = np.empty((losses.kinds, most), np.complex128)
    largest = np.empty((losses.kinds, len(tried)))
    block = max(1, _BLOCK // length)
    for first in range(0, losses.kinds, block):
        kinds = slice(first, min(first + block, losses.kinds))
        transformed = losses.transform(length, kinds)[:, 1:]
        values[kinds] = transformed[:, :most]
        squares = np.square(transformed.real) + np.square(transformed.imag)
        # The largest between one number of frequencies and the next, then from each to the end.
        steps = np.maximum.reduceat(squares, np.minimum(tried, length // 2 - 1), axis=1)
        largest[kinds] = np.sqrt(np.maximum.accumulate(steps[:, ::-1], axis=1)[:, ::-1])
    return values, largest
