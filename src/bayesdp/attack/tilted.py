"""Monte Carlo for failures that are far too rare to be seen: losses are drawn from a law under which they are typical.

A step's loss l has a law P on a grid, rounded down (``loss_walks.loss_law``). It is drawn from P' ~ P e^{theta l}
instead, with Z = E_P[e^{theta l}]; after all steps the weight of a run is e^{K - theta L}, where K is the sum of log Z
over its steps. Also where outputs decide the next exposure this is exact: E_P[f] = E_P'[f e^{K - theta L}]. The failure
at a constant epsilon has a weight of at most e^{K - theta epsilon} theta^theta / (1+theta)^(1+theta), so its mean has a
confidence bound that holds for every law; elsewhere weights are cut off, which only makes the result smaller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from bayesdp.attack.loss_walks import Kind, loss_law
from bayesdp.estimators import EmpiricalBernstein
from bayesdp.validation import FloatArray


@dataclass(frozen=True)
class TiltedStep:
    """The tilted law of one step: ``losses`` [k] on the grid, its distribution function ``below`` [k], and log Z."""

    losses: FloatArray
    below: FloatArray
    log_moment: float

    def draw(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Return losses from the tilted law."""
        return self.losses[np.searchsorted(self.below, rng.random(count)).clip(max=len(self.losses) - 1)]


@lru_cache(maxsize=256)
def tilted(kind: Kind, theta: float, *, record_in: bool, spacing: float) -> TiltedStep:
    """Return the law of a step of this kind, tilted by ``theta``."""
    offsets, weights = loss_law(*kind, record_in, spacing, "down")
    losses: FloatArray = offsets.astype(np.float64) * spacing
    kept = weights > 0
    logs = np.log(weights[kept]) + theta * losses[kept]
    largest = float(logs.max())
    mass = np.exp(logs - largest)
    total = float(mass.sum())
    return TiltedStep(losses[kept], np.cumsum(mass) / total, largest + math.log(total))


@dataclass(frozen=True)
class Runs:
    """Drawn runs: losses L [n], the K of their weights [n], and which kind each of their steps had, [T, n]."""

    losses: FloatArray
    costs: FloatArray
    kinds: FloatArray
    theta: float

    def weighted(self, failures: FloatArray) -> FloatArray:
        """Return failures [n] times the weights of the runs; their mean is the failure probability."""
        return failures * np.exp(np.minimum(self.costs - self.theta * self.losses, 700.0))


def draw_runs(
    rng: np.random.Generator,
    menu: Sequence[Kind],
    steps: int,
    policy: Callable[[FloatArray], FloatArray],
    *,
    theta: float,
    count: int,
    record_in: bool,
    spacing: float = 1e-4,
) -> Runs:
    """Draw runs whose next kind of step ``policy`` chooses from the losses [n] of the last one (0 before the first)."""
    laws = [tilted(kind, theta, record_in=record_in, spacing=spacing) for kind in menu]
    losses, costs, last = (np.zeros(count) for _ in range(3))
    kinds = np.zeros((steps, count))
    for step in range(steps):
        kinds[step] = policy(last)
        last = np.zeros(count)
        for number, law in enumerate(laws):
            chosen = np.flatnonzero(kinds[step] == number)
            last[chosen] = law.draw(rng, len(chosen))
            costs[chosen] += law.log_moment
        losses += last
    return Runs(losses, costs, kinds, theta)


def best_tilt(kind: Kind, steps: int, epsilon: float, *, record_in: bool, spacing: float = 1e-4) -> tuple[float, float]:
    """Return the theta at which weights are bounded best, for equal steps and a constant epsilon, and that bound."""
    bounds: dict[float, float] = {}
    for theta in np.geomspace(0.5, 400.0, 40).tolist():
        constant = theta * math.log(theta) - (theta + 1) * math.log(theta + 1)
        cost = steps * tilted(kind, theta, record_in=record_in, spacing=spacing).log_moment
        bounds[theta] = cost - theta * epsilon + constant
    theta = min(bounds, key=bounds.__getitem__)
    return theta, math.exp(min(bounds[theta] + 1e-9, 0.0))


def mean_at_least(values: FloatArray, most: float, alpha: float) -> float:
    """Return a lower bound of the mean of values [n] in [0, ``most``]: above it with probability at most ``alpha``."""
    cut = np.minimum(values, most)
    return max(0.0, most - float(EmpiricalBernstein(gamma=alpha).upper(most - cut, bound=most)))
