"""The claim for everyone: the worst case of the steps in a ledger, and what it rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from bayesdp.claims.claim import Claim
from bayesdp.guarantees.clip_bound import MOST_SETTINGS, ClipBound, worst_case_of_many
from bayesdp.guarantees.worst_case import WorstCase
from bayesdp.ledger import StoredLedger
from bayesdp.ledger.caveats import CAVEATS, Caveat
from bayesdp.mechanisms.gaussian import RepeatedStep

_UNCLIPPED = "a step without a clip bound has no worst case"


def ledger_worst_case(ledger: StoredLedger, delta: float, more: RepeatedStep | None = None) -> WorstCase:
    """Return classic differential privacy of all steps of a ledger, and of ``more`` to come, for everyone."""
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
    return replace(worst, assumptions=tuple(CAVEATS[name].text for name in history.caveats))


def ledger_clip_bound(ledger: StoredLedger, more: RepeatedStep | None = None) -> ClipBound | None:
    """Return a record that is at the clip bound in every step of a ledger; None if a step had no bound."""
    if not ledger.history.clipped:
        return None
    return ClipBound.of(ledger.history.repeated_steps(MOST_SETTINGS, more))


def everyone_claim(worst: WorstCase, caveats: Sequence[Caveat] = ()) -> Claim:
    """Return the worst case as a claim; no more than an estimate where a caveat weakens it."""
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
    """Return a claim that says what the steps rest on; no more than an estimate where that weakens it."""
    weakening = {"everything"} if claim.audience == "everyone" else {"everything", "audit"}
    is_bound = claim.kind in ("proved", "ex-post")
    weakened = is_bound and any(caveat.weakens in weakening for caveat in caveats)
    said = tuple(caveat.text for caveat in caveats if caveat.weakens in {"nothing", *weakening})
    kind = "estimate" if weakened else claim.kind
    return replace(claim, kind=kind, assumptions=(*claim.assumptions, *said))
