"""The privacy loss of one step of the subsampled Gaussian, on the points of a grid, never too small.

A step with exposure e and sampling rate q compares M = (1-q) N(0,1) + q N(e,1) with Q = N(0,1). Its loss
log(M/Q) = log(1 - q + q e^{e x - e^2/2}) rises with the output x. *Record in*: x ~ M, loss log(M/Q). *Record out*:
x ~ Q, loss log(Q/M). What lies between two grid points is moved to both of them so that the masses under either law
stay as they are ("connect the dots", Doroshenko et al. 2022): the least that dominates the step on that grid. The
masses of an interval under M and Q are differences of normal tails, exact to many digits however far out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.special import ndtr, ndtri

from bayesdp.validation import FloatArray

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Losses:
    """The privacy losses of B kinds of steps in one direction: P point masses, kind by kind.

    ``mass`` [P] lies at the loss ``point`` [P] times ``interval``. The masses of a kind begin at index ``start`` [B];
    ``lost`` [B] is its mass at an infinite loss.
    """

    interval: float
    start: IntArray
    point: IntArray
    mass: FloatArray
    lost: FloatArray

    @property
    def kinds(self) -> int:
        """How many kinds of steps B there are."""
        return len(self.start)

    def log_moments(self, order: float, doublings: int) -> tuple[FloatArray, FloatArray]:
        """Return log E[e^{s loss}] and log E[e^{-s loss}] of the finite losses, [B, D] each.

        s = order, 2 order, 4 order, ..., D = ``doublings`` of them. Infinite where it overflows.
        """
        result = np.empty((2, self.kinds, doublings))
        with np.errstate(over="ignore", divide="ignore", under="ignore", invalid="ignore"):
            power = np.exp(order * self.interval * self.point)
            for column in range(doublings):
                result[0, :, column] = np.log(np.add.reduceat(self.mass * power, self.start))
                result[1, :, column] = np.log(np.add.reduceat(self.mass / power, self.start))
                power *= power
        return np.nan_to_num(result[0], nan=np.inf, posinf=np.inf), np.nan_to_num(result[1], nan=np.inf, posinf=np.inf)

    def transform(self, length: int, kinds: slice) -> NDArray[np.complex128]:
        """Return the Fourier transforms sum_j p_j e^{-2 pi i j k / length} of ``kinds``, [kinds, length // 2 + 1].

        k runs from 0 to length // 2; points beyond ``length`` wrap around.
        """
        ends = np.append(self.start, len(self.point))[kinds.start : kinds.stop + 1]
        here = slice(int(ends[0]), int(ends[-1]))
        number = len(ends) - 1
        row = length * np.repeat(np.arange(number), np.diff(ends))
        wrapped = np.bincount(row + self.point[here] % length, self.mass[here], number * length)
        return fft.rfft(wrapped.reshape(number, length), axis=1, workers=2)


def step_losses(rates: FloatArray, exposures: FloatArray, interval: float, truncation: float) -> tuple[Losses, Losses]:
    """Return the losses of B kinds of steps on a grid of ``interval``: those of the record in, and of the record out.

    ``rates`` in (0, 1] and ``exposures`` above 0 are [B]. ``truncation`` is the probability, at each end of each law,
    of outputs so far out that their loss is not computed. What lies there is rounded upwards, to infinity if need be
    (``lost``). Formal guarantee: delta(epsilon) of the result is never below that of the step, and equal to it at the
    points of the grid, up to truncation.
    """
    far = -float(ndtri(truncation))
    first = np.floor(_loss(rates, exposures, np.full_like(rates, -far)) / interval).astype(np.int64)
    last = np.ceil(_loss(rates, exposures, exposures + far) / interval).astype(np.int64)
    points = last - first + 1
    start = np.cumsum(points) - points
    end = start + points - 1
    kind = np.repeat(np.arange(len(rates)), points)
    point = np.arange(len(kind)) - (start - first)[kind]
    rate, exposure = rates[kind], exposures[kind]
    output = _output(rate, exposure, np.float64(interval) * point)
    # Masses under Q and M between each point and the next; a kind has none after its last point.
    q, moved = mass_between(output), mass_between(output - exposure)
    q[end] = moved[end] = 0.0
    m = (1 - rate) * q + rate * moved
    below_q, above_q = ndtr(output[start]), ndtr(-output[end])
    below_m = (1 - rates) * below_q + rates * ndtr(output[start] - exposures)
    above_m = (1 - rates) * above_q + rates * ndtr(exposures - output[end])
    return connect_the_dots(Intervals(interval, start, point, q, m, below_q, above_q, below_m, above_m))


@dataclass(frozen=True)
class Intervals:
    """The masses of B kinds of steps between points of a loss grid, under Q (without the record) and M (with it).

    ``point`` [P] and ``start`` [B] are those of ``Losses``. ``q`` and ``m`` [P] lie between the outputs of each point
    and the next one up, 0 at the last point of a kind. What is ``below`` the first or ``above`` the last is [B].
    """

    interval: float
    start: IntArray
    point: IntArray
    q: FloatArray
    m: FloatArray
    below_q: FloatArray
    above_q: FloatArray
    below_m: FloatArray
    above_m: FloatArray


def connect_the_dots(given: Intervals) -> tuple[Losses, Losses]:
    """Move what lies between two points to both of them, keeping the masses under either law: record in, record out."""
    interval, start, point, q, m = given.interval, given.start, given.point, given.q, given.m
    end = np.append(start[1:], len(point)) - 1
    # Loss of an interval's lower end, e^loss for record in; for record out losses are negated and ends change places.
    value = interval * point
    to_upper = _to_upper_end(m, np.exp(value) * q, interval)
    inward = m - to_upper
    inward[1:] += to_upper[:-1]
    to_upper = _to_upper_end(q, np.exp(-value - interval) * m, interval)
    outward = to_upper
    outward[1:] += (q - to_upper)[:-1]
    return (
        _with_ends(interval, start, point, inward, start, given.below_m, end, given.above_m, given.above_q),
        _with_ends(interval, start, -point, outward, end, given.above_q, start, given.below_q, given.below_m),
    )


def _to_upper_end(p: FloatArray, weighted_q: FloatArray, interval: float) -> FloatArray:
    """Return the part of the mass p of each interval that goes to its upper end; the rest goes to the lower one.

    The split keeps the sums of both p and q. ``weighted_q`` is q times e^{loss of the lower end}.
    """
    return np.clip((p - weighted_q) / -math.expm1(-interval), 0.0, p)


def _with_ends(
    interval: float,
    start: IntArray,
    point: IntArray,
    mass: FloatArray,
    lowest: IntArray,
    below_p: FloatArray,
    highest: IntArray,
    above_p: FloatArray,
    above_q: FloatArray,
) -> Losses:
    """Return the losses with both tails added: what lies below the lowest point goes up to it.

    Of what lies above the highest point, as much stays there as q has mass for; the rest goes to infinity.
    """
    kept = np.minimum(np.exp(point[highest] * interval) * above_q, above_p)
    mass[lowest] += below_p
    mass[highest] += kept
    return Losses(interval, start, point, mass, above_p - kept)


def _loss(rate: FloatArray, exposure: FloatArray, output: FloatArray) -> FloatArray:
    """Return the loss of each output x: log(1 - q + q e^{e x - e^2/2})."""
    power = exposure * output - np.square(exposure) / 2
    with np.errstate(divide="ignore", over="ignore"):
        small = np.log1p(rate * np.expm1(np.minimum(power, 1.0)))
        large = np.logaddexp(np.log1p(-rate), np.log(rate) + power)
    return np.where(rate == 1, power, np.where(power < 1.0, small, large))


def _output(rate: FloatArray, exposure: FloatArray, loss: FloatArray) -> FloatArray:
    """Return the output x that has each loss; -infinity below the least loss, log(1-q)."""
    power = loss.copy()  # without sampling
    sampled = rate < 1
    for here, inverse in ((sampled & (loss < 1.0), _small_power), (sampled & (loss >= 1.0), _large_power)):
        if here.all():
            power = inverse(rate, loss)
        elif here.any():
            power[here] = inverse(rate[here], loss[here])
    return power / exposure + exposure / 2


def _small_power(rate: FloatArray, loss: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore", over="ignore"):  # at a rate below 1e-300 no output has such a loss
        return np.log1p(np.maximum(np.expm1(loss) / rate, -1.0))


def _large_power(rate: FloatArray, loss: FloatArray) -> FloatArray:
    return loss - np.log(rate) + np.log1p(-(1 - rate) * np.exp(-loss))


def mass_between(output: FloatArray) -> FloatArray:
    """Return the mass of N(0,1) between each output and the next one up, from the nearer tail; 0 after the last."""
    tail = ndtr(-np.abs(output))
    mass = np.zeros_like(output)
    np.abs(tail[:-1] - tail[1:], out=mass[:-1])
    around = np.flatnonzero((output[:-1] < 0) & (output[1:] >= 0))
    mass[around] = 1.0 - tail[around] - tail[around + 1]
    return np.maximum(mass, 0.0)
