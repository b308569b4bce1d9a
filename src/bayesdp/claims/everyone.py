"""The claim for everyone: the worst case of the steps in a ledger, with the caveats it rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import replace

from bayesdp.claims.budget import declared_budget
from bayesdp.claims.claim import Claim
from bayesdp.claims.ex_post import hockey_stick_epsilons
from bayesdp.claims.gate import UNSEEN
from bayesdp.claims.plan import DeclaredPlan, declared_plan
from bayesdp.claims.selected import TOO_LITTLE, selected_bound, selected_worst_case, uncovered
from bayesdp.claims.shares import NOT_USED, SAMPLED
from bayesdp.claims.spending import BudgetBound, Spending
from bayesdp.formatting import round_up
from bayesdp.guarantees.clip_bound import MOST_SETTINGS, ClipBound, worst_case_of_many
from bayesdp.guarantees.selection import SelectedBound
from bayesdp.guarantees.trade_off import Guarantee
from bayesdp.guarantees.worst_case import WorstCase
from bayesdp.ledger import CAVEATS, JAX_PRIVACY, OPACUS, Caveat, StoredLedger
from bayesdp.mechanisms.gaussian import RepeatedStep
from bayesdp.mechanisms.order_mixture import OrderMixture

_FOR_EVERYONE = frozenset({"everything"})
_FOR_AVERAGES = _FOR_EVERYONE | {"audit"}
_FOR_SHARES = _FOR_AVERAGES | {"shares"}
"""What caveats must weaken to turn a claim into an estimate. The gate is a claim about an average."""
IF_NOT_LOOKED = "if the number of steps and the settings did not depend on earlier results"
"""The condition of a worst case that no plan covers."""
OWN_GRADIENTS = Caveat(
    "the training loop computed one gradient for each record drawn, from that record alone: it took none twice and "
    "none of an earlier batch, mixed none with others and used no statistics of a batch, nor its size",
    "nothing",
)
"""What no program beside a loop can see in full: a library clips the gradients that it is given, one for each row."""
_LOOPS = frozenset([OPACUS, JAX_PRIVACY])
"""The programs that record the steps of somebody's own training loop."""
UNCLIPPED = "a step without a clip bound has no worst case"


def ledger_caveats(ledger: StoredLedger) -> list[Caveat]:
    """Return what the claims of a ledger rest on: the caveats of its steps, and what was declared with it.

    A number of training records that was declared is public: sampling rates and denominators usually come from it.
    A loop that trains with Opacus or JAX Privacy is the user's own, so what it may not do is said.

    Audit records that settings were chosen by, or that decided when to stop, are no fresh sample for the model that
    came of it. So a declared use weakens all that is computed from them, and replaces the assumption that they were
    not used.
    """
    declared = [] if ledger.training_records is None else ["records-public"]
    caveats = [CAVEATS[name] for name in dict.fromkeys([*declared, *ledger.history.caveats])]
    if any(stretch.source in _LOOPS for stretch in ledger.history.stretches):
        caveats.append(OWN_GRADIENTS)
    if ledger.audit_used_for is not None:
        text = f"the audit records were drawn from the population and were used for: {ledger.audit_used_for}"
        caveats.append(Caveat(text, "audit", contradicts=(SAMPLED, NOT_USED, *UNSEEN)))
    return caveats


def ledger_worst_case(ledger: StoredLedger, delta: float, more: RepeatedStep | None = None) -> WorstCase:
    """Return classic differential privacy for everyone: of all steps in a ledger, and of ``more`` to come.

    An infinite epsilon with a reason if a step had no clip bound.
    """
    history = ledger.history
    if not history.clipped:
        worst = _nothing(delta, UNCLIPPED)
    else:
        worst = worst_case_of_many(history.repeated_steps(MOST_SETTINGS, more), delta)
    return _with_caveats(worst, ledger)


def _nothing(delta: float, reason: str) -> WorstCase:
    infinite = math.inf
    return WorstCase(
        epsilon=infinite, delta=delta, accountant="RDP", rdp_epsilon=infinite, pld_epsilon=None, reason=reason
    )


