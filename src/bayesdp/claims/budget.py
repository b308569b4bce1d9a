"""The budget of a run: an epsilon that is declared before the first step, and that holds however the run is steered."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from bayesdp import validation
from bayesdp.ledger import StoredLedger
from bayesdp.validation import refuse

LARGEST = 1e100
"""The largest epsilon of a budget: figures are computed at quotients of it, which must not overflow."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A worst case that the run must not exceed: (``epsilon``, ``delta``)-DP for everyone.

    Pass it to ``Ledger.create(path, budget=...)``: it becomes part of the ledger's hash chain. Ask
    ``StopWhen(ledger).allows(...)`` before each step, or let ``bayesdp.opacus.watch`` do it.

    Formal guarantee: while the recorded steps keep it, the run is (epsilon, delta)-DP under add/remove of one record,
    whatever noise, rates, clip bounds and number of steps were chosen by looking at earlier outputs. Whether it was
    kept is computed from the ledger (``bayesdp.claims.filter``), not taken from anybody's word. In a ledger that also
    declares a plan, only steps of the plan keep it.

    Attributes:
        epsilon: The most that the run may reveal about anybody, at ``delta``.
        delta: The failure probability.
        for_changes: The part of delta for runs in which a step is louder than the first one, or in which many are much
            quieter. With the default, a run at the first settings takes 95 to 100 % of the steps that PLD allows, and a
            run that has left them about half to three quarters, fewer the louder its steps are; with 1 all runs take
            about 60 to 85 %; with 0 all of PLD's, but no step may be louder than the first. It plays no part without
            sampling.

    Raises InvalidInputError for an epsilon that is negative or above 1e100, unless delta is strictly between 0 and 1,
    and for a part outside [0, 1].
    """

    epsilon: float
    delta: float = 1e-5
    for_changes: float = 0.2

    def __post_init__(self) -> None:
        epsilon = validation.non_negative("epsilon", self.epsilon)
        if epsilon > LARGEST:
            raise refuse("epsilon", self.epsilon, f"at most {LARGEST:g}, far more than anybody should reveal")
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", validation.probability("delta", self.delta))
        part = validation.non_negative("for_changes", self.for_changes)
        if part > 1:
            raise refuse("for_changes", self.for_changes, "a part of delta, from 0 to 1")
        object.__setattr__(self, "for_changes", part)

    def to_json(self) -> str:
        """Return the budget as text, for the settings of a ledger."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Budget:
        """Return the budget from the text that ``to_json`` gave."""
        return Budget(**json.loads(text))


def declared_budget(ledger: StoredLedger) -> Budget | None:
    """Return the budget that was declared when a ledger was created, if there is one."""
    declared = ledger.declared_budget
    return None if declared is None else Budget.from_json(declared)
