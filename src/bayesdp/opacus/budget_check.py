"""Ask the budget of a run whether a sum of gradients may be released, and whether another like it could be."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict

from bayesdp.claims.stopping import StopWhen
from bayesdp.opacus.draws import Draw, Draws
from bayesdp.opacus.recording import GradientSum, PoissonSteps, ShuffledEpochs


class BudgetCheck:
    """The budget as training meets it; without a budget everything is allowed."""

    def __init__(self, budget: StopWhen | None, recorder: PoissonSteps | ShuffledEpochs, draws: Draws) -> None:
        self._budget, self._recorder, self._draws = budget, recorder, draws

    def allows(self, released: GradientSum) -> bool:
        """Return whether a sum may be released."""
        return self._allows(released, released.batch)

    def allows_another(self, released: GradientSum) -> bool:
        """Return whether another sum like this one could be released; with a gate nobody knows before its norms."""
        if self._budget is None or self._budget.gated:
            return True
        *_, last = released.batch
        return self._allows(released, [self._draws.next_like(last)])

    def _allows(self, released: GradientSum, draws: Collection[Draw]) -> bool:
        """Return whether a sum of these draws may be released."""
        if self._budget is None:
            return True
        charge = self._recorder.charge(released, draws)
        if charge.steps == 0:
            return True
        audit = None  # what an epoch costs audit records is known only at its end: until then, the clip bound
        if self._budget.gated:
            self._recorder.settle()
            if isinstance(self._recorder, PoissonSteps) and released.audit is not None:
                audit = released.audit.checked()
        return self._budget.allows(**asdict(charge), audit=audit)
