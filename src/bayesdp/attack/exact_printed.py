"""Figures as they are printed: the smaller of a record's ex-post epsilon and of what is guaranteed to everyone.

Each of the two holds at delta. Whoever takes the smaller after the run takes what holds at the sum of both deltas, and
hardly less: an adversary stops being loud as soon as a large loss passes the ex-post figure, and otherwise goes on to
where the guarantee caps it. So the minimum must stand at twice delta, and break at delta.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Literal

import numpy as np

from bayesdp.attack.exact_subjects import LOST, Counts, Direction, Subject, counted, in_words
from bayesdp.claims.claim import Claim
from bayesdp.claims.plan import Plan
from bayesdp.run_ledger import Ledger

Whose = Literal["share", "member"]
_SHARE = 0.5
_RECORDS: dict[Whose, int] = {"share": 20, "member": 400}
"""So many audit records that half of the people have a figure."""


def subjects(small: bool, *, at_one_delta: bool) -> list[Subject]:
    """Return figures of shares, capped by everyone's and by that of people left out, and of members."""
    return [
        printed("share", 1.0, 0.3, 12, at_one_delta=at_one_delta)
        if small
        else printed("share", 1.0, 0.1, 100, at_one_delta=at_one_delta),
        printed("share", 0.3, 1.0, 8, delta=1e-4, at_one_delta=at_one_delta),
        printed("member", 0.1, 0.3, 20 if small else 40, at_one_delta=at_one_delta),
    ]


def without_a_plan(steps: int, delta: float = 1e-5) -> Subject:
    """The same for a share without a plan, read as if it did not name the condition of the guarantee that caps it.

    The guarantee for everyone left out is then that of the steps taken, and somebody stops by looking.
    """
    rate, exposure = 0.5, 0.1

    @cache
    def epsilon_of(counts: Counts) -> float:
        if not sum(counts):
            return math.inf  # nothing is printed
        ledger = Ledger()
        for _ in range(counts[0]):
            ledger.step(noise_std=1 / exposure, sample_rate=rate, clip=1.0, audit=np.ones(_RECORDS["share"]))
        claim = ledger.claims(delta, shares=(_SHARE,)).share(_SHARE).ex_post
        assert claim.condition is not None
        return claim.epsilon

    start, choices = counted(((rate, exposure),), steps)
    return Subject(
        name=f"half of people, as printed without a plan, {in_words(((rate, exposure),), steps)}",
        claim="the smaller of ex-post and everyone left out, its condition ignored",
        kind="ex-post",
        start=start,
        choices=choices,
        epsilon_of=epsilon_of,
        delta=2 * delta,
        spacing=LOST / steps,
        directions=("record out",),
        should_break=True,
        note="the statement says of such figures that they rest on the condition of the guarantee",
    )


def printed(
    whose: Whose, rate: float, exposure: float, steps: int, *, delta: float = 1e-5, at_one_delta: bool = False
) -> Subject:
    """The figure that a ledger prints for half of the people; their steps are loud until the adversary goes quiet.

    Claimed is the sum of both deltas; ``at_one_delta``, as if the minimum of two figures were a third one at delta.
    """
    menu, records = ((rate, exposure),), _RECORDS[whose]
    plan = Plan(steps=steps, noise_std=1 / exposure, sample_rate=rate, clip=1.0)

    @cache
    def claim_of(counts: Counts) -> Claim:
        ledger = Ledger(plan=plan)
        for number in range(steps):
            norms = np.full(records, 1.0 if number < counts[0] else 0.0)
            ledger.step(noise_std=1 / exposure, sample_rate=rate, clip=1.0, audit=norms)
        claims = ledger.claims(delta, shares=(_SHARE,))
        if whose == "share":
            return claims.share(_SHARE).ex_post
        return next(claim for claim in claims.members if claim.share == _SHARE)

    start, choices = counted(menu, steps)
    capped = claim_of((steps,))
    assert capped.own_epsilon is not None
    direction: Direction = "record in" if whose == "member" else "record out"
    guaranteed = "everyone left out" if capped.direction == "record out" else "everyone"
    held = "at one delta" if at_one_delta else "at the sum of both deltas"
    return Subject(
        name=f"half of {'members' if whose == 'member' else 'people'}, as printed, who are loud in up to {steps} steps "
        f"of (rate {rate:g}, exposure {exposure:g})",
        claim=f"the smaller of ex-post and {guaranteed}, {held}",
        kind="ex-post",
        start=start,
        choices=choices,
        epsilon_of=lambda counts: claim_of(counts).epsilon,
        delta=delta if at_one_delta else 2 * delta,
        spacing=LOST / steps,
        directions=(direction,),
        should_break=at_one_delta,
        note="each figure alone holds at delta; the smaller of the two costs the delta of both",
    )
