"""The claim for everyone: the worst case of the steps in a ledger, with the caveats it rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import replace

from bayesdp.claims.claim import Claim
from bayesdp.guarantees.clip_bound import MOST_SETTINGS, ClipBound, worst_case_of_many
from bayesdp.guarantees.worst_case import WorstCase
from bayesdp.ledger import CAVEATS, Caveat, StoredLedger
from bayesdp.mechanisms.gaussian import RepeatedStep

_FOR_EVERYONE, _FOR_OTHERS = frozenset({"everything"}), frozenset({"everything", "audit"})
"""What caveats must weaken to turn a claim into an estimate."""
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
    caveats = [CAVEATS[name] for name in history.caveats]
    doubtful = any(caveat.weakens == "everything" for caveat in caveats)
    return replace(worst, assumptions=_said(caveats, _FOR_EVERYONE), kind="estimate" if doubtful else "proved")


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
        reason=(worst.reason or "the noise is too small") if math.isinf(worst.epsilon) else None,
    )
    return resting_on(claim, caveats)


def resting_on(claim: Claim, caveats: Sequence[Caveat]) -> Claim:
    """Return the claim with the caveats of the steps among its assumptions.

    A bound becomes an estimate if a caveat weakens it: one that weakens "everything", or, unless the claim is for
    everyone, one that weakens "audit".
    """
    weakening = _FOR_EVERYONE if claim.audience == "everyone" else _FOR_OTHERS
    is_bound = claim.kind in ("proved", "ex-post")
    weakened = is_bound and any(caveat.weakens in weakening for caveat in caveats)
    kind = "estimate" if weakened else claim.kind
    return replace(claim, kind=kind, assumptions=(*claim.assumptions, *_said(caveats, weakening)))


def _said(caveats: Sequence[Caveat], weakening: Set[str]) -> tuple[str, ...]:
    """Return the caveats that a claim must name: those that weaken it, and those that weaken nothing."""
    return tuple(caveat.text for caveat in caveats if caveat.weakens in {"nothing", *weakening})
