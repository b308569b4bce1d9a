"""The worst case for a person with several rows: a mixture of Gaussians in every step, composed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bayesdp import validation
from bayesdp.guarantees.clip_bound import ClipBound
from bayesdp.profiles.composed import MOST_POINTS, ComposedLosses
from bayesdp.profiles.conversion import log_constant
from bayesdp.profiles.gaussian_profile import gaussian_epsilon
from bayesdp.profiles.rows_losses import RowsStep, rows_losses
from bayesdp.profiles.step_losses import Losses
from bayesdp.validation import FloatArray

_GRID, _ERROR = 2e-4, 1e-5  # shares: of epsilon that the grid may add, of delta that each error may take
_LEAST_DELTA = 1e-100
_LARGEST_LOSS = 600.0  # of a step that is computed; its exponential must not overflow
_MOST_WORK = 1 << 22  # points of all kinds of steps, times the shifts of each
_COARSEST = 0.5
_PASSES = 6  # grids that are tried, each finer than the one before
_LAMBDAS, _DOUBLINGS = (0.25, 0.25 * math.sqrt(2)), 14


@dataclass(frozen=True)
class RowsBound:
    """An upper bound of ``epsilon`` for a person with several rows; ``accountant``: "PLD", "RDP" or "Gaussian".

    ``tight``: whether it is exact, or off by little more than what a grid adds.
    """

    epsilon: float
    accountant: str
    tight: bool


def rows_bound(clip_bound: ClipBound, rows: int, delta: float) -> RowsBound:
    """Return an upper bound of epsilon at ``delta`` for everyone with up to ``rows`` rows, each drawn by itself.

    It is the smallest of three. "Gaussian": rows that are always drawn cost no less than rows that are sampled, and k
    rows without sampling are one Gaussian of k times the exposure, which is exact. "PLD": in each step the person's
    rows move the sum by at most j exposures with probability Bin(j; k, q), and these mixtures of Gaussians are composed
    on a grid. "RDP": the same through moments on that grid, for deltas that are within the round-off of profiles.

    Formal guarantee: with Poisson sampling of rows, clipping of each row and Gaussian noise, never below the exact
    epsilon, in both directions of adding or removing all rows of the person, whatever their norms and directions, and
    however these depend on earlier outputs. Time and memory do not grow with the number of rows or of steps. Infinite
    where the noise is too small for a figure. Raises InvalidInputError for fewer than 1 row or a delta out of range.
    """
    rows = validation.count("rows", rows, minimum=1)
    delta = validation.probability("delta", delta)
    kinds, counts = clip_bound.settings, clip_bound.settings.counts[0]
    taken = np.flatnonzero(counts > 0)
    together = rows * math.sqrt(float(counts @ kinds.exposures**2)) * (1 + 2.0**-40)
    unsampled = bool((kinds.rates[taken] == 1).all())
    gaussian = RowsBound(float(gaussian_epsilon(together, delta)), "Gaussian", unsampled)
    if unsampled or delta <= _LEAST_DELTA or gaussian.epsilon == 0:
        return gaussian
    steps = (kinds.rates[taken], kinds.exposures[taken], counts[taken])
    return _smaller(_mixtures(*steps, rows, delta, gaussian.epsilon), gaussian)


def _mixtures(
    rates: FloatArray, exposures: FloatArray, counts: FloatArray, rows: int, delta: float, most: float
) -> RowsBound:
    """Return the bound by mixtures of Gaussians; ``most``, another bound, only helps to place the grid."""
    truncation = max(_ERROR * delta / (2 * float(counts.sum())), 1e-300)
    steps = [RowsStep.of(q, e, rows, truncation) for q, e in zip(rates.tolist(), exposures.tolist(), strict=True)]
    # Steps in which a row is drawn less often than what may be lost: they reveal nothing but that.
    drawn = np.array([step.shifts[-1] > 0 for step in steps])
    delta -= float(counts[~drawn] @ np.array([step.dropped for step in steps])[~drawn])
    if not drawn.any():
        return RowsBound(0.0, "PLD", True)
    steps, counts = [step for step in steps if step.shifts[-1] > 0], counts[drawn]
    spans = np.array([step.span(truncation) for step in steps])
    best = RowsBound(math.inf, "PLD", False)
    if not (np.abs(spans) < _LARGEST_LOSS).all():
        return best
    finest = float((spans[:, 1] - spans[:, 0]) @ [len(step.shifts) for step in steps]) / _MOST_WORK
    variance = float(counts @ [step.second_moment() for step in steps])
    size = min(most, variance + math.sqrt(-2 * variance * math.log(delta)) + float(spans[:, 1].max()))
    interval = min(max(math.sqrt(12 * _GRID * variance / float(counts.sum())), size / 1000, finest), _COARSEST)
    for _ in range(_PASSES):
        rows_in, rows_out = rows_losses(steps, interval, truncation)
        larger = max(
            (_direction(losses, counts[None], delta) for losses in (rows_in, rows_out)), key=lambda b: b.epsilon
        )
        gained = best.epsilon - larger.epsilon
        best = _smaller(larger, best)
        finer = max(interval / 4, finest, 2 * min(size, best.epsilon) / MOST_POINTS)
        # What a grid adds falls with the square of its interval: the next gain would be a fifteenth of the last.
        if not gained > 10 * _GRID * best.epsilon or finer > interval / 1.5:
            break
        interval = finer
    return best


def _direction(losses: Losses, counts: FloatArray, delta: float) -> RowsBound:
    """Return the bound of one direction, by the profile or by moments of the same discretised losses."""
    lost = -math.expm1(float(counts[0] @ np.log1p(-losses.lost)))
    if lost >= delta:
        return RowsBound(math.inf, "RDP", False)
    lambdas = np.array([order * 2.0**doubling for order in _LAMBDAS for doubling in range(_DOUBLINGS)])
    moments = np.concatenate([losses.log_moments(order, _DOUBLINGS)[0] for order in _LAMBDAS], axis=1)
    costs = counts[0] @ np.minimum(moments, 1e290)
    costs = costs + 1e-9 * np.abs(costs) + 1e-14 * float(counts.sum())  # for rounding
    epsilons = np.maximum((costs + log_constant(lambdas, "improved") - math.log(delta - lost)) / lambdas, 0.0)
    index = int(np.argmin(epsilons))
    profile = float(ComposedLosses(losses, counts, float(lambdas[index]), _ERROR * delta).epsilons(delta)[0])
    moment = RowsBound(float(epsilons[index]), "RDP", False)
    return _smaller(RowsBound(profile, "PLD", math.isfinite(profile)), moment)


def _smaller(first: RowsBound, second: RowsBound) -> RowsBound:
    return first if first.epsilon <= second.epsilon else second
