"""dp-accounting's privacy loss distributions: made, composed with themselves and read by arrays instead of loops.

Masses, truncation and epsilons are dp-accounting's, to the last bit; only what it does point by point in Python, or
more often than the result needs, is done at once. Distributions of few points are left to dp-accounting itself.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.special import logsumexp

from bayesdp.validation import FloatArray

_FEW = 1000  # points up to which dp-accounting keeps masses in a dictionary
_RISING = 1e-12  # by which deltas may rise from one point to the next
_TRUNCATED = 1e-15  # of the mass of a composition: what dp-accounting moves to infinity
_ORDERS = 20  # of Chernoff bounds, of either sign: 1, 2, ... over the number of points
_ROUND_OFF = 1e-12  # far more than a logarithm of a moment is off here
_SURE = 1e-6  # how far an epsilon that was computed quickly must be from a loss to tell which is larger
_UNDERFLOW = 1e-290
_BLOCK = 1 << 13  # masses that are added up at once


def connected_dots(interval: float, lowest: int, highest: int, deltas: FloatArray) -> Any:
    """Return the PLDPmf of ``create_pmf_pessimistic_connect_dots_fixed_gap``, for deltas [G] from 0 to 1.

    They are those at the epsilons ``lowest``, ..., ``highest`` times ``interval``. Raises ValueError if they rise.
    """
    from dp_accounting.pld.pld_pmf import DensePLDPmf, create_pmf_pessimistic_connect_dots_fixed_gap

    if len(deltas) <= _FEW:
        return create_pmf_pessimistic_connect_dots_fixed_gap(interval, lowest, highest, deltas)
    if (np.diff(deltas) > _RISING).any():
        raise ValueError("deltas rise")
    falling: FloatArray = np.minimum.accumulate(deltas)
    steps = np.diff(falling)
    masses = np.empty(len(falling))
    masses[0] = 1 - falling[0] + steps[0] / math.expm1(interval)
    masses[1:-1] = (steps[1:] - steps[:-1] * math.exp(interval)) / math.expm1(interval)
    masses[-1] = steps[-1] / math.expm1(-interval)
    return DensePLDPmf(interval, lowest, np.maximum(0.0, masses), falling[-1], True)


def self_composed(distribution: Any, times: int) -> Any:
    """Return what ``distribution.self_compose(times)`` returns, for a PrivacyLossDistribution."""
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    remove = _self_composed(distribution._pmf_remove, times)
    if distribution._symmetric:
        return PrivacyLossDistribution(remove)
    return PrivacyLossDistribution(remove, _self_composed(distribution._pmf_add, times))


def _self_composed(pmf: Any, times: int) -> Any:
    if not _is_dense(pmf):
        return pmf.self_compose(times, _TRUNCATED)
    masses: FloatArray = pmf._probs
    lowest, highest = _window(masses, times)
    length = highest - lowest + 1
    transform: NDArray[np.complex128] = fft.fft(masses, fft.next_fast_len(max(length, len(masses))))
    half = len(transform) // 2 + 1
    power = np.empty_like(transform)
    power[:half] = transform[:half] ** times
    power[half:] = power[1 : len(transform) - half + 1][::-1].conj()  # the masses are real
    composed = np.roll(np.real(fft.ifft(power)), -lowest)[:length]
    infinite = _TRUNCATED - math.expm1(times * math.log1p(-pmf._infinity_mass))
    return type(pmf)(pmf._discretization, pmf._lower_loss * times + lowest, composed, infinite, True)


def _is_dense(pmf: Any) -> bool:
    """Whether masses are an array, not a dictionary of a few."""
    from dp_accounting.pld.pld_pmf import DensePLDPmf

    return isinstance(pmf, DensePLDPmf)


def _window(masses: FloatArray, times: int) -> tuple[int, int]:
    """Return dp-accounting's Chernoff bounds, in points, of all but ``_TRUNCATED`` of the composition.

    It takes the best of 40 orders. Powers of one array show quickly which these can be; only for them the bound is
    computed as dp-accounting does.
    """
    points, room = len(masses), math.log(2 / _TRUNCATED)
    lowest, highest = 0, (points - 1) * times
    for bound in _chernoff(masses, times, room, -1):
        lowest = max(lowest, math.floor(bound))
    for bound in _chernoff(masses, times, room, 1):
        highest = min(highest, math.ceil(bound))
    return lowest, highest


def _chernoff(masses: FloatArray, times: int, room: float, sign: int) -> list[float]:
    """Return the finite bounds of the orders of one sign, without those that are surely worse by more than a point."""
    points = len(masses)
    orders = sign * np.arange(1, _ORDERS + 1) / points
    factor = np.exp(np.arange(points) * float(orders[0]))
    moments, scaled = np.empty(_ORDERS), masses
    for number in range(_ORDERS):
        scaled = scaled * factor
        moments[number] = scaled.sum()
    with np.errstate(all="ignore"):
        quick = (times * np.log(moments) + room) / np.abs(orders)
    unsure = 1 + times * _ROUND_OFF / np.abs(orders)
    near = orders[~(quick - unsure > np.min(quick + unsure))]
    bounds = [(times * float(logsumexp(np.arange(points) * order, b=masses)) + room) / order for order in near.tolist()]
    return [bound for bound in bounds if math.isfinite(bound)]


def least_epsilon(distribution: Any, delta: float) -> float:
    """Return what ``distribution.get_epsilon_for_delta(delta)`` returns, for a PrivacyLossDistribution."""
    remove = _least_epsilon(distribution._pmf_remove, delta)
    return remove if distribution._symmetric else max(remove, _least_epsilon(distribution._pmf_add, delta))


def _least_epsilon(pmf: Any, delta: float) -> float:
    """Return the epsilon at which the masses of larger losses leave ``delta``; dp-accounting's sums from above.

    Sums of arrays show where its loop goes on; from there it is followed.
    """
    if not _is_dense(pmf):
        return float(pmf.get_epsilon_for_delta(delta))
    above, below = float(pmf._infinity_mass), 0.0
    if above > delta:
        return math.inf
    masses: FloatArray = np.flip(pmf._probs)
    interval = float(pmf._discretization)
    loss = (pmf._lower_loss + len(masses) - 1) * interval
    for first in range(0, len(masses), _BLOCK):
        here = masses[first : first + _BLOCK]
        losses = np.cumsum(np.append(loss, np.full(len(here), -interval)))  # one after the other, as in the loop
        loss, losses = float(losses[-1]), losses[:-1]
        sure = _steps_that_go_on(losses, here, above, below, delta)
        moved = np.fromiter(map(math.exp, (-losses[:sure]).tolist()), np.float64, sure) * here[:sure]
        above = float(np.cumsum(np.append(above, here[:sure]))[-1])
        below = float(np.cumsum(np.append(below, moved))[-1])
        for at, mass in zip(losses[sure:].tolist(), here[sure:].tolist(), strict=True):
            if above > delta and below > 0 and math.log((above - delta) / below) >= at:
                return _at_end(above, below, delta)
            above += mass
            below += math.exp(-at) * mass
            if above >= delta and below == 0:
                return max(0.0, at)
    return _at_end(above, below, delta)


def _steps_that_go_on(losses: FloatArray, masses: FloatArray, above: float, below: float, delta: float) -> int:
    """Return how many of the losses the loop surely passes, whatever the last digits of sums and logarithms."""
    upper = np.cumsum(np.append(above, masses))
    with np.errstate(all="ignore"):
        lower = np.cumsum(np.append(below, np.exp(-losses) * masses))
        surely_less = np.log((upper[:-1] - delta) / lower[:-1]) < losses - _SURE
    may_end = (upper[:-1] > delta) & ~surely_less | (upper[1:] >= delta) & ~(lower[1:] > _UNDERFLOW)
    return int(np.argmax(may_end)) if may_end.any() else len(masses)


def _at_end(above: float, below: float, delta: float) -> float:
    return 0.0 if above <= below + delta else math.log((above - delta) / below)
