"""Stop in time: whether the next step may still be taken under a budget that was declared before the run.

A worst case is a bound at any stopping time, and may be used to stop. What audit records say may be used only through a
gate, which was declared; an audit set that decides about stopping in any other way is spent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from bayesdp import validation
from bayesdp.claims.figures import LAMBDAS, ClipBound
from bayesdp.conversion import epsilon_from_costs
from bayesdp.ledger import Ledger, grid
from bayesdp.mechanisms import SubsampledGaussian
from bayesdp.profiles import ExposureCounts, profiles
from bayesdp.validation import FloatArray, refuse

_FURTHEST = 1 << 24  # steps that are looked ahead


class StopWhen:
    """Ask before each step: ``if not budget.allows(noise_std=..., sample_rate=..., clip=...): break``.

    Formal guarantee: as long as only allowed steps are taken, the ledger's worst case at ``delta`` stays within
    ``epsilon``, and a gate that was declared in the ledger, if ``gate`` is asked for, stays met.
    """

    def __init__(
        self, ledger: Ledger, *, epsilon: float | None = None, delta: float = 1e-5, gate: bool = False
    ) -> None:
        if epsilon is None and not gate:
            raise refuse("epsilon", epsilon, "a worst case to stop at, or gate=True")
        self._ledger = ledger
        self._epsilon = None if epsilon is None else validation.non_negative("epsilon", epsilon)
        self._delta = validation.probability("delta", delta)
        self._gate = ledger.gate if gate else None
        if gate and self._gate is None:
            raise refuse("gate", gate, "a gate that was declared when the ledger was created")
        self._loudest = math.inf, 0.0
        "Noise multiplier and rate for which it was computed that steps up to ``_until`` fit."
        self._until = 0
        self._costs: FloatArray | None = None
        self._pending: FloatArray | None = None
        self._at = 0

    def allows(self, *, noise_std: float, sample_rate: float, clip: float, audit: Any = None) -> bool:
        """Whether a step with these settings, and these norms of audit records, may be taken now."""
        noise = validation.noise_std(noise_std)
        bound = validation.positive("clip", clip)
        rate = validation.sample_rate(sample_rate)
        multiplier = validation.noise_multiplier(noise / bound)
        if self._epsilon is not None and not self._within_worst_case(multiplier, rate):
            return False
        return self._gate is None or self._keeps_gate(noise, rate, bound, audit)

    def _within_worst_case(self, noise_multiplier: float, rate: float) -> bool:
        """Looked up as long as steps are no louder than those for which it was computed how many fit."""
        steps = self._ledger.steps
        louder = noise_multiplier < self._loudest[0] or rate > self._loudest[1]
        if louder or steps >= self._until:
            self._loudest = noise_multiplier, rate
            self._until = steps + self._reach(noise_multiplier, rate)
        return steps < self._until

    def _reach(self, noise_multiplier: float, rate: float) -> int:
        """How many more steps with these settings fit, or fewer: as many as the cheapest bound that finds any says."""
        taken = ClipBound.of(self._ledger.history)
        if taken is None:
            return 0
        exposure = (1 + 2.0**-50) / noise_multiplier
        one = SubsampledGaussian(sample_rate=rate).log_moment([exposure], LAMBDAS)[0]

        def by_renyi(more: int) -> bool:
            return epsilon_from_costs(taken.costs + more * one, LAMBDAS, self._delta, "improved")[0] <= self._budget

        def by_profile(more: int) -> bool:
            after = ExposureCounts(
                np.append(taken.settings.rates, rate),
                np.append(taken.settings.exposures, exposure),
                np.append(taken.settings.counts, [[float(more)]], axis=1),
            )
            return float(profiles(after, self._delta).epsilon[0]) <= self._budget

        found = _most(by_renyi)
        if found:
            return found
        found = _most(by_profile)
        # What the ledger will report decides; it is discretised a little more coarsely.
        for more in (found, found - 1, found // 2, 1):
            if more > 0 and self._ledger.worst_case(self._delta, more=(noise_multiplier, rate, more)).epsilon <= (
                self._budget
            ):
                return more
        return 0

    @property
    def _budget(self) -> float:
        assert self._epsilon is not None
        return self._epsilon

    def _keeps_gate(self, noise: float, rate: float, clip: float, audit: Any) -> bool:
        assert self._gate is not None
        norms = np.full(self._gate.records, clip) if audit is None else validation.non_negative_array("audit", audit)
        if norms.shape != (self._gate.records,):
            raise refuse("len(audit)", norms.size, f"one norm for each of the {self._gate.records} audit records")
        clipped = np.minimum(norms, clip) / noise * (1 + 2.0**-50)
        rounded = np.minimum(grid.VALUES[grid.round_up(clipped)], clip / noise * (1 + 2.0**-50))  # as the ledger will
        distinct, place = np.unique(rounded, return_inverse=True)
        step = SubsampledGaussian(sample_rate=rate).log_moment(distinct, [self._gate.at])[place, 0]
        after = self._pending = self._costs_now() + step
        return self._gate.met(after * (1 + 2.0**-37))  # ledger.costs() rounds up once more

    def _costs_now(self) -> FloatArray:
        """Costs of all steps in the ledger; the last answer is reused if its step was taken, or was not."""
        assert self._gate is not None
        steps = self._ledger.steps
        if self._costs is not None and self._pending is not None and steps == self._at + 1:
            self._costs = self._pending
        elif self._costs is None or steps != self._at:
            self._costs = self._ledger.costs([self._gate.at])[:, 0] if steps else np.zeros(self._gate.records)
        self._at = steps
        return self._costs


def _most(fits: Callable[[int], bool]) -> int:
    """The largest number of steps that fits, 0 if none does; more steps never fit better."""
    if not fits(1):
        return 0
    low, high = 1, 2
    while high < _FURTHEST and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