def guaranteed_worst_case(ledger: StoredLedger, delta: float) -> WorstCase:
    """Return what is guaranteed to everyone: by the plan, by the budget, or by the steps taken with their condition.

    With a plan that the run has kept to, it is the worst case of the whole plan, whenever the run ended. With a
    declared budget that its steps have kept, it is the budget, however they were chosen. With both it is the smaller,
    and both must have been kept: whoever may choose, by looking, to break one of them and still have the other would
    need up to twice delta (docs/theory.md). In all other cases it is that of the steps taken, which is proved only if
    nobody chose them by looking at results. A run that was chosen among others has the worst case of the choice, and
    none if it left its plan, or if its ledger does not say that it was chosen.
    """
    plan, spending = declared_plan(ledger), _declared_spending(ledger)
    broken: list[str] = []
    if plan is not None and (departure := plan.departure(ledger.history.stretches)):
        broken.append(f"The run left its plan: {departure}.")
    if spending is not None and not spending.kept:
        broken.append(f"The run exceeded its budget at step {spending.exceeded}.")
    if plan is not None and (selected := selected_bound(ledger)) is not None:
        reason = uncovered(ledger)
        worst = selected_worst_case(plan, selected, delta) if reason is None else _nothing(delta, reason)
        return _with_caveats(worst, ledger)
    guaranteed: list[WorstCase] = []
    if plan is not None and not broken:
        basis = f"the plan of {plan.steps} step{'s' * (plan.steps != 1)}"
        note = f"It is that of {basis}, declared before the run, whenever the run ended."
        guaranteed.append(replace(worst_case_of_many(plan.repeated_steps(), delta), basis=basis, note=note))
    if spending is not None and not broken:
        guaranteed.append(_of_budget(spending, delta))
    if not guaranteed:
        return replace(ledger_worst_case(ledger, delta), condition=IF_NOT_LOOKED, note=" ".join(broken) or None)
    return _with_caveats(min(guaranteed, key=lambda worst: worst.epsilon), ledger)


def _of_budget(spending: Spending, delta: float) -> WorstCase:
    """Return what a budget guarantees that was kept: itself, and at another delta what its filter allows."""
    epsilon, budget = float(spending.bound().epsilons([delta])[0]), spending.budget
    basis = f"the budget of {budget.epsilon} at delta {budget.delta:g}"
    return WorstCase(
        epsilon=epsilon,
        delta=delta,
        accountant="budget",
        rdp_epsilon=epsilon,
        pld_epsilon=None,
        basis=basis,
        note=f"It is {basis}, declared before the run and kept by its steps, however they were chosen.",
    )


def _declared_spending(ledger: StoredLedger) -> Spending | None:
    budget = declared_budget(ledger)
    return None if budget is None else Spending(budget, ledger)


def kept_plan(ledger: StoredLedger) -> DeclaredPlan | None:
    """Return the plan of a ledger if every step so far kept to it, and to the budget if one was declared beside it.

    None for a run that may be chosen among others until its ledger says that it was.
    """
    plan, spending = declared_plan(ledger), _declared_spending(ledger)
    if plan is None or uncovered(ledger) is not None or plan.departure(ledger.history.stretches):
        return None
    return None if spending is not None and not spending.kept else plan


def kept_budget(ledger: StoredLedger) -> Spending | None:
    """Return what was spent of the declared budget, if there is one and every step so far has kept it.

    Beside a plan, only steps of the plan keep it.
    """
    spending = _declared_spending(ledger)
    return spending if spending is not None and spending.kept else None


def guaranteed_clip_bound(
    ledger: StoredLedger, taken: ClipBound | None
) -> ClipBound | BudgetBound | SelectedBound | None:
    """Return the bound that belongs to ``guaranteed_worst_case``; ``taken`` is that of the steps in the ledger.

    It is that of the whole plan if the run has kept to one, that of a declared budget if its steps have kept it (with
    both, the one with the smaller epsilon at the delta of the budget), otherwise ``taken``. For a run that was chosen
    among others it is that of the choice; None where that is not known (``uncovered``).
    """
    plan, spending = kept_plan(ledger), kept_budget(ledger)
    if (selected := selected_bound(ledger)) is not None:
        return None if plan is None else selected
    of_plan = None if plan is None else ClipBound.of(plan.repeated_steps())
    if spending is None:
        return taken if of_plan is None else of_plan
    of_budget, delta = spending.bound(), spending.budget.delta
    smaller = of_plan is None or of_budget.epsilons([delta])[0] < of_plan.epsilons([delta])[0]
    return of_budget if smaller else of_plan


