"""What a run has spent of a budget, read from its steps, and what the budget guarantees while it is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from bayesdp.claims.budget import Budget
from bayesdp.claims.filter import WHOLE, Limits, limits_of, most
from bayesdp.claims.plan import declared_plan
from bayesdp.guarantees.clip_bound import ClipBound
from bayesdp.ledger import StoredLedger
from bayesdp.mechanisms.gaussian import RepeatedStep
from bayesdp.profiles import Precision
from bayesdp.validation import FloatArray


class Spending:
    """What a run has used of a budget. ``update`` reads what was recorded since the last time, and only that."""

    def __init__(self, budget: Budget, ledger: StoredLedger) -> None:
        self.budget, self._ledger = budget, ledger
        self.exceeded: int | None = None
        "The first step that did not keep the budget."
        self._plan = declared_plan(ledger)
        self._first: tuple[float, float] | None = None
        self._steps, self._within_reference = 0, True
        self._used: list[int] = []
        self._parts: dict[tuple[float, float], tuple[int, ...]] = {}

    @property
    def kept(self) -> bool:
        """Whether every step so far kept the budget."""
        self.update()
        return self.exceeded is None

    def allows(self, noise_multiplier: float, rate: float, more: int) -> bool:
        """Return whether the budget is kept after ``more`` further steps with these settings."""
        if not self.kept:
            return False
        settings = noise_multiplier, rate
        limits = self._limits(settings)
        first, last = self._steps + 1, self._steps + more
        if self._within_reference and limits.within_reference(*settings, first, more) and limits.reaches(last):
            return True
        parts = self._parts.get(settings) or limits.parts([settings])[0]
        if self._first:  # until then, other settings may come first and decide what the limits are
            self._parts[settings] = parts
        return any(used + more * part <= WHOLE for used, part in zip_longest(self._used, parts, fillvalue=0))

    def update(self) -> None:
        """Count the steps that were recorded since the last call."""
        new = list(self._new_stretches())
        if not new:
            return
        if self._first is None:
            self._first = new[0][:2]
            self._used = [0] * len(self._limits(self._first).filters)
        limits = self._limits(self._first)
        unknown = list({stretch[:2] for stretch in new} - self._parts.keys())
        self._parts.update(zip(unknown, limits.parts(unknown), strict=True))
        for noise, rate, steps in new:
            self._count(limits, noise, rate, steps)

    def bound(self) -> BudgetBound | ClipBound:
        """Return the profile that the budget guarantees to everyone while it is kept."""
        limits = self._limits(self._first or (1.0, 1.0))
        return BudgetBound(limits) if limits.filters else ClipBound.of(limits.reference_steps())

    def _limits(self, settings: tuple[float, float]) -> Limits:
        return limits_of(self.budget, self._plan, *((1.0, 1.0) if self._plan else self._first or settings))

    def _count(self, limits: Limits, noise: float, rate: float, steps: int) -> None:
        first, last, parts = self._steps + 1, self._steps + steps, self._parts[noise, rate]
        left = max(((WHOLE - used) // part for used, part in zip(self._used, parts, strict=True)), default=0)
        as_known = self._within_reference and limits.within_reference(noise, rate, first, steps)
        if self.exceeded is None and left < steps and not (as_known and limits.reaches(last)):
            known = most(lambda more: limits.within_reference(noise, rate, first, more), steps)
            self.exceeded = first + max(left, min(known, limits.reach - self._steps) * self._within_reference, 0)
        self._within_reference = as_known
        self._steps = last
        self._used = [used + steps * part for used, part in zip(self._used, parts, strict=True)]

    def _new_stretches(self) -> Iterator[RepeatedStep]:
        """Yield (noise multiplier, rate, steps) of what was recorded since the last time, in order."""
        new: list[RepeatedStep] = []
        for stretch in reversed(self._ledger.history.stretches):
            steps = min(stretch.steps, stretch.first + stretch.steps - 1 - self._steps)
            if steps <= 0:
                break
            new.append((stretch.noise_multiplier or 0.0, stretch.sample_rate, steps))
        yield from reversed(new)


@dataclass(frozen=True)
class BudgetBound:
    """What a budget guarantees to everyone at any epsilon and delta: the two parts of its filter together.

    Formal guarantee: delta(epsilon) of a run that keeps the budget is at most ``deltas``, in both directions.
    """

    limits: Limits

    def deltas(self, epsilons: FloatArray, delta: float, precision: Precision | None = None) -> FloatArray:
        """Return upper bounds of delta at ``epsilons`` [G], [G]; as ``ClipBound.deltas``."""
        limits = self.limits
        total = np.sum([each.deltas(epsilons) for each in limits.filters], axis=0)
        if limits.reach:
            total += ClipBound.of(limits.reference_steps()).deltas(epsilons, delta, precision)
        return np.minimum(total, 1.0)

    def epsilons(self, deltas: Sequence[float]) -> FloatArray:
        """Return upper bounds of epsilon at D deltas, [D]; at the delta of the budget its own epsilon."""
        limits, budget = self.limits, self.limits.budget
        at = np.array(deltas, np.float64)
        found = np.array([max(each.epsilon(delta) for each in limits.filters) for delta in deltas])
        if limits.reach:
            rest = limits.reference_delta / budget.delta
            known = ClipBound.of(limits.reference_steps())
            found = np.maximum(found, known.epsilons([rest * delta for delta in deltas]))
        found = np.where(at >= budget.delta, np.minimum(found, budget.epsilon), found)
        return np.where(at == budget.delta, budget.epsilon, found)

    def epsilons_out(self, deltas: Sequence[float]) -> FloatArray:
        """Return upper bounds of epsilon for everyone who was left out, [D]: a filter bounds both directions alike."""
        return self.epsilons(deltas)
