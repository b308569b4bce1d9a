"""The claim for everyone: the worst case of the steps in a ledger, with the caveats it rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import replace

import numpy as np

from bayesdp.claims.claim import Claim
from bayesdp.claims.ex_post import ORDERS, hockey_stick_epsilons
from bayesdp.claims.plan import DeclaredPlan, declared_plan
from bayesdp.guarantees.clip_bound import CLIP_BOUND_LAMBDAS, MOST_SETTINGS, ClipBound, worst_case_of_many
from bayesdp.guarantees.worst_case import WorstCase
from bayesdp.ledger import CAVEATS, Caveat, StoredLedger
from bayesdp.mechanisms.gaussian import RepeatedStep

_FOR_EVERYONE = frozenset({"everything"})
_FOR_AVERAGES = _FOR_EVERYONE | {"audit"}
_FOR_SHARES = _FOR_AVERAGES | {"shares"}
"""What caveats must weaken to turn a claim into an estimate. The gate is a claim about an average."""
IF_NOT_LOOKED = "if the number of steps and the settings did not depend on earlier results"
"""The condition of a worst case that no plan covers."""
_UNCLIPPED = "a step without a clip bound has no worst case"


def ledger_worst_case(ledger: StoredLedger, delta: float, more: RepeatedStep | None = None) -> WorstCase:
    """Return classic differential privacy for everyone: of all steps in a ledger, and of ``more`` to come.

    An infinite epsilon with a reason if a step had no clip bound.
    """
    history = ledger.history
    if not history.clipped:
        worst = WorstCase(
            epsilon=math.inf,
            delta=delta,
            accountant="RDP",
            rdp_epsilon=math.inf,
            pld_epsilon=None,
            reason=_UNCLIPPED,
        )
    else:
        worst = worst_case_of_many(history.repeated_steps(MOST_SETTINGS, more), delta)
    return _with_caveats(worst, ledger)


def guaranteed_worst_case(ledger: StoredLedger, delta: float) -> WorstCase:
    """Return what is guaranteed to everyone: the worst case of the plan, or of the steps taken with its condition.

    With a plan that the run has kept to, it is that of the whole plan, whenever the run ended. Without one, or after
    the run left it, it is that of the steps taken, which is proved only if nobody chose them by looking at results.
    """
    plan = declared_plan(ledger)
    departure = None if plan is None else plan.departure(ledger.history.stretches)
    if plan is not None and departure is None:
        planned = worst_case_of_many(plan.repeated_steps(), delta)
        note = f"It is that of the plan of {plan.steps} steps, declared before the run, whenever the run ended."
        return _with_caveats(replace(planned, note=note), ledger)
    note = None if departure is None else f"The run left its plan: {departure}."
    return replace(ledger_worst_case(ledger, delta), condition=IF_NOT_LOOKED, note=note)


def kept_plan(ledger: StoredLedger) -> DeclaredPlan | None:
    """Return the plan of a ledger if one was declared and every step so far revealed no more than planned."""
    plan = declared_plan(ledger)
    return None if plan is None or plan.departure(ledger.history.stretches) else plan


def guaranteed_clip_bound(ledger: StoredLedger, taken: ClipBound | None) -> ClipBound | None:
    """Return the clip bound that belongs to ``guaranteed_worst_case``; ``taken`` is that of the steps in the ledger.

    It is that of the whole plan if the run has kept to one, otherwise ``taken``.
    """
    plan = kept_plan(ledger)
    return taken if plan is None else ClipBound.of(plan.repeated_steps())


def anytime_claim(bound: ClipBound | None, delta: float, caveats: Sequence[Caveat], worst_case: Claim) -> Claim:
    """Return what holds for everyone however the number of steps and their settings were chosen.

    The hockey-stick form of the ex-post bound (``hockey_stick_epsilons``) for a record at the clip bound in every step
    that was taken; so it is a statement about the run that took place.
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
        return claim.without(_UNCLIPPED)
    costs = bound.costs[None, np.searchsorted(CLIP_BOUND_LAMBDAS, ORDERS)]
    return resting_on(claim.with_figure(float(hockey_stick_epsilons(costs, delta)[0])), caveats)


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
        notes=(worst.note,) if worst.note else (),
        reason=(worst.reason or "the noise is too small") if math.isinf(worst.epsilon) else None,
    )
    return resting_on(claim, caveats)


def resting_on(claim: Claim, caveats: Sequence[Caveat]) -> Claim:
    """Return the claim with the caveats of the steps among its assumptions.

    A bound becomes an estimate if a caveat weakens it: one that weakens "everything"; unless the claim is for everyone,
    one that weakens "audit"; and unless it is for everyone or an average, one that weakens "shares".
    """
    weakening = {"everyone": _FOR_EVERYONE, "average": _FOR_AVERAGES}.get(claim.audience, _FOR_SHARES)
    is_bound = claim.kind in ("proved", "ex-post")
    weakened = is_bound and any(caveat.weakens in weakening for caveat in caveats)
    kind = "estimate" if weakened else claim.kind
    return replace(claim, kind=kind, assumptions=(*claim.assumptions, *_said(caveats, weakening)))


def _with_caveats(worst: WorstCase, ledger: StoredLedger) -> WorstCase:
    caveats = [CAVEATS[name] for name in ledger.history.caveats]
    doubtful = any(caveat.weakens == "everything" for caveat in caveats)
    return replace(worst, assumptions=_said(caveats, _FOR_EVERYONE), kind="estimate" if doubtful else "proved")


def _said(caveats: Sequence[Caveat], weakening: Set[str]) -> tuple[str, ...]:
    """Return the caveats that a claim must name: those that weaken it, and those that weaken nothing."""
    return tuple(caveat.text for caveat in caveats if caveat.weakens in {"nothing", *weakening})
