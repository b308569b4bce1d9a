"""Claims for a share of the population, by order statistics of the audit records' own epsilons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayesdp.claims.claim import Claim
from bayesdp.estimators import order_statistic_rank, records_needed
from bayesdp.formatting import percent
from bayesdp.validation import FloatArray

NO_AUDIT = "no audit records: the worst case is all that can be claimed"
SAMPLED = "the audit records were drawn from the population and not used to train, choose or stop"

_STRICTER = (
    "An ex-post epsilon may exceed the worst case: it bounds the loss itself, which exceeds epsilon with probability "
    "at most delta, and asks for more than (epsilon, delta)-DP does."
)


@dataclass(frozen=True)
class RecordEpsilons:
    """Epsilons of audit records, [m]: what the run has cost them for sure, and the tighter figure of a fixed run."""

    ex_post: FloatArray
    estimate: FloatArray
    estimate_method: str

    def of(self, records: NDArray[np.int64]) -> RecordEpsilons:
        """Those of some of the records."""
        return RecordEpsilons(self.ex_post[records], self.estimate[records], self.estimate_method)


@dataclass(frozen=True)
class ShareClaims:
    """Two claims for one share, beside each other, never one for the other."""

    ex_post: Claim
    estimate: Claim


def share_claims(
    epsilons: RecordEpsilons,
    shares: Sequence[float],
    *,
    delta: float,
    gamma: float,
    note: str,
    group: str | None,
    worst_case: Claim,
) -> list[ShareClaims]:
    """For each share the k-th smallest epsilon, k such that it is below the true quantile with probability gamma."""
    records = len(epsilons.ex_post)
    found: list[ShareClaims] = []
    for share in shares:
        rank = order_statistic_rank(records, share, gamma) if records else None
        too_few = None
        if rank is None:
            needed = records_needed(share, gamma)
            too_few = (
                f"a share of {percent(share)} at gamma={gamma:g} needs {needed} audit records, there are {records}"
            )
        common = Claim(
            epsilon=math.inf,
            delta=delta,
            audience="share",
            share=share,
            group=group,
            samples=records,
            gamma=gamma,
            direction="record out",
            kind="ex-post",
            method="costs along the run, mixture of orders, order statistics",
            assumptions=(SAMPLED,),
            reason=too_few,
            worst_case=worst_case,
        )
        loss = _ranked(epsilons.ex_post, rank)
        larger = (_STRICTER,) if worst_case.epsilon < loss < math.inf else ()
        ex_post = common.with_figure(loss, notes=(note, *larger))
        estimate = common.with_figure(
            _ranked(epsilons.estimate, rank),
            kind="estimate",
            direction="both",
            method=f"{epsilons.estimate_method}, order statistics",
            assumptions=(SAMPLED, "the norms would have been the same, whatever was released before"),
            notes=(note,),
        )
        found.append(ShareClaims(ex_post, estimate))
    return found


def share_epsilon(epsilons: FloatArray, share: float, gamma: float) -> float | None:
    """What a share of the population does not exceed, with confidence 1 - gamma; None if there are too few records."""
    rank = order_statistic_rank(len(epsilons), share, gamma) if len(epsilons) else None
    return None if rank is None else _ranked(epsilons, rank)


def _ranked(values: FloatArray, rank: int | None) -> float:
    return math.inf if rank is None else float(np.partition(values, rank - 1)[rank - 1])
