"""Steps that the engine's accountant has counted and the ledger does not contain: they are charged, or refused.

A ledger that begins in the middle of a run would claim too little: after ``load_checkpoint`` with a new ledger, or when
``watch`` is called after an epoch, the model has released more than the ledger knows. Every accountant of Opacus keeps
its history as (noise multiplier, sampling rate, steps), so these steps are recorded first, with audit records at the
clip bound, and a caveat says where the figures come from. Where the history does not say enough, ``watch`` refuses: a
shuffled loader (Opacus counts amplification that did not take place), a plan, budget or gate (they must be declared
before the first step), a ledger that contains some of the steps and not others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from opacus.accountants import IAccountant

from bayesdp.ledger import OPACUS
from bayesdp.mechanisms.gaussian import RepeatedStep
from bayesdp.opacus.accountant import Accountant, AccountantHook
from bayesdp.opacus.clipping import FlatClipping
from bayesdp.opacus.sampling import Sampling
from bayesdp.run_ledger import Ledger
from bayesdp.validation import refuse

_recorded: WeakKeyDictionary[IAccountant, dict[str, int]] = WeakKeyDictionary()
"""How many steps of an accountant are in the ledger of each run, as far as this process has seen it."""
_AROUND = 3  # functions around Opacus' own hook that are looked into


class EarlierSteps:
    """What the accountant of a run has counted, compared with a ledger."""

    def __init__(self, optimizer: Any, sampling: Sampling, clipping: FlatClipping, batches: int) -> None:
        self._accountant = _accountant_of(optimizer.step_hook)
        self._sampling, self._clipping, self._batches = sampling, clipping, batches
        self._ledger: Ledger | None = None
        self._counted: tuple[int, int, RepeatedStep | None] = (0, 0, None)
        "Steps and entries of the history when it was last looked at, and its last entry."
        self._to_charge: list[RepeatedStep] = []
        self._loads = 0
        self._seen = 0

    @property
    def accountant(self) -> IAccountant | None:
        """The accountant of Opacus that counts the steps; None if it cannot be found."""
        return self._accountant

    @property
    def counted(self) -> int:
        """How many steps the accountant has counted; 0 if it cannot be found."""
        return self._steps

    @property
    def _history(self) -> list[RepeatedStep]:
        history = [] if self._accountant is None else self._accountant.history
        return [(float(noise), float(rate), int(steps)) for noise, rate, steps in history if steps]

    @property
    def _steps(self) -> int:
        """How many steps the accountant has counted; adds up what is new only, as it is asked at every step."""
        history = [] if self._accountant is None else self._accountant.history
        entries, (total, before, last) = len(history), self._counted
        if entries and last is not None and entries == before and history[-1][:2] == last[:2]:
            total += history[-1][2] - last[2]
        elif entries > 1 and entries == before + 1 and history[-2] == last:
            total += history[-1][2]
        else:
            total = sum(steps for *_, steps in history)
        self._counted = int(total), entries, history[-1] if entries else None
        return self._counted[0]

    def check(self, ledger: Ledger | None, *, planned: bool) -> None:
        """Raise InvalidInputError if there are earlier steps that cannot be charged to a ledger; None is a new one."""
        self._to_charge = self._missing(ledger)
        self._check(self._to_charge, ledger, planned=planned)

    def begin(self, ledger: Ledger) -> None:
        """Charge the ledger that was checked with the steps it does not contain; they are on disk when this returns."""
        self._ledger = ledger
        self._charge(self._to_charge)

    def end(self) -> None:
        """Let go of the ledger: what the accountant counts from now on is no business of this watch."""
        self._ledger = None

    def catch_up(self, settle: Callable[[], None]) -> None:
        """Charge steps that were counted meanwhile, by a checkpoint that was loaded or by another optimizer.

        ``settle`` is called first. Raises InvalidInputError if it is not known which steps the ledger lacks.
        """
        accountant, ledger = self._accountant, self._ledger
        if accountant is None or ledger is None:
            return
        ours = isinstance(accountant, Accountant)
        loaded = ours and accountant.loads != self._loads
        if self._steps == self._seen and not loaded and not (ours and accountant.elsewhere):
            return
        settle()
        in_ledger = _recorded[accountant][ledger.run]
        if ours and (loaded or accountant.elsewhere):
            missing = list(accountant.elsewhere)
        elif self._steps <= in_ledger or self._contains(ledger, self._steps):
            missing = []
        elif ledger.steps == 0:
            missing = self._history
        else:
            expected = "one ledger for all optimizers of an engine, and load_checkpoint before watch"
            raise refuse("accountant", f"{self._steps - in_ledger} steps that are not in the ledger", expected)
        self._check(missing, ledger, planned=False)
        self._charge(missing)

    def count(self) -> None:
        """Note that the accountant has counted a step that is in the ledger."""
        if self._accountant is not None and self._ledger is not None:
            _recorded[self._accountant][self._ledger.run] += self._steps - self._seen
            self._seen = self._steps

    def _missing(self, ledger: Ledger | None) -> list[RepeatedStep]:
        """Return the steps of the accountant that are not in a ledger; raise if that is not known."""
        accountant, total = self._accountant, self._steps
        if accountant is None or not total:
            return []
        known = None if ledger is None else _recorded.get(accountant, {}).get(ledger.run)
        resumes = isinstance(accountant, Accountant) and accountant.resumes and known is None
        if isinstance(accountant, Accountant) and ledger is not None and (resumes or ledger is accountant.ledger):
            return list(accountant.elsewhere)
        if known is not None:
            return self._last(total, known)
        if ledger is None or ledger.steps == 0:
            return self._history
        if not self._contains(ledger, total):
            expected = f"the ledger of this run: Opacus has counted {total} steps, and this one does not contain them"
            raise refuse("ledger", ledger.path, expected)
        return []

    def _last(self, total: int, known: int) -> list[RepeatedStep]:
        """Return the last ``total - known`` steps of the history."""
        missing: list[RepeatedStep] = []
        left = total - known
        for noise, rate, steps in reversed(self._history):
            if left > 0:
                missing.insert(0, (noise, rate, min(steps, left)))
                left -= steps
        return missing

    def _contains(self, ledger: Ledger, steps: int) -> bool:
        """Whether a ledger that this process did not write has room for so many updates."""
        return ledger.steps * (1 if self._sampling.rate is not None else max(self._batches, 1)) >= steps

    def _check(self, missing: list[RepeatedStep], ledger: Ledger | None, *, planned: bool) -> None:
        if not missing:
            return
        count = sum(steps for *_, steps in missing)
        steps = f"a new one after {count} steps"
        resume = "Ledger.open of the ledger that has them, or watch before the first step"
        late = "a plan, budget or gate must be declared before it"
        if ledger is not None and ledger.steps:
            steps, resume = f"one without the last {count} steps", "a ledger with every step"
            late = "this one has a plan, budget or gate; a new one without these is charged with all steps"
        if self._sampling.rate is None:
            raise refuse("ledger", steps, f"{resume}: what a shuffled loader did cannot be told from Opacus' history")
        declared = () if ledger is None else (ledger.plan, ledger.budget, ledger.gate)
        if planned or any(promise is not None for promise in declared):
            raise refuse("ledger", steps, f"{resume}: {late}")
        if any(noise <= 0 for noise, *_ in missing):
            raise refuse("noise_multiplier", 0.0, "noise above 0, also in steps before watch: they have no privacy")

    def _charge(self, missing: list[RepeatedStep]) -> None:
        accountant, ledger = self._accountant, self._ledger
        if accountant is None or ledger is None:
            return
        clip = self._clipping.planned_clip()
        for noise, rate, steps in missing:
            draws, drawn = self._draws(rate)
            for _ in range(steps * draws):
                ledger.step(
                    noise_std=noise * clip / math.sqrt(draws),
                    sample_rate=drawn,
                    clip=clip,
                    source=OPACUS,
                    caveats=self._sampling.caveats | {"earlier-steps"},
                )
        if isinstance(accountant, Accountant):
            accountant.elsewhere.clear()
            self._loads = accountant.loads
        self._seen = self._steps
        _recorded.setdefault(accountant, {})[ledger.run] = self._seen

    def _draws(self, rate: float) -> tuple[int, float]:
        """Return how many draws a step holds that Opacus counts at this rate, and the rate of each.

        Opacus multiplies its rate by the number of batches that were accumulated; a sum of k draws is charged as k
        steps with noise s / sqrt(k), as in recording.py.
        """
        now = self._sampling.rate or 1.0
        own = min(1.0, math.ceil(rate * 2.0**24) * 2.0**-24)  # what Opacus' sampler draws at this rate
        if self._sampling.differs_from_opacus:
            return max(1, round(rate * self._batches)), max(own, now)
        nominal = self._sampling.nominal_rate or 1.0
        draws = max(1, round(rate / nominal))
        return (draws, now) if math.isclose(rate, draws * nominal, rel_tol=1e-9) else (1, own)


def _accountant_of(hook: Any, around: int = _AROUND) -> IAccountant | None:
    """Return the accountant that a step hook of Opacus reports to; None if it cannot be found."""
    if isinstance(hook, AccountantHook):
        return hook.accountant
    inside = [cell.cell_contents for cell in getattr(hook, "__closure__", None) or ()]
    inside += [getattr(hook, "__self__", None), getattr(hook, "func", None)]
    for value in inside:
        if isinstance(value, IAccountant):
            return value
    for value in inside:
        if around and callable(value) and (accountant := _accountant_of(value, around - 1)) is not None:
            return accountant
    return None
