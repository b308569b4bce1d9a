"""The accountant that ``PrivacyEngine(accountant="bayesdp")`` creates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from opacus.accountants import IAccountant
from opacus.optimizers import DPOptimizer

from bayesdp.guarantees.clip_bound import MOST_SETTINGS
from bayesdp.guarantees.worst_case import worst_case_of
from bayesdp.ledger.position import check_continues, position
from bayesdp.mechanisms.gaussian import RepeatedStep
from bayesdp.run_ledger import Ledger
from bayesdp.validation import refuse

if TYPE_CHECKING:
    from bayesdp.claims import RunClaims

_LEDGER, _ELSEWHERE = "bayesdp_ledger", "bayesdp_elsewhere"


class Accountant(IAccountant):
    """Worst-case epsilon by PLD, for everyone; with a ledger, from ``watch``, also everything else that is claimed.

    Alone it knows what Opacus tells every accountant: noise multiplier and sampling rate. With a ledger, epsilon is
    that of the steps that were really taken.
    """

    def __init__(self) -> None:
        super().__init__()
        self.history: list[RepeatedStep] = []
        self.ledger: Ledger | None = None
        "The last one that ``watch`` gave it."
        self._ledgers: list[Ledger] = []
        self._elsewhere: list[RepeatedStep] = []
        "Steps that are in no ledger: before ``watch``, or after the watch was closed."
        self._expected: Mapping[str, Any] | None = None

    @classmethod
    def mechanism(cls) -> str:
        """The name under which Opacus finds it."""
        return "bayesdp"

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """One more step, which is in no ledger."""
        self.count(noise_multiplier, sample_rate, recorded=False)

    def count(self, noise_multiplier: float, sample_rate: float, *, recorded: bool) -> None:
        """One more step; ``recorded``: it is in a ledger."""
        for runs in [self.history] if recorded else [self.history, self._elsewhere]:
            noise, rate, steps = float(noise_multiplier), float(sample_rate), 1
            if runs and runs[-1][:2] == (noise, rate):
                steps += runs.pop()[2]
            runs.append((noise, rate, steps))

    def get_epsilon(self, delta: float, **_: Any) -> float:
        """The worst case so far; 0 before the first step."""
        if not self._ledgers:
            return worst_case_of(self.history, delta=delta).epsilon
        if len(self._ledgers) == 1 and not self._elsewhere:
            return self._ledgers[0].worst_case(delta).epsilon
        recorded = [run for ledger in self._ledgers for run in ledger.history.repeated_steps(MOST_SETTINGS)]
        return worst_case_of([*self._elsewhere, *recorded], delta=delta).epsilon

    def claims(self, delta: float = 1e-5, **options: Any) -> RunClaims:
        """All claims of the ledger; see ``Ledger.claims``."""
        if self.ledger is None:
            raise refuse("ledger", None, "bayesdp.opacus.watch with a ledger; without one there is the worst case only")
        return self.ledger.claims(delta, **options)

    def __len__(self) -> int:
        return sum(steps for _, _, steps in self.history)

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[DPOptimizer], None]:
        """The hook by which ``watch`` finds its accountant."""
        return AccountantHook(self, sample_rate)

    @property
    def resumes(self) -> bool:
        """Whether a checkpoint was loaded that belongs to a ledger."""
        return self._expected is not None

    def follow(self, ledger: Ledger) -> None:
        """From now on the steps of a ledger count."""
        if self._expected is not None:
            check_continues(ledger, self._expected)
        self.ledger = ledger
        if ledger not in self._ledgers:
            self._ledgers.append(ledger)

    def state_dict(self, destination: Any = None) -> Any:
        """For a checkpoint: the steps, and which ledger has them."""
        state = super().state_dict(destination)
        if self.ledger is not None:
            state[_LEDGER] = position(self.ledger)
            state[_ELSEWHERE] = list(self._elsewhere)
        return state

    def load_state_dict(self, state_dict: Any) -> None:
        """From a checkpoint; a ledger that does not contain its steps is refused, and then nothing changes."""
        expected = (state_dict or {}).get(_LEDGER)
        if expected is not None and self.ledger is not None:
            check_continues(self.ledger, expected)
        super().load_state_dict(state_dict)
        self.history = [(float(noise), float(rate), int(steps)) for noise, rate, steps in self.history]
        self._elsewhere = list(self.history) if expected is None else list(state_dict.get(_ELSEWHERE, []))
        self._expected = expected


class AccountantHook:
    """What Opacus calls after each step."""

    def __init__(self, accountant: Accountant, sample_rate: float) -> None:
        self.accountant = accountant
        self.watched = False
        "Whether the steps of this optimizer are in a ledger."
        self._sample_rate = sample_rate

    def __call__(self, optimizer: DPOptimizer) -> None:
        """Count it, as every accountant of Opacus does."""
        rate = self._sample_rate * optimizer.accumulated_iterations
        self.accountant.count(optimizer.noise_multiplier, rate, recorded=self.watched)
