"""Populations whose law is known, and whose exposures depend on what was released: the subjects of coverage.

Everybody goes through a first step; a second one is loud for those whose first output was large, so that exposures
depend on what was released, and taking part makes one's own later steps louder. Two steps are so few that the truth is
known, with sampling too (``two_steps``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from bayesdp.attack.two_steps import DIRECTIONS, two_steps_delta
from bayesdp.claims.claim import Direction
from bayesdp.claims.gate import Gate
from bayesdp.claims.plan import Plan
from bayesdp.run_ledger import Ledger
from bayesdp.validation import FloatArray

_GRID = 120
STRATA = 4001
"""The number of places at which ``Population.everybody`` looks."""


@dataclass(frozen=True, kw_only=True)
class Population:
    """People by their first norm, and when their second step is loud.

    ``quantile(u)`` is the first norm, at most 1, of someone at place u in (0, 1). The second norm is 1 if the first
    output along the person's own direction, N(0, 1) without the person and N(first / noise, 1) with them where they
    were drawn, passes ``threshold``, and a fifth of the first otherwise.
    """

    name: str
    quantile: Callable[[FloatArray], FloatArray]
    threshold: float
    noise: float = 4.0
    sample_rate: float = 1.0

    def norms(self, rng: np.random.Generator, people: int, *, member: bool = False) -> FloatArray:
        """Return the norms of both steps, [2, people]."""
        first = self.quantile(rng.random(people))
        output = rng.standard_normal(people)
        if member:
            output += np.where(rng.random(people) < self.sample_rate, first / self.noise, 0.0)
        return np.stack([first, np.where(output > self.threshold, 1.0, first / 5)])

    def ledger(self, norms: FloatArray, gate: Gate | None = None) -> Ledger:
        """Return the ledger of a run in which audit records have these norms, [2, m]."""
        settings: dict[str, Any] = {"noise_std": self.noise, "sample_rate": self.sample_rate, "clip": 1.0}
        ledger = Ledger(plan=Plan(steps=2, **settings), gate=gate)
        for row in norms:
            ledger.step(**settings, audit=row)
        return ledger

    def everybody(self) -> tuple[FloatArray, FloatArray]:
        """Return norms [2, 2n] at evenly spaced places, quiet and loud, and the weight of each, [2n]."""
        first = self.quantile((np.arange(STRATA) + 0.5) / STRATA)
        loud = float(ndtr(-self.threshold))
        norms = np.concatenate([np.stack([first, first / 5]), np.stack([first, np.ones(STRATA)])], axis=1)
        return norms, np.repeat([(1 - loud) / STRATA, loud / STRATA], STRATA)

    def deltas(self, epsilon: float, direction: Direction) -> FloatArray:
        """Return delta of everybody, [2n], as if norms were fixed beforehand: interpolated, so hardly too large."""
        norms, _ = self.everybody()
        grid = np.linspace(float(norms[0].min()), float(norms[0].max()), _GRID)
        people = np.concatenate([np.stack([grid, grid / 5]), np.stack([grid, np.ones(_GRID)])], axis=1) / self.noise
        at_grid = two_steps_delta(people[0][:, None], people[1][:, None], epsilon, self.sample_rate, direction)
        quiet, loud = np.split(at_grid, 2)
        return np.concatenate([np.interp(norms[0, :STRATA], grid, quiet), np.interp(norms[0, STRATA:], grid, loud)])

    def average_epsilon(self, delta: float) -> float:
        """Return the epsilon at which delta, averaged over people in the worse direction, is as given."""
        _, weights = self.everybody()

        def excess(epsilon: float) -> float:
            return max(float(weights @ self.deltas(epsilon, direction)) for direction in DIRECTIONS) - delta

        return float(brentq(excess, 1e-3, 50.0, xtol=1e-9))


def _lognormal(median: float, deviation: float) -> Callable[[FloatArray], FloatArray]:
    return lambda u: np.minimum(1.0, median * np.exp(deviation * ndtri(u)))


def _outliers(share: float) -> Callable[[FloatArray], FloatArray]:
    return lambda u: np.where(u > 1 - share, 1.0, 0.05 + 0.01 * u)


POPULATIONS = (
    Population(name="lognormal norms", quantile=_lognormal(0.3, 0.7), threshold=1.5),
    Population(name="2 % outliers", quantile=_outliers(0.02), threshold=3.0),
    Population(name="much noise against loud people", quantile=_lognormal(0.6, 0.3), threshold=0.5, noise=12.0),
    Population(name="drawn at a rate of 0.3", quantile=_lognormal(0.3, 0.7), threshold=1.5, noise=1.5, sample_rate=0.3),
)
