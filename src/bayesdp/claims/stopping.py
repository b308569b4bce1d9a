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
from bayesdp.claims.everyone import ledger_clip_bound, ledger_worst_case
from bayesdp.claims.gate import Gate, declared_gate
from bayesdp.guarantees.clip_bound import LAMBDAS, ClipBound
from bayesdp.ledger import RunningCosts, StoredLedger
from bayesdp.profiles.conversion import epsilon_from_costs
from bayesdp.validation import refuse

_FURTHEST = 1 << 24  # steps that are looked ahead
_CLEARLY = 0.95  # by so much a Rényi epsilon must be below the budget to make sure that the ledger's is


class StopWhen:
    """Ask before each step: ``if not budget.allows(noise_std=..., sample_rate=..., clip=...): break``.

    Formal guarantee: as long as only allowed steps are taken, the ledger's worst case at ``delta`` stays within
    ``epsilon``, and a gate that was declared in the ledger, if ``gate`` is asked for, stays met.
    """

    def __init__(
        self, ledger: StoredLedger, *, epsilon: float | None = None, delta: float = 1e-5, gate: bool = False
    ) -> None:
        if epsilon is None and not gate:
            raise refuse("epsilon", epsilon, "a worst case to stop at, or gate=True")
        self.ledger = ledger
        self._epsilon = None if epsilon is None else validation.non_negative("epsilon", epsilon)
        self._delta = validation.probability("delta", delta)
        self._gate: Gate | None = None
        if gate:
            self._gate = declared_gate(ledger)
            if self._gate is None:
                raise refuse("gate", gate, "a gate that was declared when the ledger was created")
            self._costs = RunningCosts(ledger, self._gate.at)
        self._loudest = math.inf, 0.0
        "Noise multiplier and rate for which it was computed that steps up to ``_until`` fit."
        self._until = 0
        self._known: set[tuple[float, float]] = set()
        self._checked = 0

    @property
    def gated(self) -> bool:
        """Whether it looks at audit records, through a gate."""
        return self._gate is not None

    def allows(self, *, noise_std: float, sample_rate: float, clip: float, audit: Any = None, steps: int = 1) -> bool:
        """Whether a step, or several, with these settings and these norms of audit records may be taken now."""
        more = validation.count("steps", steps, minimum=1)
        noise = validation.noise_std(noise_std)
        bound = validation.positive("clip", clip)
        rate = validation.sample_rate(sample_rate)
        multiplier = validation.noise_multiplier(noise / bound)
        if self._epsilon is not None and not self._within_worst_case(multiplier, rate, more):
            return False
        return self._gate is None or self._keeps_gate(noise, rate, bound, audit, more)

    def _within_worst_case(self, noise_multiplier: float, rate: float, more: int) -> bool:
        """Looked up as long as settings are known and none is louder than those for which steps were counted."""
        steps, asked = self.ledger.steps, (noise_multiplier, rate)
        recorded = self._recorded_since()
        louder = any(noise < self._loudest[0] or rate > self._loudest[1] for noise, rate in [asked, *recorded])
        new = not {asked, *recorded} <= self._known
        if steps + more > self._until or louder or new:
            self._loudest = asked
            self._known |= {asked, *recorded}
            # Settings that are always new, as of a schedule, would be counted in vain.
            self._until = steps + self._reach(*asked, least=more, most=more if new and steps else _FURTHEST)
        self._checked = steps
        return steps + more <= self._until

    def _recorded_since(self) -> list[tuple[float, float]]:
        """Noise multipliers and rates of the steps that were recorded since the last question."""
        found: list[tuple[float, float]] = []
        for stretch in reversed(self.ledger.history.stretches):
            if stretch.first + stretch.steps - 1 <= self._checked:
                break
            found.append((stretch.noise_std / stretch.clip if stretch.clip else 0.0, stretch.sample_rate))
        return found

    def _reach(self, noise_multiplier: float, rate: float, least: int, most: int) -> int:
        """How many more steps with these settings fit, or fewer: what the cheapest bound says that finds enough."""
        taken = ledger_clip_bound(self.ledger)
        if taken is None:
            return 0
        one = ClipBound.of([(noise_multiplier, rate, 1)])

        def by_renyi(more: int) -> bool:
            costs = taken.costs + more * one.costs
            return epsilon_from_costs(costs, LAMBDAS, self._delta, "improved")[0] <= _CLEARLY * self._budget

        def by_profile(more: int) -> bool:
            after = ledger_clip_bound(self.ledger, (noise_multiplier, rate, more))
            return after is not None and after.epsilon(self._delta) <= self._budget

        def by_ledger(more: int) -> bool:
            after = ledger_worst_case(self.ledger, self._delta, (noise_multiplier, rate, more))
            return after.epsilon <= self._budget

        if (found := _most(by_renyi, most)) >= least:
            return found
        found = _most(by_profile, most)
        # What the ledger will report decides.
        return next((more for more in (found, found - 1, found // 2, least) if more >= least and by_ledger(more)), 0)

    @property
    def _budget(self) -> float:
        assert self._epsilon is not None
        return self._epsilon

    def _keeps_gate(self, noise: float, rate: float, clip: float, audit: Any, more: int) -> bool:
        assert self._gate is not None
        norms = np.full(self._gate.records, clip) if audit is None else validation.non_negative_array("audit", audit)
        if norms.shape != (self._gate.records,):
            raise refuse("len(audit)", norms.size, f"one norm for each of the {self._gate.records} audit records")
        return self._gate.met(self._costs.after(norms, noise_std=noise, sample_rate=rate, clip=clip, steps=more))


def _most(fits: Callable[[int], bool], limit: int) -> int:
    """The largest number of steps up to a limit that fits, 0 if none does; more steps never fit better."""
    if not fits(1):
        return 0
    low, high = 1, 2
    while high <= limit and fits(high):
        low, high = high, 2 * high
    high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
