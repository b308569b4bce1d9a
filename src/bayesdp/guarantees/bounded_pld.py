"""Epsilon by privacy loss distributions whose grid is bounded, so that time and memory are, whatever the settings.

A distribution needs as many points as the losses of a run span intervals of its grid, and the grid follows the size of
epsilon: a loud step that is rarely drawn has a tiny epsilon and huge losses. Where that would be more than a million
points, the grid of dp-accounting is coarsened, which errs upwards, and the profile of a record at the clip bound, whose
window leaves out all but a tiny part of delta (``bayesdp.profiles``), gives a second bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bayesdp.guarantees.gaussian_pld import composed_pld
from bayesdp.guarantees.pld_arrays import least_epsilon
from bayesdp.mechanisms.gaussian import RepeatedStep, by_setting
from bayesdp.profiles import ExposureCounts, profiles

PLD_ROUND_OFF = 1e-12
"""The probability that truncation and the Fourier transform may lose; PLD is asked for this much less delta."""
BEYOND_SUPPORT = 1e-22
"""The probability of losses that dp-accounting leaves out of a step."""
COARSENED = "The grid of privacy losses was coarsened to bound memory; a finer one may give a little less."
"""What is said of a figure from a grid that is coarser than usual."""

_INTERVAL, _LEAST_SHARE = 1e-4, 1e-5  # of the discretisation: the usual one, and the least as a share of epsilon
_MOST_POINTS = 1 << 20
_MOST_KINDS = 64  # different settings whose profile is computed quickly
_LOUDEST = 1000.0  # epsilons above it are left to profiles and Rényi divergences
_ROUND_UP = 1 + 2.0**-50


@dataclass(frozen=True)
class PldBound:
    """Epsilon by privacy loss distributions, None where there is none, and whether the grid had to be ``coarse``."""

    epsilon: float | None
    coarse: bool


def bounded_pld(
    event: Any, history: Sequence[RepeatedStep] | None, delta: float, rdp: float, support: float
) -> PldBound:
    """Return an upper bound of epsilon of a dp-accounting event at ``delta``; None where it is not finite.

    ``history`` are its steps if it is made of Gaussians, ``rdp`` is epsilon by Rényi divergences, and ``support`` a
    loss that is exceeded with probability ``BEYOND_SUPPORT`` at most. The discretisation interval is the smaller of
    1e-4 and 1e-3 epsilon, but not below 1e-5 epsilon, nor so fine that there were more than a million points.
    """
    if delta <= 2 * PLD_ROUND_OFF or not math.isfinite(rdp):
        return PldBound(None, False)
    kinds = by_setting(history) if history else None
    profile = _profile(kinds, delta) if kinds else math.inf
    profile = profile if profile < rdp else math.inf  # where it has nothing better, it returns a Rényi bound of its own
    value, interval, best = min(rdp, profile), math.inf, profile
    finest = 2 * support / _MOST_POINTS
    for _ in range(3):  # the first value may be far above PLD: refine until the discretisation is small beside it
        wanted = max(min(_INTERVAL, 1e-3 * value), _LEAST_SHARE * value)
        finer = max(wanted, finest)
        if finer > 0.5 * interval or rdp > _LOUDEST or not math.isfinite(finest):
            break
        interval = finer
        found = _on_grid(event, kinds, delta, interval)
        if found is None:
            break
        best = min(best, found)
        value = found
        if not 0 < value < math.inf:
            break
    coarse = interval < math.inf and finest > 2 * max(min(_INTERVAL, 1e-3 * best), _LEAST_SHARE * best)
    return PldBound(best, coarse) if math.isfinite(best) else PldBound(None, False)


def _on_grid(event: Any, kinds: Sequence[RepeatedStep] | None, delta: float, interval: float) -> float | None:
    """Return epsilon on a grid: that of Gaussian steps if ``kinds`` are given, otherwise that of any event."""
    from dp_accounting.pld import PLDAccountant

    try:
        if kinds:
            return max(0.0, least_epsilon(composed_pld(kinds, interval), delta - PLD_ROUND_OFF))
        accountant = PLDAccountant(value_discretization_interval=interval)
        accountant.compose(event)
        return max(0.0, float(accountant.get_epsilon(delta - PLD_ROUND_OFF)))
    except Exception:  # an event that only RDP supports
        return None


def _profile(kinds: Sequence[RepeatedStep], delta: float) -> float:
    """Return epsilon by the profile of a record at the clip bound; infinite for too many settings, or without sampling.

    Without sampling there is an exact formula.
    """
    if len(kinds) > _MOST_KINDS or all(rate == 1 for _, rate, _ in kinds):
        return math.inf
    settings = ExposureCounts(
        np.array([rate for _, rate, _ in kinds]),
        np.array([_ROUND_UP / noise for noise, _, _ in kinds]),
        np.array([[float(steps) for _, _, steps in kinds]]),
    )
    return float(profiles(settings, delta).epsilon[0])
