"""All claims of a ledger, side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bayesdp.claim import Claim, confidence
from bayesdp.claims import paper
from bayesdp.claims.asked import Asked
from bayesdp.claims.average import floor, least_epsilon
from bayesdp.claims.figures import Figures
from bayesdp.claims.rows import rows_claim
from bayesdp.claims.shares import NO_AUDIT, SAMPLED, RecordEpsilons, ShareClaims, share_claims
from bayesdp.ledger import Ledger
from bayesdp.ledger.caveats import CAVEATS, Caveat
from bayesdp.profiles import Precision
from bayesdp.worst_case import WorstCase


@dataclass(frozen=True)
class LedgerClaims:
    """The claims of a run by whom they cover."""

    worst_case: WorstCase
    everyone: Claim
    for_rows: Claim | None
    shares: list[ShareClaims]
    groups: dict[str, list[ShareClaims]]
    average: Claim
    estimator: str
    bayesian: Claim
    gate: tuple[Claim, ...]
    private: tuple[Claim, ...]
    figures: Figures = field(compare=False, repr=False)
    "What they were made of, for whoever needs more of it."

    def all(self) -> list[Claim]:
        """Every claim, the worst case first."""
        listed = [self.everyone] + ([self.for_rows] if self.for_rows else [])
        for one in [*self.shares, *(claims for group in self.groups.values() for claims in group)]:
            listed += [one.ex_post, one.estimate]
        return [*listed, self.average, self.bayesian, *self.gate, *self.private]

    def resting_on(self, caveats: Sequence[Caveat]) -> LedgerClaims:
        """The same with what the steps rest on said in every claim; the one for everyone says it already."""

        def both(one: ShareClaims) -> ShareClaims:
            return ShareClaims(_resting_on(one.ex_post, caveats), _resting_on(one.estimate, caveats))

        return replace(
            self,
            shares=[both(one) for one in self.shares],
            groups={name: [both(one) for one in claims] for name, claims in self.groups.items()},
            average=_resting_on(self.average, caveats),
            bayesian=_resting_on(self.bayesian, caveats),
            gate=tuple(_resting_on(one, caveats) for one in self.gate),
            private=tuple(_resting_on(one, caveats) for one in self.private),
        )


def ledger_claims(ledger: Ledger, asked: Asked, precision: Precision | None = None) -> LedgerClaims:
    """What may be said about a run."""
    delta, records, gate = asked.delta, ledger.audit_records, ledger.gate
    worst = ledger.worst_case(delta)
    rests_on = [CAVEATS[name] for name in ledger.history.caveats]
    everyone = everyone_claim(worst, rests_on)
    figures = Figures(ledger, delta, worst.epsilon, precision)
    shares, groups = _shares(figures, ledger.audit_groups or [], asked, everyone) if records else ([], {})
    met = gate is not None and gate.met(ledger.costs([gate.at])[:, 0])
    found = LedgerClaims(
        worst_case=worst,
        everyone=everyone,
        for_rows=rows_claim(figures.clip_bound, everyone, asked.rows) if asked.rows > 1 else None,
        shares=shares,
        groups=groups,
        average=_average(figures, asked, records, everyone),
        estimator=asked.estimator,
        bayesian=paper.from_audit(figures, delta=delta, worst_case=everyone),
        gate=gate.claims(met=met, worst_case=everyone) if gate is not None else (),
        private=(paper.from_batches(ledger, delta=delta, worst_case=everyone),) if asked.private else (),
        figures=figures,
    )
    return found.resting_on(rests_on) if rests_on else found


def _shares(
    figures: Figures, groups: list[str], asked: Asked, everyone: Claim
) -> tuple[list[ShareClaims], dict[str, list[ShareClaims]]]:
    """For all audit records, and for those of each group."""
    shares, names = tuple(asked.shares), sorted(set(groups))
    together = len(shares) * (1 + len(names))
    alone = "Each share holds by itself, not all of them together."
    note = f"All {together} shares hold together with {confidence(asked.gamma)} confidence." if asked.joint else alone
    gamma = asked.gamma / together if asked.joint and together else asked.gamma

    def claims_of(epsilons: RecordEpsilons, group: str | None = None) -> list[ShareClaims]:
        return share_claims(
            epsilons, shares, delta=asked.delta, gamma=gamma, note=note, group=group, worst_case=everyone
        )

    epsilons = RecordEpsilons(figures.ex_post, figures.estimates, figures.method)
    members: dict[str, list[int]] = {name: [] for name in names}
    for number, name in enumerate(groups):
        members[name].append(number)
    return claims_of(epsilons), {name: claims_of(epsilons.of(np.array(those)), name) for name, those in members.items()}


def _resting_on(claim: Claim, caveats: Sequence[Caveat]) -> Claim:
    """A claim with what the steps rest on; no more than an estimate where that weakens it."""
    weakened = {"everything"} if claim.audience == "everyone" else {"everything", "audit"}
    bound = claim.kind in ("proved", "ex-post")
    return replace(
        claim,
        kind="estimate" if bound and any(one.weakens in weakened for one in caveats) else claim.kind,
        assumptions=(*claim.assumptions, *(one.text for one in caveats if one.weakens in {"nothing", *weakened})),
    )


def everyone_claim(worst: WorstCase, caveats: Sequence[Caveat] = ()) -> Claim:
    """The worst case as a claim."""
    claim = Claim(
        epsilon=worst.epsilon,
        delta=worst.delta,
        audience="everyone",
        direction="both",
        kind="proved",
        method=worst.accountant,
        reason=(worst.reason or "the noise is too small") if math.isinf(worst.epsilon) else None,
    )
    return _resting_on(claim, caveats)


def _average(figures: Figures, asked: Asked, records: int, everyone: Claim) -> Claim:
    estimator, delta, fixed = asked.average_estimator, asked.delta, asked.fixed_exposures
    claim = Claim(
        epsilon=math.inf,
        delta=delta,
        audience="average",
        direction="both",
        kind="proved" if fixed and estimator.monotone else "estimate",
        method=f"{type(estimator).__name__} on the delta of each audit record",
        samples=records or None,
        gamma=estimator.gamma,
        assumptions=(
            SAMPLED,
            "exposures were fixed before the run"
            if fixed
            else "the norms would have been the same, whatever was released before",
        ),
        worst_case=everyone,
    )
    if records < 3:
        return claim.without(NO_AUDIT if not records else f"an average needs 3 audit records, there are {records}")
    steps, known = figures.plausible_steps, math.isfinite(everyone.epsilon)
    while True:
        epsilons, bounds = figures.walk[:steps], figures.bounds[:steps]
        walked = least_epsilon(estimator, epsilons, figures.deltas(steps), bounds, delta, known=known)
        if not walked.to_the_end or steps == len(figures.walk):
            break
        steps = min(4 * steps, len(figures.walk))
    if math.isinf(walked.epsilon):
        return claim.without(f"{records} audit records do not support an average delta of {delta:g}")
    least = floor(estimator, records, figures.walk, figures.bounds, delta)
    note = f"No sample of {records} audit records could support an average epsilon below {least:.3g}."
    return claim.with_figure(walked.epsilon, notes=(note,) if least else ())
