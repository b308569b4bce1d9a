"""From recorded norms of audit records to privacy figures: what ``bayesdp account`` does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesdp import validation
from bayesdp.accountant import BayesianAccountant
from bayesdp.claim import Claim
from bayesdp.estimators import StudentT
from bayesdp.ledger import Ledger
from bayesdp.norms_file import check_norms
from bayesdp.validation import FloatArray, InvalidInputError, refuse
from bayesdp.worst_case import WorstCase

_LATER = "not available in this version of bayesdp"

Track = Callable[[Sequence[Any]], Iterable[Any]]


@dataclass(frozen=True, kw_only=True)
class Account:
    """The worst case of a run and the paper's Bayesian claim (None with ``reason`` where it cannot be made)."""

    worst_case: WorstCase
    bayesian: Claim | None
    reason: str | None
    delta: float
    gamma: float
    shares: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: figures that cannot be claimed are None with a reason."""
        claim = self.bayesian
        finite = claim is not None and math.isfinite(claim.epsilon)
        reason = self.reason if claim is None else None
        if claim is not None and not finite:
            reason = "no finite epsilon: the noise is too small for these norms"
        return {
            "worst_case": self.worst_case.to_dict(),
            "bayesian": {
                "epsilon": claim.epsilon if claim is not None and finite else None,
                "delta": self.delta,
                "lambda": claim.order if claim else None,
                "gamma": claim.gamma if claim else None,
                "kind": "model-based",
                "reason": reason,
                "notes": list(claim.notes) if claim else [],
            },
            "shares": [
                {
                    "share": share,
                    "epsilon": None,
                    "estimate_epsilon": None,
                    "gamma": self.gamma,
                    "direction": "record out",
                    "reason": _LATER,
                }
                for share in self.shares
            ],
            "average": {
                "epsilon": None,
                "delta": self.delta,
                "gamma": self.gamma,
                "estimator": "betting",
                "kind": "estimate",
                "reason": _LATER,
            },
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
    ledger: str | Path | None = None,
    track: Track = iter,
) -> Account:
    """Account a run from the norms of audit records, [steps, records], before clipping.

    ``noise_std`` is the standard deviation of the noise on the sum of clipped gradients, ``noise_multiplier`` the same
    over ``clip``: give one of them. ``paper_gamma`` is the failure probability of the paper's estimator at one step
    and order. Every step goes into a ledger: a new file ``ledger``, or one in memory. ``track`` may wrap the steps, for
    a progress bar.
    """
    steps = check_norms(norms)
    clip = validation.positive("clip", clip)
    rate = validation.sample_rate(sample_rate)
    noise = _noise(clip, noise_std, noise_multiplier)
    delta = validation.probability("delta", delta)
    gamma = validation.probability("gamma", gamma)
    listed = tuple(validation.probability("shares", share) for share in shares)
    estimator = StudentT(gamma=validation.probability("paper_gamma", paper_gamma))
    validation.noise_multiplier(noise / clip)
    with Ledger() if ledger is None else Ledger.create(ledger) as kept:
        for row in steps:
            kept.step(noise_std=noise, sample_rate=rate, clip=clip, audit=row, source="account")
        everyone = kept.worst_case(delta)
    claim, reason = None, None
    try:
        claim = _bayesian(steps, noise, clip, rate, delta, estimator, track)
    except InvalidInputError as error:
        reason = str(error)
    return Account(worst_case=everyone, bayesian=claim, reason=reason, delta=delta, gamma=gamma, shares=listed)


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
