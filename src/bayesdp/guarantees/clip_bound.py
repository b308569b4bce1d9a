"""The clip bound: the profile of a record that is at it in every step. No record costs more, so it covers everyone.

Composing hundreds of different settings with dp-accounting takes minutes; here they are kinds of steps of one record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from bayesdp.guarantees.worst_case import ONLY_RENYI, WorstCase, merge, worst_case_of
from bayesdp.mechanisms.gaussian import RepeatedStep, by_setting
from bayesdp.mechanisms.log_moments import log_moments
from bayesdp.mechanisms.order_mixture import OrderMixture
from bayesdp.profiles import ExposureCounts, Precision, gaussian_delta, gaussian_epsilon, profiles
from bayesdp.profiles.conversion import epsilon_from_costs
from bayesdp.validation import FloatArray

CLIP_BOUND_LAMBDAS = np.array([*range(1, 257), 512, 1024], np.float64)
"""The orders at which the costs of records are compared with those at the clip bound, [L]."""
MOST_SETTINGS = 256
"""How many different settings are told apart; a history with more is merged first."""
_MOST_FOR_PLD = 4  # different settings that dp-accounting composes quickly
_ROUND_UP = 1 + 2.0**-50  # of an exposure, 1 over the noise multiplier


@dataclass(frozen=True)
class ClipBound:
    """A record that is at the clip bound in every step: its steps by ``settings``, and its costs [L].

    ``costs`` are those at ``CLIP_BOUND_LAMBDAS``.

    Formal guarantee: with Poisson sampling, clipping and Gaussian noise, every record's log-moments and profile, in
    both directions of add/remove, are at most these. ``settings`` has one row; exposures, costs and results are
    rounded up.
    """

    settings: ExposureCounts
    costs: FloatArray

    @staticmethod
    def of(steps: Iterable[RepeatedStep]) -> ClipBound:
        """Build the clip bound of steps (noise multiplier, sampling rate, count); exposures are 1 / noise multiplier.

        The settings must have been checked.
        """
        listed = list(steps)
        settings = ExposureCounts(
            np.array([rate for _, rate, _ in listed]),
            np.array([_ROUND_UP / noise for noise, _, _ in listed]),
            np.array([[float(count) for _, _, count in listed]]),
        )
        costs = np.zeros(len(CLIP_BOUND_LAMBDAS))
        for noise, rate, count in listed:
            costs += count * _step_costs(noise, rate)
        return ClipBound(settings, costs * (1 + 2.0**-38))

    def mixture_costs(self, mixture: OrderMixture) -> FloatArray:
        """Return the costs [L] at the orders and in the direction of a mixture, rounded up."""
        moments = log_moments(self.settings.rates, self.settings.exposures, mixture.lambdas, mixture.direction)
        return self.settings.counts[0] @ moments * (1 + 2.0**-38)

    def deltas(self, epsilons: FloatArray, delta: float, precision: Precision | None = None) -> FloatArray:
        """Return upper bounds of delta for everyone at ``epsilons`` [G], [G]: the larger of both directions.

        ``delta`` sets the scale of the errors of the computation, which are added. Without sampling, the exact profile.
        """
        if self.unsampled:
            return gaussian_delta(self._exposure, epsilons)
        return profiles(self.settings, delta, epsilons=epsilons, precision=precision).delta[0]

    def epsilon(self, delta: float) -> float:
        """Return an upper bound of epsilon at ``delta`` for everyone, by the profile; exact without sampling."""
        if self.unsampled:
            return float(gaussian_epsilon(self._exposure, delta))
        return float(profiles(self.settings, delta).epsilon[0])

    def epsilons(self, deltas: Sequence[float]) -> FloatArray:
        """Return upper bounds of epsilon at D deltas, [D], by the profile or Rényi divergences, whichever is less."""
        return self._epsilons(deltas, left_out=False)

    def epsilons_out(self, deltas: Sequence[float]) -> FloatArray:
        """Return upper bounds of epsilon at D deltas, [D], for everyone who was left out: the direction "record out".

        With sampling a release shows less surely that somebody was left out than that somebody took part.
        """
        return self._epsilons(deltas, left_out=True)

    def _epsilons(self, deltas: Sequence[float], *, left_out: bool) -> FloatArray:
        renyi = np.array([epsilon_from_costs(self.costs, CLIP_BOUND_LAMBDAS, delta, "improved")[0] for delta in deltas])
        if self.unsampled:
            return np.minimum(renyi, [float(gaussian_epsilon(self._exposure, delta)) for delta in deltas])
        found = profiles(self.settings, deltas)
        return np.minimum(renyi, found.epsilon_out[0] if left_out else found.epsilon[0])

    @property
    def unsampled(self) -> bool:
        """Whether every step used all records."""
        return bool((self.settings.rates == 1).all())

    @property
    def _exposure(self) -> float:
        """The exposure of all steps together, where none is sampled: the root of the sum of squares, rounded up."""
        return math.sqrt(float(self.settings.counts[0] @ self.settings.exposures**2)) * (1 + 2.0**-40)


def worst_case_of_many(steps: Sequence[RepeatedStep], delta: float) -> WorstCase:
    """Return the worst case of checked steps with any number of different settings: an upper bound for everyone.

    Up to four settings are composed by dp-accounting (``worst_case_of``). More than that are steps of one record at the
    clip bound, and epsilon is the smaller of its profile ("PLD") and its Rényi bound ("RDP").
    """
    distinct = by_setting(merge(steps))
    if len(distinct) <= _MOST_FOR_PLD:
        return worst_case_of(distinct, delta=delta)
    clip_bound = ClipBound.of(distinct)
    profile = clip_bound.epsilon(delta)
    rdp = epsilon_from_costs(clip_bound.costs, CLIP_BOUND_LAMBDAS, delta, "improved")[0]
    if rdp <= profile:
        computed = ONLY_RENYI if rdp > 0 else None
        return WorstCase(
            epsilon=rdp, delta=delta, accountant="RDP", rdp_epsilon=rdp, pld_epsilon=None, computed=computed
        )
    return WorstCase(epsilon=profile, delta=delta, accountant="PLD", rdp_epsilon=rdp, pld_epsilon=profile)


@lru_cache(maxsize=4096)
def _step_costs(noise_multiplier: float, rate: float) -> FloatArray:
    return log_moments(rate, [_ROUND_UP / noise_multiplier], CLIP_BOUND_LAMBDAS)[0]
