"""Stop in time: whether the next step still fits a budget that was declared before the run.

When to stop, and with which settings to go on, may be decided by looking at the outputs: the budget is kept by a filter
that is proved for that (``bayesdp.claims.filter``). Audit records may decide only through a gate that was declared
before the run; an audit set that influences stopping in any other way can no longer be used for claims.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bayesdp import validation
from bayesdp.claims.budget import Budget, declared_budget
from bayesdp.claims.gate import Gate, declared_gate
from bayesdp.claims.spending import Spending
from bayesdp.ledger import RunningCosts, StoredLedger, checked_audit_norms
from bayesdp.validation import refuse

_HAIR = 1 - 2.0**-32  # steps that were allowed must keep the budget on every machine that computes it again


class StopWhen:
    """A budget to ask before each step: ``if not budget.allows(noise_std=..., sample_rate=..., clip=...): break``.

    Formal guarantee: as long as only allowed steps are recorded, the run is (``epsilon``, ``delta``)-DP for everyone,
    however their number and settings were chosen, also by looking at outputs; and, with ``gate=True``, the gate
    declared in the ledger stays met. Steps recorded without asking count as well. The limits are fixed by the budget
    and by the settings of the first step, or by the plan of the ledger, which must then be kept too.

    A budget that the ledger declares (``Ledger.create(budget=...)``) is kept in any case, and is then what the ledger
    claims. A budget that is given here only is kept too; the guarantee then needs that it was decided before the first
    step. The ledger cannot know that, so its claim for everyone names its condition.

    How many steps there are, of those that PLD allows at fixed settings: all with a plan that declares the settings, of
    as many steps as you like; all without sampling; 95 to 100 % if no step is louder than the first one; otherwise
    about half to three quarters (``Budget.for_changes``), which is what a proof for settings chosen by looking costs.

    Args:
        ledger: The ledger to which the steps are recorded.
        epsilon: A worst case to stop at; not needed if the ledger declares a budget, and kept besides it if it does.
        delta: The delta of ``epsilon``.
        gate: Whether to stop before the gate of the ledger would be failed.

    Raises:
        InvalidInputError: If there is neither budget nor gate, a value is out of range, the ledger has no gate, or it
            declares a selection.
    """

    def __init__(
        self, ledger: StoredLedger, *, epsilon: float | None = None, delta: float = 1e-5, gate: bool = False
    ) -> None:
        if ledger.declared_selection is not None:
            expected = "a ledger without a selection: what choosing among runs adds is known for a plan, not a budget"
            raise refuse("ledger", ledger.path, expected)
        declared = declared_budget(ledger)
        if epsilon is None and declared is None and not gate:
            raise refuse("epsilon", epsilon, "a worst case to stop at, a ledger that declares a budget, or gate=True")
        self.ledger = ledger
        checked_delta = validation.probability("delta", delta)
        given = None if epsilon is None else Budget(epsilon=epsilon, delta=checked_delta)
        budgets = [budget for budget in (declared, given) if budget is not None]
        self._spendings = [Spending(replace(budget, epsilon=_HAIR * budget.epsilon), ledger) for budget in budgets]
        self._gate: Gate | None = None
        if gate:
            self._gate = declared_gate(ledger)
            if self._gate is None:
                raise refuse("gate", gate, "a gate that was declared when the ledger was created")
            self._costs = RunningCosts(ledger, self._gate.chosen_order)

    @property
    def gated(self) -> bool:
        """Whether it depends on audit records, through a gate."""
        return self._gate is not None

    def allows(self, *, noise_std: float, sample_rate: float, clip: float, audit: Any = None, steps: int = 1) -> bool:
        """Return whether ``steps`` more steps with these settings still fit the budget.

        ``audit`` [m] are the norms that the audit records would have in these steps; they matter for a gate only, and
        without them every record is charged at the clip bound. Nothing is recorded, and a refusal costs nothing. The
        time it takes does not grow with the steps before it.

        Raises:
            InvalidInputError: For settings out of range, or norms that do not fit the gate's records.
        """
        more = validation.count("steps", steps, minimum=1)
        noise = validation.noise_std(noise_std)
        bound = validation.positive("clip", clip)
        rate = validation.sample_rate(sample_rate)
        multiplier = validation.noise_multiplier(noise / bound)
        if not all(spending.allows(multiplier, rate, more) for spending in self._spendings):
            return False
        return self._gate is None or self._keeps_gate(noise, rate, bound, audit, more)

    def _keeps_gate(self, noise: float, rate: float, clip: float, audit: Any, more: int) -> bool:
        assert self._gate is not None
        at_clip = np.full(self._gate.records, clip)
        norms = at_clip if audit is None else checked_audit_norms(audit, self._gate.records).values
        return self._gate.met(self._costs.after(norms, noise_std=noise, sample_rate=rate, clip=clip, steps=more))
