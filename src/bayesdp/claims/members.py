"""Claims about members: the people who were trained on, of whom nothing private is read.

An audit set shows how exposed people are who were left out. Members are like them, except that each of them took part
and may have changed the run; how much they can have changed it, the guarantee for everyone bounds. Two theorems
(docs/theory.md) make claims of this. D are n records and A_1 .. A_m the audit set, all drawn from one population; X is
a member picked at random; "without X" is the run that leaves X out.

Shares. Let tau be the k-th smallest of the audit records' epsilons. Without X, X and the audit records would be
exchangeable, so X's epsilon would exceed tau with probability at most a = 1 - k/(m+1). For fixed records that is an
event of the outputs; so with X in the data it has probability at most min_epsilon [e^epsilon a + delta(epsilon)], with
delta the profile of the guarantee for everyone.

Levels. Let B be a cost that was fixed with the plan. For X, stop the run just before X's cost would exceed B: whatever
this run shows about X is bounded by B, however it was steered. Without X, the event that X exceeds B while at most k
audit records do has probability at most (k+1)/(m+1); so with X it has at most the bound above, where delta is now the
profile of B itself. It is smaller than that of everyone, so levels are useful where the guarantee for everyone is weak.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bayesdp.claims.claim import OWN_DELTA, Claim
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.claims.shares import NOT_USED
from bayesdp.formatting import percent, percent_up
from bayesdp.guarantees.clip_bound import CLIP_BOUND_LAMBDAS, ClipBound
from bayesdp.guarantees.trade_off import Guarantee, probability_with
from bayesdp.profiles import gaussian_delta, gaussian_epsilon
from bayesdp.profiles.conversion import record_deltas, record_epsilons
from bayesdp.validation import FloatArray

LEVELS = (0.25, 0.5, 0.75)
"""The levels of every plan, as fractions of what the whole plan costs a record at the clip bound."""
LIKE_THE_AUDIT = (
    "the people trained on and the audit records were drawn from the same population, independently of each other"
)
_POINTS = 128  # epsilons at which the bound is computed; any are sound
_PROBABILITY = (
    "The probability is over the data, the audit set and the run together, so lines for several probabilities are all "
    "true at once."
)
_NO_GUARANTEE = "there is no guarantee for everyone to start from"
_TOO_FEW = "there are too few audit records for this share of the people trained on"


def member_claims(
    figures: RecordFigures,
    bound: Guarantee | None,
    shares: Sequence[float],
    delta: float,
    worst_case: Claim,
    looks: int = 1,
) -> tuple[Claim, ...]:
    """Return for each share what holds for a random member with that probability; ``bound`` is that of everyone.

    With several ``looks``, it is the probability that this holds at all of them, by the union bound.
    """
    records = len(figures.ex_post_in)
    claim = Claim(
        epsilon=math.inf,
        delta=delta,
        audience="members",
        direction="record in",
        kind="ex-post",
        method="rank among the audit records, and how much one record can change the run",
        condition=worst_case.condition,
        samples=records,
        assumptions=(LIKE_THE_AUDIT, NOT_USED),
        notes=(_PROBABILITY, OWN_DELTA),
        worst_case=worst_case,
    )
    if bound is None or math.isinf(worst_case.epsilon):
        return tuple(replace(claim, share=share, reason=_NO_GUARANTEE) for share in shares)
    exceeding = 1 - np.arange(1, records + 1) / (records + 1)
    epsilons = np.linspace(0.0, worst_case.epsilon, _POINTS)
    with_them = probability_with(exceeding, epsilons, bound.deltas(epsilons, delta))
    ordered = np.sort(figures.ex_post_in)
    listed: list[Claim] = []
    for share in shares:
        ranks = np.flatnonzero(with_them * looks <= 1 - share)
        figure = ordered[ranks[0]] if len(ranks) else math.inf
        named = claim.with_figure(float(figure), share=share)
        listed.append(named.capped() if len(ranks) else named.without(_TOO_FEW))
    return tuple(listed)


def level_claims(
    figures: RecordFigures, planned: ClipBound, delta: float, worst_case: Claim, looks: int = 1
) -> tuple[Claim, ...]:
    """Return what holds at each of ``LEVELS`` of the plan: its epsilon, and how probably a random member keeps to it.

    With several ``looks``, it is the probability that this holds at all of them, by the union bound. Only levels that
    more than half of the members keep to are claimed. Where the plan has no sampling, a level is a sum of squared
    exposures; a run that sampled nevertheless counts other costs, and nothing is claimed.
    """
    if planned.unsampled and not figures.unsampled:
        return ()
    listed: list[Claim] = []
    records = len(figures.costs)
    for level in LEVELS:
        budget = planned.costs * level
        exceed = int(np.count_nonzero((figures.costs > budget).any(axis=1)))
        epsilon = _epsilon_of(planned, budget, delta)
        epsilons = np.linspace(0.0, 2 * epsilon, _POINTS)
        deltas = _deltas_of(planned, budget, epsilons)
        most = looks * float(probability_with(np.array((exceed + 1) / (records + 1)), epsilons, deltas))
        claim = Claim(
            epsilon=epsilon,
            delta=delta,
            audience="members",
            direction="record in",
            kind="ex-post",
            method=f"level declared with the plan: {percent(level)} of what the plan costs at the clip bound",
            share=math.floor(1000 * (1 - most)) / 1000,
            samples=records,
            assumptions=(LIKE_THE_AUDIT, NOT_USED),
            notes=(
                f"The probability that a random member exceeds this level, while at most {exceed} of {records} audit "
                f"records do, is at most {percent_up(most)}.",
            ),
            worst_case=worst_case,
        )
        if most <= 0.5 and epsilon < worst_case.epsilon:
            listed.append(claim)
    return tuple(listed)


def _epsilon_of(planned: ClipBound, budget: FloatArray, delta: float) -> float:
    """Return epsilon of a run that costs a record at most ``budget`` [L], however it is steered."""
    if planned.unsampled:
        return float(gaussian_epsilon(_exposure(budget), delta))
    return float(record_epsilons(budget[None], CLIP_BOUND_LAMBDAS, delta)[0])


def _deltas_of(planned: ClipBound, budget: FloatArray, epsilons: FloatArray) -> FloatArray:
    """Return the profile of such a run, in both directions, [G]."""
    if planned.unsampled:
        return gaussian_delta(_exposure(budget), epsilons)
    return record_deltas(budget[None], CLIP_BOUND_LAMBDAS, epsilons)[0]


def _exposure(budget: FloatArray) -> float:
    """Return the exposure of all steps together, without sampling: the cost at order 1 is the sum of squares."""
    return math.sqrt(budget[0]) * (1 + 2.0**-50)
