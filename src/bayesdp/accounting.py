"""From recorded norms of audit records to privacy figures: what ``bayesdp account`` does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bayesdp import validation
from bayesdp.accountant import BayesianAccountant
from bayesdp.claim import Claim, finite_or_none, statement
from bayesdp.claims import Asked, LedgerClaims, ledger_claims
from bayesdp.claims.shares import ShareClaims
from bayesdp.estimators import StudentT
from bayesdp.ledger import Ledger
from bayesdp.norms_file import check_norms
from bayesdp.validation import FloatArray, InvalidInputError, refuse
from bayesdp.worst_case import WorstCase

Track = Callable[[Sequence[Any]], Iterable[Any]]


@dataclass(frozen=True, kw_only=True)
class Account:
    """All claims of a run; ``bayesian`` is the paper's, by Hölder composition."""

    claims: LedgerClaims
    bayesian: Claim

    @property
    def worst_case(self) -> WorstCase:
        """Classic differential privacy, for everyone."""
        return self.claims.worst_case

    def all(self) -> list[Claim]:
        """Every claim, the worst case first."""
        return replace(self.claims, bayesian=self.bayesian).all()

    def statement(self) -> str:
        """All claims in words."""
        return statement(self.all())

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: figures that cannot be claimed are None with a reason."""
        paper, average = self.bayesian, self.claims.average
        values: dict[str, Any] = {
            "worst_case": self.worst_case.to_dict(),
            "bayesian": {
                "epsilon": finite_or_none(paper.epsilon),
                "delta": paper.delta,
                "lambda": paper.order,
                "gamma": paper.gamma,
                "kind": paper.kind,
                "reason": paper.reason,
                "notes": list(paper.notes),
            },
            "shares": [_share(one) for one in self.claims.shares],
            "average": {
                "epsilon": finite_or_none(average.epsilon),
                "delta": average.delta,
                "gamma": average.gamma,
                "estimator": self.claims.estimator,
                "kind": average.kind,
                "reason": average.reason,
                "notes": list(average.notes),
            },
        }
        if self.claims.groups:
            values["groups"] = {name: [_share(one) for one in group] for name, group in self.claims.groups.items()}
        if self.claims.for_rows is not None:
            values["rows"] = self.claims.for_rows.to_dict()
        return values


def _share(claims: ShareClaims) -> dict[str, Any]:
    sure, estimate = claims.ex_post, claims.estimate
    return {
        "share": sure.share,
        "epsilon": finite_or_none(sure.epsilon),
        "estimate_epsilon": finite_or_none(estimate.epsilon),
        "gamma": sure.gamma,
        "direction": sure.direction,
        "records": sure.samples,
        "reason": sure.reason or estimate.reason,
    }


def account(
    norms: Any,
    *,
    clip: float,
    sample_rate: float,
    noise_std: float | None = None,
    noise_multiplier: float | None = None,
    delta: float = 1e-5,
    gamma: float = 0.01,
    shares: Iterable[float] = (0.5, 0.9, 0.99),
    paper_gamma: float = 1e-15,
    joint: bool = False,
    estimator: str = "betting",
    fixed_exposures: bool = False,
    groups: Sequence[str] | None = None,
    rows: int = 1,
    ledger: str | Path | None = None,
    track: Track = iter,
) -> Account:
    """Account a run from the norms of audit records, [steps, records], before clipping.

    ``noise_std`` is the standard deviation of the noise on the sum of clipped gradients, ``noise_multiplier`` the same
    over ``clip``: give one of them. ``paper_gamma`` is the failure probability of the paper's estimator at one step
    and order. ``gamma``, ``shares``, ``joint``, ``estimator``, ``fixed_exposures`` and ``rows`` are those of
    ``Ledger.claims``; ``groups`` names the group of each record, for shares by group. Every step goes into a ledger: a
    new file ``ledger``, or one in memory. ``track`` may wrap the steps, for a progress bar.
    """
    steps = check_norms(norms)
    clip = validation.positive("clip", clip)
    rate = validation.sample_rate(sample_rate)
    noise = _noise(clip, noise_std, noise_multiplier)
    asked = Asked(
        delta=delta,
        gamma=gamma,
        shares=shares,
        joint=joint,
        estimator=estimator,
        fixed_exposures=fixed_exposures,
        rows=rows,
    )
    paper = StudentT(gamma=validation.probability("paper_gamma", paper_gamma))
    validation.noise_multiplier(noise / clip)
    if groups is not None and len(groups) != steps.shape[1]:
        raise refuse("len(groups)", len(groups), f"a group for each of the {steps.shape[1]} records")
    with Ledger(audit_groups=groups) if ledger is None else Ledger.create(ledger, audit_groups=groups) as kept:
        for row in steps:
            kept.step(noise_std=noise, sample_rate=rate, clip=clip, audit=row, source="account")
        claims = ledger_claims(kept, asked)
    try:
        bayesian = replace(_bayesian(steps, noise, clip, rate, asked.delta, paper, track), worst_case=claims.everyone)
        if math.isinf(bayesian.epsilon):
            bayesian = bayesian.without("the noise is too small for these norms")
    except InvalidInputError as error:
        bayesian = claims.bayesian.without(str(error))
    return Account(claims=claims, bayesian=bayesian)


def _bayesian(
    steps: FloatArray,
    noise: float,
    clip: float,
    rate: float,
    delta: float,
    estimator: StudentT,
    track: Track,
) -> Claim:
    accountant = BayesianAccountant(total_steps=len(steps), estimator=estimator, audit=True)
    if delta <= accountant.total_gamma:  # before the work, not after
        accountant.epsilon(delta)
    for row in track(list(steps)):
        accountant.step(row, noise_std=noise, sample_rate=rate, clip=clip)
    return accountant.claim(delta)


def _noise(clip: float, noise_std: float | None, noise_multiplier: float | None) -> float:
    if (noise_std is None) == (noise_multiplier is None):
        given = "neither" if noise_std is None else "both"
        raise refuse("noise_std, noise_multiplier", given, "exactly one of them")
    if noise_std is not None:
        return validation.noise_std(noise_std)
    return validation.noise_std(validation.noise_multiplier(noise_multiplier) * clip)
