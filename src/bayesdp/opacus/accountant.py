"""The accountant that ``PrivacyEngine(accountant="bayesdp")`` creates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

from opacus.accountants import IAccountant
from opacus.optimizers import DPOptimizer

from bayesdp.claims import RunClaims
from bayesdp.guarantees.clip_bound import MOST_SETTINGS, worst_case_of_many
from bayesdp.ledger import check_continues, position_of
from bayesdp.mechanisms.gaussian import RepeatedStep
from bayesdp.opacus.ranks import LedgerOfRankZero
from bayesdp.run_ledger import Ledger
from bayesdp.validation import refuse

_LEDGER, _ELSEWHERE = "bayesdp_ledger", "bayesdp_elsewhere"


class Accountant(IAccountant):
    """An accountant of Opacus whose epsilon is the worst case for everyone, by privacy loss distributions (PLD).

    Alone it knows what Opacus tells every accountant: noise multiplier and sampling rate of each step. Once ``watch``
    has given it a ledger, epsilon covers the steps in the ledger, which were really taken, and steps since then that
    are in no ledger; ``claims`` then has everything else. Its checkpoints note where the ledger stood, and a ledger
    that lacks steps of the checkpoint is refused.
    """

    def __init__(self) -> None:
        super().__init__()
        self.history: list[RepeatedStep] = []
        self.ledger: Ledger | None = None
        "The ledger that ``watch`` gave it last; it contains all steps before, as ``watch`` charges it with them."
        self.elsewhere: list[RepeatedStep] = []
        "Steps that are not in this ledger: taken before ``watch``, or after the watch was closed."
        self.loads = 0
        "How many checkpoints were loaded."
        self._expected: Mapping[str, Any] | None = None
        "Where the ledger stood at the checkpoint that was loaded."

    @classmethod
    def mechanism(cls) -> str:
        """Return the name under which Opacus finds this accountant."""
        return "bayesdp"

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Count a step that is in no ledger."""
        self.count(noise_multiplier, sample_rate, recorded=False)

    def count(self, noise_multiplier: float, sample_rate: float, *, recorded: bool) -> None:
        """Count a step; ``recorded`` says that it is in a ledger."""
        for history in [self.history] if recorded else [self.history, self.elsewhere]:
            noise, rate, steps = float(noise_multiplier), float(sample_rate), 1
            if history and history[-1][:2] == (noise, rate):
                steps += history.pop()[2]
            history.append((noise, rate, steps))

    def get_epsilon(self, delta: float, **_: Any) -> float:
        """Return the worst-case epsilon of all steps so far at ``delta``; 0 before the first step.

        Infinite for a run that is chosen among others and took steps outside its ledger: its plan does not cover them.
        Options of Opacus' other accountants are accepted and ignored.
        """
        if self.ledger is None:
            return worst_case_of_many(self.history, delta).epsilon
        if not self.elsewhere:
            return self.ledger.worst_case(delta).epsilon
        if self.ledger.declared_selection is not None:
            return math.inf
        recorded = self.ledger.history.repeated_steps(MOST_SETTINGS)
        return worst_case_of_many([*self.elsewhere, *recorded], delta).epsilon

    def claims(self, delta: float = 1e-5, **options: Any) -> RunClaims:
        """Return all claims of the ledger, as ``Ledger.claims`` does with the same options.

        Raises InvalidInputError if ``watch`` gave it no ledger: there is then the worst case only.
        """
        if self.ledger is None:
            raise refuse("ledger", None, "bayesdp.opacus.watch with a ledger; without one there is the worst case only")
        return self.ledger.claims(delta, **options)

    def __len__(self) -> int:
        return sum(steps for _, _, steps in self.history)

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[DPOptimizer], None]:
        """Return what Opacus calls at each step; ``watch`` finds the accountant by it."""
        return AccountantHook(self, sample_rate)

    @property
    def resumes(self) -> bool:
        """Whether a checkpoint was loaded that belongs to a ledger."""
        return self._expected is not None

    def follow(self, ledger: Ledger | LedgerOfRankZero) -> None:
        """Count the steps of a ledger from now on.

        On ranks other than 0, ``ledger`` refuses whatever is asked of it, and so does this accountant. Raises
        LedgerError if a checkpoint was loaded whose steps the ledger does not contain.
        """
        if self._expected is not None and isinstance(ledger, Ledger):
            check_continues(ledger, self._expected)
        self.ledger = cast(Ledger, ledger)

    def state_dict(self, destination: Any = None) -> Any:
        """Return the state for a checkpoint: the steps, and which ledger has them."""
        state = super().state_dict(destination)
        if isinstance(self.ledger, Ledger):  # which it is not on ranks other than 0
            state[_LEDGER] = position_of(self.ledger)
            state[_ELSEWHERE] = list(self.elsewhere)
        return state

    def load_state_dict(self, state_dict: Any) -> None:
        """Restore the state of a checkpoint.

        Raises LedgerError, and changes nothing, if the ledger does not contain the steps of the checkpoint.
        """
        expected = (state_dict or {}).get(_LEDGER)
        if expected is not None and isinstance(self.ledger, Ledger):
            check_continues(self.ledger, expected)
        super().load_state_dict(state_dict)
        self.history = [(float(noise), float(rate), int(steps)) for noise, rate, steps in self.history]
        self.elsewhere = list(self.history) if expected is None else list(state_dict.get(_ELSEWHERE, []))
        self._expected = expected
        self.loads += 1


class AccountantHook:
    """What Opacus calls at each step, between noise and update."""

    def __init__(self, accountant: Accountant, sample_rate: float) -> None:
        self.accountant = accountant
        self.watched = False
        "Whether the steps of this optimizer are in a ledger."
        self._sample_rate = sample_rate

    def __call__(self, optimizer: DPOptimizer) -> None:
        """Count the step, with the rate as every accountant of Opacus computes it."""
        rate = self._sample_rate * optimizer.accumulated_iterations
        self.accountant.count(optimizer.noise_multiplier, rate, recorded=self.watched)
