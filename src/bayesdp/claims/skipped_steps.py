"""What it cost to compute norms of audit records at some steps only, and to charge the clip bound at the others."""

from __future__ import annotations

from collections.abc import Sequence

from bayesdp.claims.claim import Claim
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.claims.shares import share_epsilon
from bayesdp.formatting import percent, round_up


def price_of_skipped_steps(figures: RecordFigures, claims: Sequence[Claim], steps: int) -> str | None:
    """Return a sentence about the first share of ``claims`` that would have a smaller epsilon; None if none would.

    Its figure is an estimate (``RecordFigures.ex_post_if_always_audited``), and the sentence says "about".
    """
    always = figures.ex_post_if_always_audited()
    if always is None:
        return None
    for claim in claims:
        share = claim.share or 0.0
        epsilon = None if claim.reason else share_epsilon(always, share, claim.gamma)
        if epsilon is not None and epsilon < claim.epsilon:
            who = "half" if share == 0.5 else percent(share)
            return (
                f"norms of audit records were computed at {figures.audited_steps:,} of {steps:,} steps, and the clip "
                f"bound was charged at the others; computed at every step, {who} would have been at about "
                f"{round_up(epsilon)}."
            )
    return None
