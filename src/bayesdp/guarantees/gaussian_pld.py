"""Privacy loss distributions of Gaussian steps, as dp-accounting's but computed at all grid points at once.

dp-accounting inverts the privacy loss point by point in Python, which takes most of the time of a worst case. Here the
same formulas are applied to arrays, in the same order; grid, rounding and composition are dp-accounting's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from bayesdp.guarantees.pld_arrays import connected_dots, self_composed
from bayesdp.mechanisms.gaussian import RepeatedStep
from bayesdp.mechanisms.kept_results import KeptResults, fingerprint
from bayesdp.validation import FloatArray

_CLOSE = 1e-9  # within this of its limit, dp-accounting takes a loss for the limit
_KEPT: KeptResults[Any] = KeptResults(1 << 25)


def composed_pld(history: Iterable[RepeatedStep], interval: float) -> Any:
    """Return the PrivacyLossDistribution of a history of (noise multiplier, sampling rate, steps) on a grid.

    It is the one that dp-accounting's ``PLDAccountant`` composes of these entries, to the last bit: an upper bound in
    both directions of add/remove of one record. Steps without sampling are one Gaussian with less noise. Raises
    ValueError where dp-accounting does, for settings at the limits of floats.
    """
    from dp_accounting.pld.privacy_loss_distribution import identity

    composed: Any = identity(value_discretization_interval=interval)
    for noise, rate, steps in history:
        if rate == 1:
            composed = composed.compose(gaussian_pld(noise / math.sqrt(steps), 1.0, interval))
        else:
            composed = composed.compose(self_composed(gaussian_pld(noise, rate, interval), steps))
    return composed


def gaussian_pld(noise_multiplier: float, rate: float, interval: float) -> Any:
    """Return the PrivacyLossDistribution of one Gaussian step on a grid, as ``from_gaussian_mechanism`` does.

    The latest are kept: the worst cases of a run at several deltas, or after more steps, begin with the same step.
    """
    arguments = fingerprint([], noise_multiplier, rate, interval)
    distribution = _KEPT.find(arguments)
    if distribution is None:
        distribution, points = _computed(noise_multiplier, rate, interval)
        _KEPT.keep(arguments, distribution, 8 * points)
    return distribution


def _computed(noise_multiplier: float, rate: float, interval: float) -> tuple[Any, int]:
    """Return the distribution of a step, and how many points it has in both directions together."""
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

    points: list[int] = []

    def masses(direction: Any) -> Any:
        loss: Any = GaussianPrivacyLoss(noise_multiplier, sampling_prob=rate, adjacency_type=direction)
        bounds: Any = loss.connect_dots_bounds()
        lowest, highest = math.floor(bounds.epsilon_lower / interval), math.ceil(bounds.epsilon_upper / interval)
        epsilons: FloatArray = np.arange(lowest, highest + 1, dtype=np.float64) * interval
        deltas = _deltas(loss, epsilons, direction == AdjacencyType.ADD)
        points.append(len(deltas))
        return connected_dots(interval, lowest, highest, deltas)

    directions = [AdjacencyType.REMOVE] if rate == 1 else [AdjacencyType.REMOVE, AdjacencyType.ADD]
    return PrivacyLossDistribution(*map(masses, directions)), sum(points)


def _deltas(loss: Any, epsilons: FloatArray, add: bool) -> FloatArray:
    """Return the hockey-stick divergences [G] at ``epsilons`` [G]: what ``loss.get_delta_for_epsilon`` returns.

    Raises ValueError rather than return a value that is not a number.
    """
    rate = loss.sampling_prob
    deltas = np.zeros(len(epsilons))
    inside = np.ones(len(epsilons), bool)
    if rate < 1 and add:
        inside = epsilons < -math.log1p(-rate)
    elif rate < 1:
        inside = epsilons > math.log1p(-rate)
        deltas[~inside] = -np.expm1(epsilons[~inside])
    points = _inverse(loss, epsilons[inside], add)
    with np.errstate(under="ignore"):
        deltas[inside] = loss.mu_upper_cdf(points) - np.exp(epsilons[inside] + loss.mu_lower_log_cdf(points))
    if not np.isfinite(deltas).all():
        raise ValueError("a divergence is not a number")
    return np.clip(deltas, 0, 1)


def _inverse(loss: Any, losses: FloatArray, add: bool) -> FloatArray:
    """Return the largest outputs whose privacy loss is at least each of ``losses`` [G], [G].

    With sampling at rate q, the loss of the step without sampling is ± log(1 + (e^{± loss} - 1) / q), + for a record
    that is removed. A loss at the limit ∓ log(1 - q) has an infinite one. Raises ValueError, as dp-accounting does, if
    round-off puts a loss beyond its limit.
    """
    rate = float(loss.sampling_prob)
    unsampled = losses
    if rate < 1:
        sign = -1.0 if add else 1.0
        limit = sign * math.log(1 - rate)
        at_limit = np.abs(losses - limit) <= _CLOSE * np.maximum(np.abs(losses), abs(limit))
        scaled = np.where(at_limit, 0.0, sign * losses) + float(np.log(1 / rate))
        with np.errstate(divide="ignore", under="ignore"):
            subtracted = float(np.log(1 / rate - 1))
            if not (subtracted < scaled).all():
                raise ValueError("a loss is beyond its limit")
            unsampled = sign * (scaled + np.log1p(-np.exp(subtracted - scaled)))
        unsampled = np.where(losses == 0, sign * float(np.log(1 / rate + (1 - 1 / rate))), unsampled)
        unsampled = np.where(at_limit, -sign * math.inf, unsampled)
    variance = loss._standard_deviation**2
    points = -0.5 * loss.sensitivity - unsampled * variance / loss.sensitivity
    return loss.sensitivity + points if add else points
