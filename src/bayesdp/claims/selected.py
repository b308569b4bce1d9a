"""A run that was chosen among others: what its claims become (``bayesdp.guarantees.selection`` has the mathematics).

The claim for everyone is that of the whole selection. What is ex-post about one record survives at a price: of the law
of what is released, phi(F(w)) Q(w) with the record and phi(F'(w)) Q'(w) without, the factors phi are at most E[K], and
their ratio is at most R, the largest that the trade-off function of a trial allows. If epsilon(w) is ex-post for a
trial at delta / E[K], in the hockey-stick form,

    integral (phi(F) Q - e^(epsilon(w) + log R) phi(F') Q')_+  <=  integral phi(F) (Q - e^epsilon(w) Q')_+  <=  delta,

so epsilon(w) + log R is ex-post for what was released, at delta; the Markov form likewise. The audit records played no
part in the choice, so they are still a fresh sample of the population, given what was released.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from bayesdp.claims.plan import DeclaredPlan, declared_plan
from bayesdp.formatting import finite_or_none, round_up
from bayesdp.guarantees.clip_bound import ClipBound
from bayesdp.guarantees.selection import (
    EitherTrial,
    GaussianTrial,
    SelectedBound,
    Selection,
    renyi_selection_epsilon,
)
from bayesdp.guarantees.worst_case import WorstCase
from bayesdp.ledger import CAVEATS, StoredLedger

CHOSEN = CAVEATS["chosen"].text
"""What all claims of a run rest on that was chosen among others."""
NOT_CHOSEN = (
    "the run may be chosen among others, and its ledger does not say that it was: the choice was not finished, or fell "
    "on another run"
)
"""Why nothing is claimed about a run of whose choice the ledger knows nothing (``Ledger.mark_chosen``)."""
LEFT_PLAN = "the run was chosen among others and left its plan, for which alone it is known what choosing costs"
"""Why nothing is claimed about such a run."""
TOO_LITTLE = "the noise is too small"
"""Why there is no figure where no other reason is known."""
WITHHELD = "the run was chosen among others, and what that does to this figure is not known"
"""Why a claim is not made about a run that was chosen."""


def declared_selection(ledger: StoredLedger) -> Selection | None:
    """Return the selection that was declared when a ledger was created, if there is one."""
    declared = ledger.declared_selection
    return None if declared is None else Selection.from_json(declared)


def uncovered(ledger: StoredLedger) -> str | None:
    """Return in words why it is not known what choosing a run among others costs; None if it is, or if it was not.

    That is known for the plan of the run, and for one whose ledger was marked as the chosen one at its last step.
    """
    plan = declared_plan(ledger)
    if ledger.declared_selection is None or plan is None:
        return None
    if plan.departure(ledger.history.stretches) is not None:
        return LEFT_PLAN
    return None if ledger.history.chosen else NOT_CHOSEN


@dataclass(frozen=True)
class SelectionPrice:
    """What a selection makes of a figure about one record: it is taken at ``delta / mean``, and ``log_ratio`` added.

    The price is infinite where it is not known (``uncovered``).
    """

    mean: float = 1.0
    log_ratio: float = 0.0

    @staticmethod
    def of(ledger: StoredLedger) -> SelectionPrice:
        """Return the price of the declared selection; nothing if there is none."""
        bound = selected_bound(ledger)
        if bound is None:
            return SelectionPrice()
        return SelectionPrice(bound.selection.mean, bound.log_ratio if uncovered(ledger) is None else math.inf)


@dataclass(frozen=True, kw_only=True)
class SelectionFigures:
    """A selection in figures, all public: trials on average, epsilon of one trial and of the whole, at ``delta``.

    Where nothing is guaranteed, ``epsilon`` is infinite and ``reason`` says why; then no claim covers the choice.
    """

    mean: float
    trial_epsilon: float
    epsilon: float
    delta: float
    reason: str | None = None

    @property
    def covered(self) -> bool:
        """Whether the claims cover the choice."""
        return self.reason is None

    def statement(self) -> str:
        """Return what the choice cost, in words; or that it is not covered, and why."""
        if self.reason is not None:
            return f"not covered, because {self.reason}."
        return (
            f"covered. This is the best of a random number of private runs, {self.mean:g} on average, each with a "
            f"private score of its own. One run alone has epsilon at most {round_up(self.trial_epsilon)}; with the "
            f"choice it is {round_up(self.epsilon)}, and every other figure includes the choice too."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; figures that are not finite become None, with a ``reason``."""
        values = asdict(self)
        for name in ("trial_epsilon", "epsilon"):
            values[name] = finite_or_none(values[name])
        if self.reason is None:
            del values["reason"]
        else:
            values["trial_epsilon"] = None  # of a plan that was not kept
        return values


def selected_bound(ledger: StoredLedger) -> SelectedBound | None:
    """Return the profile of the declared selection for everyone, if each trial kept to the plan; None without one."""
    selection, plan = declared_selection(ledger), declared_plan(ledger)
    return None if selection is None or plan is None else _bound(selection, plan)


@lru_cache(maxsize=8)
def _bound(selection: Selection, plan: DeclaredPlan) -> SelectedBound:
    steps = plan.repeated_steps()
    if all(rate == 1 for _, rate, _ in steps):
        mu = math.sqrt(math.fsum(count / noise**2 for noise, _, count in steps))
        return SelectedBound(GaussianTrial(max(mu * (1 + 2.0**-40), selection.exposure or 0.0)), selection)
    alone = ClipBound.of(steps)
    if selection.exposure is None:
        return SelectedBound(alone, selection)
    return SelectedBound(EitherTrial(alone, GaussianTrial(selection.exposure)), selection)


def selected_worst_case(plan: DeclaredPlan, bound: SelectedBound, delta: float) -> WorstCase:
    """Return what is guaranteed to everyone by the best of several runs with this plan."""
    mean = bound.selection.mean
    each = f"the plan of {plan.steps} steps" if bound.selection.exposure is None else "a plan that reveals no more"
    basis = f"the best of a random number of runs, {mean:g} on average, each with {each}"
    return WorstCase(
        epsilon=float(bound.epsilons([delta])[0]),
        delta=delta,
        accountant="selection",
        rdp_epsilon=renyi_selection_epsilon(bound.selection, plan.repeated_steps(), delta),
        pld_epsilon=None,
        basis=basis,
        note=f"It is that of {basis}, declared before the run.",
    )


def selection_figures(ledger: StoredLedger, worst: WorstCase) -> SelectionFigures | None:
    """Return the figures of the declared selection beside its worst case; None without one."""
    bound = selected_bound(ledger)
    if bound is None:
        return None
    alone = float(bound.trial.epsilons([worst.delta])[0])
    return SelectionFigures(
        mean=bound.selection.mean,
        trial_epsilon=alone,
        epsilon=worst.epsilon,
        delta=worst.delta,
        reason=(worst.reason or TOO_LITTLE) if math.isinf(worst.epsilon) else None,
    )