def anytime_claim(
    bound: ClipBound | None, mixture: OrderMixture, delta: float, caveats: Sequence[Caveat], worst_case: Claim
) -> Claim:
    """Return what holds for everyone however the number of steps and their settings were chosen.

    The hockey-stick form of the ex-post bound (``hockey_stick_epsilons``) for a record at the clip bound in every step
    that was taken; so it is a statement about the run that took place. ``mixture`` is that of the record in, whose
    costs are never below those of the other direction.
    """
    claim = Claim(
        epsilon=math.inf,
        delta=delta,
        audience="everyone",
        direction="both",
        kind="ex-post",
        method="mixture of orders at the clip bound",
        notes=("It holds however the number of steps and the settings were chosen, also by looking at results.",),
        worst_case=worst_case,
    )
    if bound is None:
        return claim.without(UNCLIPPED)
    costs = bound.mixture_costs(mixture)[None]
    return resting_on(claim.with_figure(float(hockey_stick_epsilons(costs, delta, mixture)[0])), caveats)


def ledger_clip_bound(
    ledger: StoredLedger, more: RepeatedStep | None = None, *, through: int | None = None
) -> ClipBound | None:
    """Return the costs of a record that is at the clip bound in every step; None if a step had no clip bound.

    ``more`` adds steps to come; ``through`` looks only at the first so many steps.
    """
    if not ledger.history.clipped:
        return None
    return ClipBound.of(ledger.history.repeated_steps(MOST_SETTINGS, more, through=through))


def everyone_claim(worst: WorstCase, caveats: Sequence[Caveat] = ()) -> Claim:
    """Return the worst case as a claim; a caveat that weakens everything turns it into an estimate."""
    claim = Claim(
        epsilon=worst.epsilon,
        delta=worst.delta,
        audience="everyone",
        direction="both",
        kind="proved",
        method=worst.accountant,
        condition=worst.condition,
        notes=worst.notes,
        reason=(worst.reason or TOO_LITTLE) if math.isinf(worst.epsilon) else None,
    )
    return resting_on(claim, caveats)


def left_out_claim(bound: Guarantee | None, everyone: Claim) -> Claim | None:
    """Return what is guaranteed to everyone who was left out of the data; None if it is no less than for everyone.

    ``bound`` is the one behind ``everyone``, whose kind, condition and assumptions it shares. It bounds how surely the
    release shows that somebody was left out: one of the two directions that the claim for everyone covers.
    """
    if bound is None or math.isinf(everyone.epsilon):
        return None
    epsilon = float(bound.epsilons_out([everyone.delta])[0])
    if round_up(min(epsilon, everyone.epsilon)) == round_up(everyone.epsilon):
        return None
    return replace(everyone, epsilon=epsilon, direction="record out", method="PLD", worst_case=everyone)


def resting_on(claim: Claim, caveats: Sequence[Caveat]) -> Claim:
    """Return the claim with the caveats of the steps among its assumptions.

    A bound becomes an estimate if a caveat weakens it: one that weakens "everything"; for a claim from audit records,
    one that weakens "audit"; and unless that is an average, one that weakens "shares". If the caveat contradicts
    assumptions it replaces them, and a claim that relies on a model becomes an estimate too.
    """
    if claim.own_epsilon is not None:
        return claim  # it is the claim for everyone, which names them already
    weakening = {"everyone": _FOR_EVERYONE, "average": _FOR_AVERAGES}.get(claim.audience, _FOR_SHARES)
    if claim.private:
        weakening = _FOR_EVERYONE
    weakened = [caveat for caveat in caveats if caveat.weakens in weakening]
    contradicted = [text for caveat in weakened for text in caveat.contradicts]
    is_bound = claim.kind in ("proved", "ex-post")
    kind = "estimate" if contradicted or (weakened and is_bound) else claim.kind
    kept = (text for text in claim.assumptions if text not in contradicted)
    return replace(claim, kind=kind, assumptions=(*kept, *_said(caveats, weakening)))


def _with_caveats(worst: WorstCase, ledger: StoredLedger) -> WorstCase:
    caveats = ledger_caveats(ledger)
    doubtful = any(caveat.weakens == "everything" for caveat in caveats)
    return replace(worst, assumptions=_said(caveats, _FOR_EVERYONE), kind="estimate" if doubtful else "proved")


def _said(caveats: Sequence[Caveat], weakening: Set[str]) -> tuple[str, ...]:
    """Return the caveats that a claim must name: those that weaken it, and those of its kind that weaken nothing."""
    named = {"all", *weakening}
    return tuple(
        caveat.text
        for caveat in caveats
        if caveat.weakens in weakening or (caveat.weakens == "nothing" and caveat.named_by in named)
    )
