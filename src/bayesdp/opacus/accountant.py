"""The accountant that ``PrivacyEngine(accountant="bayesdp")`` creates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from opacus.accountants import IAccountant
from opacus.optimizers import DPOptimizer

from bayesdp.ledger import Ledger, LedgerError
from bayesdp.validation import InvalidInputError, refuse
from bayesdp.worst_case import worst_case_of

if TYPE_CHECKING:
    from bayesdp.claim import Claim

_LEDGER = "bayesdp_ledger"


class Accountant(IAccountant):
    """Worst-case epsilon by PLD, for everyone; with a ledger, from ``watch``, also everything else that is claimed.

    Alone it knows what Opacus tells every accountant: noise multiplier and sampling rate. With a ledger, epsilon is
    that of the steps that were really taken.
    """

    def __init__(self) -> None:
        super().__init__()
        self.history: list[tuple[float, float, int]] = []
        self.ledger: Ledger | None = None
        "Set by ``watch``."
        self._expected: Mapping[str, Any] | None = None

    @classmethod
    def mechanism(cls) -> str:
        """The name under which Opacus finds it."""
        return "bayesdp"

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """One more step."""
        noise, rate = float(noise_multiplier), float(sample_rate)
        if self.history and self.history[-1][:2] == (noise, rate):
            self.history[-1] = (noise, rate, self.history[-1][2] + 1)
        else:
            self.history.append((noise, rate, 1))

    def get_epsilon(self, delta: float, **_: Any) -> float:
        """The worst case so far; 0 before the first step."""
        if self.ledger is not None and self.ledger.steps:
            return self.ledger.worst_case(delta).epsilon
        return worst_case_of(self.history, delta=delta).epsilon

    def claims(self, delta: float = 1e-5, **options: Any) -> list[Claim]:
        """All claims of the ledger; see ``Ledger.claims``."""
        if self.ledger is None:
            raise refuse("ledger", None, "bayesdp.opacus.watch with a ledger; without one there is the worst case only")
        return self.ledger.claims(delta, **options)

    def __len__(self) -> int:
        return sum(steps for _, _, steps in self.history)

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[DPOptimizer], None]:
        """The hook by which ``watch`` finds its accountant."""
        return AccountantHook(self, super().get_optimizer_hook_fn(sample_rate))

    @property
    def resumes(self) -> bool:
        """Whether a checkpoint was loaded that belongs to a ledger."""
        return self._expected is not None

    def follow(self, ledger: Ledger) -> None:
        """From now on the steps of a ledger count."""
        if self._expected is not None:
            check_continues(ledger, self._expected)
        self.ledger = ledger

    def state_dict(self, destination: Any = None) -> Any:
        """For a checkpoint: the steps, and which ledger has them."""
        state = super().state_dict(destination)
        if self.ledger is not None:
            state[_LEDGER] = ledger_state(self.ledger)
        return state

    def load_state_dict(self, state_dict: Any) -> None:
        """From a checkpoint; a ledger that does not contain its steps is refused, and then nothing changes."""
        expected = (state_dict or {}).get(_LEDGER)
        if expected is not None and self.ledger is not None:
            check_continues(self.ledger, expected)
        super().load_state_dict(state_dict)
        self.history = [(float(noise), float(rate), int(steps)) for noise, rate, steps in self.history]
        self._expected = expected


class AccountantHook:
    """What Opacus calls after each step."""

    def __init__(self, accountant: Accountant, count: Callable[[DPOptimizer], None]) -> None:
        self.accountant = accountant
        self._count = count

    def __call__(self, optimizer: DPOptimizer) -> None:
        """Count it."""
        self._count(optimizer)


def ledger_state(ledger: Ledger) -> dict[str, Any]:
    """Where a ledger stood, for a checkpoint."""
    history = ledger.history
    return {"run": ledger.run, "steps": history.steps, "hash": history.hash.hex()}


def check_continues(ledger: Ledger, state: Mapping[str, Any]) -> None:
    """That a ledger contains the steps of a checkpoint; those it has beyond were released as well, and stay."""
    try:
        run, steps, link = str(state["run"]), int(state["steps"]), str(state["hash"])
    except (KeyError, TypeError, ValueError):
        raise InvalidInputError(f"state={dict(state)!r}: expected what state_dict gave.") from None
    if ledger.run != run:
        raise LedgerError(ledger.path, f"is of run {ledger.run}, the checkpoint of run {run}")
    if ledger.steps < steps or ledger.history.hash_at(steps).hex() != link:
        raise LedgerError(ledger.path, f"does not contain the {steps} steps before the checkpoint")
