"""The privacy loss of one step of the subsampled Gaussian, on the points of a grid, never too small.

A step with exposure e and sampling rate q compares M = (1-q) N(0,1) + q N(e,1) with Q = N(0,1). Its loss
log(M/Q) = log(1 - q + q e^{e x - e^2/2}) rises with the output x. *Record in*: x ~ M, loss log(M/Q). *Record out*:
x ~ Q, loss log(Q/M). What lies between two grid points is moved to both of them so that the masses under either law
stay as they are ("connect the dots", Doroshenko et al. 2022): the least that dominates the step on that grid. The
masses of an interval under M and Q are differences of normal tails: nothing cancels, however fine the grid.
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
    """Losses of B kinds of steps in one direction: masses [P] at multiples ``point`` [P] of the interval, kind by kind.

    ``lost`` [B] is the mass that was moved to infinity.
    """

    interval: float
    kind: IntArray
    point: IntArray
    mass: FloatArray
    lost: FloatArray

    def log_moments(self, orders: FloatArray) -> FloatArray:
        """log E[e^{s loss}] of every kind, [B, S], for the finite losses; infinite where it overflows."""
        values = self.point * self.interval
        result = np.empty((self.kinds, len(orders)))
        for column, order in enumerate(orders):
            with np.errstate(over="ignore", divide="ignore"):
                moments = np.bincount(self.kind, self.mass * np.exp(order * values), self.kinds)
                result[:, column] = np.log(moments)
        return result

    @property
    def kinds(self) -> int:
        """How many kinds of steps there are."""
        return len(self.lost)

    def transform(self, length: int, kinds: slice) -> NDArray[np.complex128]:
        """sum_j p_j e^{-2 pi i j k / length}, k = 0 .. length//2, of some kinds, wrapped around so many points."""
        number = kinds.stop - kinds.start
        kind, point, mass = self.kind, self.point, self.mass
        if number < self.kinds:
            here = (kind >= kinds.start) & (kind < kinds.stop)
            kind, point, mass = kind[here] - kinds.start, point[here], mass[here]
        wrapped = np.bincount(kind * length + point % length, mass, number * length)
        return fft.rfft(wrapped.reshape(number, length), axis=1, workers=2)


def step_losses(rates: FloatArray, exposures: FloatArray, interval: float, truncation: float) -> tuple[Losses, Losses]:
    """Losses of steps of these rates and exposures (above 0), [B]: record in, record out.

    ``truncation`` is the probability of an output x so far out that its loss is not looked at but counted as infinite,
    at each end of each law.
    """
    far = -float(ndtri(truncation))
    first = np.floor(_loss(rates, exposures, np.full_like(rates, -far)) / interval).astype(np.int64)
    last = np.ceil(_loss(rates, exposures, exposures + far) / interval).astype(np.int64)
    points = last - first + 1
    kind = np.repeat(np.arange(len(rates)), points)
    start = np.cumsum(points) - points
    point = np.arange(len(kind)) - start[kind] + first[kind]
    rate, exposure = rates[kind], exposures[kind]
    output = _output(rate, exposure, np.float64(interval) * point)
    # Masses of N(0,1) and N(e,1) between neighbouring points; those of one kind end where the next begins.
    without, moved = _between(output), _between(output - exposure)
    inner = np.ones(len(kind), bool)
    inner[start + points - 1] = False
    low, kinds, q = point[inner], kind[inner], without[inner[:-1]]
    m = (1 - rate[inner]) * q + rate[inner] * moved[inner[:-1]]
    ends = _Ends.of(rates, exposures, output[start], output[start + points - 1])
    record_in = _connect(interval, kinds, low, m, q, ends.upper_m, ends.upper_q, ends.lower_m, first, last)
    record_out = _connect(interval, kinds, -low - 1, q, m, ends.lower_q, ends.lower_m, ends.upper_q, -last, -first)
    return record_in, record_out


@dataclass(frozen=True)
class _Ends:
    """Masses [B] of both laws below the first and above the last point."""

    lower_m: FloatArray
    lower_q: FloatArray
    upper_m: FloatArray
    upper_q: FloatArray

    @staticmethod
    def of(rates: FloatArray, exposures: FloatArray, first: FloatArray, last: FloatArray) -> _Ends:
        lower_q, upper_q = ndtr(first), ndtr(-last)
        return _Ends(
            lower_m=(1 - rates) * lower_q + rates * ndtr(first - exposures),
            lower_q=lower_q,
            upper_m=(1 - rates) * upper_q + rates * ndtr(exposures - last),
            upper_q=upper_q,
        )


def _connect(
    interval: float,
    kind: IntArray,
    low: IntArray,
    p: FloatArray,
    q: FloatArray,
    above_p: FloatArray,
    above_q: FloatArray,
    below_p: FloatArray,
    first: IntArray,
    last: IntArray,
) -> Losses:
    """Masses p (of the law that the output comes from) and q of the intervals [low, low + 1], moved to their ends."""
    scale = -math.expm1(-interval)
    upper = np.clip((p - np.exp(low * interval) * q) / scale, 0.0, p)
    # Below the first point: up to it. Above the last: as much to infinity as the other law does not cover.
    kept = np.minimum(np.exp(last * interval) * above_q, above_p)
    kinds = np.arange(len(first))
    return Losses(
        interval,
        np.concatenate([kind, kind, kinds, kinds]),
        np.concatenate([low, low + 1, first, last]),
        np.concatenate([p - upper, upper, below_p, kept]),
        above_p - kept,
    )


def _loss(rate: FloatArray, exposure: FloatArray, output: FloatArray) -> FloatArray:
    """log(1 - q + q e^{e x - e^2/2})."""
    power = exposure * output - np.square(exposure) / 2
    with np.errstate(divide="ignore", over="ignore"):
        small = np.log1p(rate * np.expm1(np.minimum(power, 1.0)))
        large = np.logaddexp(np.log1p(-rate), np.log(rate) + power)
    return np.where(rate == 1, power, np.where(power < 1.0, small, large))


def _output(rate: FloatArray, exposure: FloatArray, loss: FloatArray) -> FloatArray:
    """The output x with this loss; -infinity below the least loss, log(1-q)."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        small = np.log1p(np.maximum(np.expm1(np.minimum(loss, 1.0)) / rate, -1.0))
        large = loss - np.log(rate) + np.log1p(-(1 - rate) * np.exp(-loss))
    power = np.where(rate == 1, loss, np.where(loss < 1.0, small, large))
    return power / exposure + exposure / 2


def _between(output: FloatArray) -> FloatArray:
    """The mass of N(0,1) between neighbours of an ascending list, from the nearer tail."""
    tail = ndtr(-np.abs(output))
    left, right = output[:-1], output[1:]
    mass = np.where(left >= 0, tail[:-1] - tail[1:], tail[1:] - tail[:-1])
    return np.maximum(np.where((left < 0) & (right >= 0), 1.0 - tail[:-1] - tail[1:], mass), 0.0)
