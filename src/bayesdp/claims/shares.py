"""Claims about a share of the population, by order statistics of the audit records' own epsilons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayesdp.claims.claim import OWN_DELTA, Claim
from bayesdp.claims.ex_post import Form
from bayesdp.estimators import order_statistic_rank, records_needed
from bayesdp.formatting import percent
from bayesdp.validation import FloatArray

NO_AUDIT = "no audit records: the worst case is all that can be claimed"
SAMPLED = "the audit records were drawn from the population and not used to train, choose or stop"
NOT_USED = "the audit records were not used to train, choose or stop"
FIXED_NORMS = "the norms would have been the same whatever had been released before"

_FORM_NOTES: dict[Form, str] = {
    "hockey-stick": "For each of them, anything the release may show has at most e^epsilon times the probability it "
    "would have had with that person in the data, plus delta; epsilon is the person's own figure in this run.",
    "markov": "For each of them, the privacy loss itself exceeds the person's own epsilon in this run with probability "
    "at most delta, which is stricter than (epsilon, delta)-DP.",
}


_BOTH = (
    "The estimate exceeds the ex-post figure because it also covers people who were in the data; with sampled batches "
    "a release shows more surely that somebody was there than that somebody was not."
)


@dataclass(frozen=True)
class RecordEpsilons:
    """Epsilons of audit records, [m]: what the run has surely cost them, and a smaller estimate.

    ``estimate`` would be a bound if the exposures had been fixed before the run.
    """

    ex_post: FloatArray
    estimate: FloatArray
    estimate_method: str
    form: Form = "hockey-stick"

    def of(self, records: NDArray[np.int64]) -> RecordEpsilons:
        """Return the epsilons of a selection of records, given by their numbers [k]."""
        return RecordEpsilons(self.ex_post[records], self.estimate[records], self.estimate_method, self.form)


@dataclass(frozen=True)
class ShareClaims:
    """The two claims about one share: ``ex_post`` is sure for the run that took place, ``estimate`` is not a bound.

    They are shown beside each other; neither replaces the other.
    """

    ex_post: Claim
    estimate: Claim

    def without(self, reason: str) -> ShareClaims:
        """Return a pair that claims nothing, and says why."""
        return ShareClaims(self.ex_post.withheld(reason), self.estimate.withheld(reason))


def share_claims(
    epsilons: RecordEpsilons,
    shares: Sequence[float],
    *,
    delta: float,
    gamma: float,
    note: str,
    group: str | None,
    worst_case: Claim,
    left_out: Claim | None = None,
) -> tuple[ShareClaims, ...]:
    """Return the two claims for each share, from the k-th smallest epsilon of the audit records.

    k is the smallest rank for which that epsilon lies below the share's true quantile with probability at most
    ``gamma``. Where there are too few records for any rank, the claims have no figure and say how many are needed.
    ``note`` is added to every claim; ``group`` names the records, if they are those of one group. No figure exceeds
    ``worst_case``, and no ex-post one ``left_out``, what is guaranteed to everyone who was left out, if that is less.
    """
    records = len(epsilons.ex_post)
    pairs: list[ShareClaims] = []
    for share in shares:
        rank = order_statistic_rank(records, share, gamma) if records else None
        too_few = too_few_records(share, gamma, records) if rank is None else None
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
            method=f"costs along the run, {epsilons.form} form, order statistics",
            assumptions=(SAMPLED,),
            reason=too_few,
            worst_case=worst_case,
        )
        ex_post = common.with_figure(
            _ranked(epsilons.ex_post, rank), notes=(_FORM_NOTES[epsilons.form], OWN_DELTA, note)
        )
        ex_post = ex_post if too_few else ex_post.capped(left_out)
        estimated = _ranked(epsilons.estimate, rank)
        estimate = common.with_figure(
            estimated,
            kind="estimate",
            direction="both",
            method=f"{epsilons.estimate_method}, order statistics",
            assumptions=(SAMPLED, FIXED_NORMS),
            notes=(note, _BOTH) if estimated > ex_post.epsilon else (note,),
        )
        pairs.append(ShareClaims(ex_post, estimate))
    return tuple(pairs)


def too_few_records(share: float, gamma: float, records: int) -> str:
    """Return why nothing can be claimed about a share, and how many audit records would do."""
    needed = records_needed(share, gamma)
    return f"a share of {percent(share)} at gamma={gamma:g} needs {needed} audit records; there are {records}"


def share_epsilon(epsilons: FloatArray, share: float, gamma: float) -> float | None:
    """Return the epsilon that a share of the population does not exceed, with confidence 1 - gamma.

    ``epsilons`` [m] are those of the audit records; None if there are too few of them.
    """
    rank = order_statistic_rank(len(epsilons), share, gamma) if len(epsilons) else None
    return None if rank is None else _ranked(epsilons, rank)


def _ranked(values: FloatArray, rank: int | None) -> float:
    return math.inf if rank is None else float(np.partition(values, rank - 1)[rank - 1])
