"""The worst case of a history of many settings: a record that is at the clip bound in every step, by its own profile.

Composing hundreds of different settings with dp-accounting takes minutes; here they are kinds of steps of one record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from bayesdp.conversion import epsilon_from_costs
from bayesdp.mechanisms import SubsampledGaussian
from bayesdp.profiles import ExposureCounts, Precision, gaussian_delta, gaussian_epsilon, profiles
from bayesdp.validation import FloatArray
from bayesdp.worst_case import Run

LAMBDAS = np.array([*range(1, 257), 512, 1024], np.float64)
"""Orders at which costs are kept."""
MOST_SETTINGS = 256
_ROUND_UP = 1 + 2.0**-50  # of an exposure, 1 over the noise multiplier


@dataclass(frozen=True)
class ClipBound:
    """Kinds of steps of a record that is always at the clip bound, and its costs [L] at ``LAMBDAS``."""

    settings: ExposureCounts
    costs: FloatArray

    @staticmethod
    def of(runs: Iterable[Run]) -> ClipBound:
        """From (noise multiplier, sampling rate, steps)."""
        listed = list(runs)
        settings = ExposureCounts(
            np.array([rate for _, rate, _ in listed]),
            np.array([_ROUND_UP / noise for noise, _, _ in listed]),
            np.array([[float(steps) for _, _, steps in listed]]),
        )
        costs = np.zeros(len(LAMBDAS))
        for noise, rate, steps in listed:
            costs += steps * _step_costs(noise, rate)
        return ClipBound(settings, costs * (1 + 2.0**-38))

    def deltas(self, epsilons: FloatArray, delta: float, precision: Precision | None = None) -> FloatArray:
        """delta(epsilon) for everyone, [G], the larger of both directions."""
        if self._unsampled:
            return gaussian_delta(self._exposure, epsilons)
        return profiles(self.settings, delta, epsilons=epsilons, precision=precision).delta[0]

    def epsilon(self, delta: float) -> float:
        """epsilon at delta for everyone."""
        if self._unsampled:
            return float(gaussian_epsilon(self._exposure, delta))
        return float(profiles(self.settings, delta).epsilon[0])

    def epsilons(self, deltas: Sequence[float]) -> FloatArray:
        """The same at several deltas, [D], computed together: by its profile or by Rényi divergences."""
        renyi = np.array([epsilon_from_costs(self.costs, LAMBDAS, delta, "improved")[0] for delta in deltas])
        if self._unsampled:
            return np.minimum(renyi, [float(gaussian_epsilon(self._exposure, delta)) for delta in deltas])
        return np.minimum(renyi, profiles(self.settings, deltas).epsilon[0])

    @property
    def _unsampled(self) -> bool:
        return bool((self.settings.rates == 1).all())

    @property
    def _exposure(self) -> float:
        """Of all steps together, without sampling."""
        return math.sqrt(float(self.settings.counts[0] @ self.settings.exposures**2)) * (1 + 2.0**-40)


@lru_cache(maxsize=4096)
def _step_costs(noise_multiplier: float, rate: float) -> FloatArray:
    return SubsampledGaussian(sample_rate=rate).log_moment([_ROUND_UP / noise_multiplier], LAMBDAS)[0]
