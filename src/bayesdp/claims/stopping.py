"""Stop in time: whether the next step still fits a budget that was declared before the run.

With settings that are fixed, when a budget is spent does not depend on outputs, so the worst case may decide when to
stop. Audit records may decide only through a gate that was declared before the run; an audit set that influences
stopping in any other way can no longer be used for claims.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from bayesdp import validation
from bayesdp.claims.everyone import ledger_clip_bound, ledger_worst_case
from bayesdp.claims.gate import Gate, declared_gate
from bayesdp.guarantees.clip_bound import CLIP_BOUND_LAMBDAS, ClipBound
from bayesdp.ledger import RunningCosts, StoredLedger, checked_audit_norms
from bayesdp.profiles.conversion import epsilon_from_costs
from bayesdp.validation import refuse

_FURTHEST = 1 << 24  # the most steps to look ahead
_CLEARLY = 0.95  # a Rényi epsilon below this fraction of the budget makes sure that the ledger's is within it


class StopWhen:
    """A budget to ask before each step: ``if not budget.allows(noise_std=..., sample_rate=..., clip=...): break``.

    Formal guarantee: as long as only allowed steps are recorded, the ledger's worst case at ``delta`` stays within
    ``epsilon`` and, with ``gate=True``, the gate declared in the ledger stays met. Steps recorded without asking count
    as well. At least one of ``epsilon`` and ``gate`` must be given.

    Raises:
        InvalidInputError: If neither is given, a value is out of range, or the ledger has no gate.
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
            self._costs = RunningCosts(ledger, self._gate.chosen_order)
        self._loudest = math.inf, 0.0
        "The noise multiplier and rate for which steps up to number ``_until`` are known to fit."
        self._until = 0
        self._known: set[tuple[float, float]] = set()
        self._checked = 0

    @property
    def gated(self) -> bool:
        """Whether it depends on audit records, through a gate."""
        return self._gate is not None

    def allows(self, *, noise_std: float, sample_rate: float, clip: float, audit: Any = None, steps: int = 1) -> bool:
        """Return whether ``steps`` more steps with these settings still fit the budget.

        ``audit`` [m] are the norms that the audit records would have in these steps; they matter for a gate only, and
        without them every record is charged at the clip bound. Nothing is recorded, and a refusal costs nothing.

        Raises:
            InvalidInputError: For settings out of range, or norms that do not fit the gate's records.
        """
        more = validation.count("steps", steps, minimum=1)
        noise = validation.noise_std(noise_std)
        bound = validation.positive("clip", clip)
        rate = validation.sample_rate(sample_rate)
        multiplier = validation.noise_multiplier(noise / bound)
        if self._epsilon is not None and not self._within_worst_case(multiplier, rate, more):
            return False
        return self._gate is None or self._keeps_gate(noise, rate, bound, audit, more)

    def _within_worst_case(self, noise_multiplier: float, rate: float, more: int) -> bool:
        """Return whether the worst case stays within the budget.

        The answer is looked up as long as all settings are known and none is louder than the settings for which the
        number of steps was computed.
        """
        steps, asked = self.ledger.steps, (noise_multiplier, rate)
        recorded = self._recorded_since()
        louder = any(noise < self._loudest[0] or rate > self._loudest[1] for noise, rate in [asked, *recorded])
        new = not {asked, *recorded} <= self._known
        if steps + more > self._until or louder or new:
            self._loudest = asked
            self._known |= {asked, *recorded}
            # Looking further ahead would be in vain for settings that change at every step, as in a schedule.
            self._until = steps + self._reach(*asked, least=more, most=more if new and steps else _FURTHEST)
        self._checked = steps
        return steps + more <= self._until

    def _recorded_since(self) -> list[tuple[float, float]]:
        """Return noise multiplier and rate of every stretch with steps recorded since the last question."""
        settings: list[tuple[float, float]] = []
        for stretch in reversed(self.ledger.history.stretches):
            if stretch.first + stretch.steps - 1 <= self._checked:
                break
            settings.append((stretch.noise_multiplier or 0.0, stretch.sample_rate))
        return settings

    def _reach(self, noise_multiplier: float, rate: float, least: int, most: int) -> int:
        """Return a number of further steps with these settings that fit the budget, never too large.

        It comes from the cheapest bound that allows at least ``least`` steps, and is 0 if none does.
        """
        taken = ledger_clip_bound(self.ledger)
        if taken is None:
            return 0
        step = ClipBound.of([(noise_multiplier, rate, 1)])

        def by_renyi(more: int) -> bool:
            costs = taken.costs + more * step.costs
            return epsilon_from_costs(costs, CLIP_BOUND_LAMBDAS, self._delta, "improved")[0] <= _CLEARLY * self._budget

        def by_profile(more: int) -> bool:
            after = ledger_clip_bound(self.ledger, (noise_multiplier, rate, more))
            return after is not None and after.epsilon(self._delta) <= self._budget

        def by_ledger(more: int) -> bool:
            after = ledger_worst_case(self.ledger, self._delta, (noise_multiplier, rate, more))
            return after.epsilon <= self._budget

        if (fitting := _most(by_renyi, most)) >= least:
            return fitting
        fitting = _most(by_profile, most)
        # The figure that the ledger will report decides.
        tried = (fitting, fitting - 1, fitting // 2, least)
        return next((more for more in tried if more >= least and by_ledger(more)), 0)

    @property
    def _budget(self) -> float:
        assert self._epsilon is not None
        return self._epsilon

    def _keeps_gate(self, noise: float, rate: float, clip: float, audit: Any, more: int) -> bool:
        assert self._gate is not None
        at_clip = np.full(self._gate.records, clip)
        norms = at_clip if audit is None else checked_audit_norms(audit, self._gate.records).values
        return self._gate.met(self._costs.after(norms, noise_std=noise, sample_rate=rate, clip=clip, steps=more))


def _most(fits: Callable[[int], bool], limit: int) -> int:
    """Return the largest number of steps up to ``limit`` that fits, 0 if none does.

    Assumes that fewer steps always fit if more do.
    """
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
