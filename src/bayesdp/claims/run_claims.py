"""Everything that may be said about a run, as one object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

import numpy as np

from bayesdp.claims import bayesian
from bayesdp.claims.average import average_claim
from bayesdp.claims.claim import Claim
from bayesdp.claims.everyone import everyone_claim, ledger_worst_case, resting_on
from bayesdp.claims.gate import declared_gate
from bayesdp.claims.group_rows import rows_claim
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.claims.request import ClaimRequest
from bayesdp.claims.shares import RecordEpsilons, ShareClaims, share_claims
from bayesdp.claims.statement import statement, to_html, to_markdown
from bayesdp.formatting import confidence, finite_or_none
from bayesdp.guarantees.worst_case import WorstCase
from bayesdp.ledger import StoredLedger
from bayesdp.ledger.caveats import CAVEATS, Caveat
from bayesdp.profiles import Precision
from bayesdp.validation import refuse


@dataclass(frozen=True)
class RunClaims(Sequence[Claim]):
    """The claims of a run by whom they cover; also a sequence of all of them, the worst case first.

    ``everyone``: the worst case. ``for_rows``: the same for a person with several rows, if that was asked for.
    ``shares``, ``groups``: for each share what is sure (``ex_post``) and what is estimated (``estimate``), for everyone
    like the audit records and by group of them. ``average``, ``bayesian``: on average, without and with the paper's
    model. ``gate``: record out and record in, if a gate was declared. ``private``: what comes from training members, if
    that was asked for by name.
    """

    worst_case: WorstCase
    everyone: Claim
    for_rows: Claim | None
    shares: tuple[ShareClaims, ...]
    groups: dict[str, tuple[ShareClaims, ...]]
    average: Claim
    estimator: str
    "The name of the estimator of the average."
    bayesian: Claim
    gate: tuple[Claim, ...]
    private: tuple[Claim, ...]
    figures: RecordFigures = field(compare=False, repr=False)
    "Costs and profiles of the records, which the claims were made of."

    def share(self, share: float) -> ShareClaims:
        """Return the two claims for a share that was asked for, ``.ex_post`` and ``.estimate``.

        Raises InvalidInputError for a share that was not asked for, or if there are no audit records.
        """
        for pair in self.shares:
            if pair.ex_post.share == share:
                return pair
        known = ", ".join(f"{pair.ex_post.share:g}" for pair in self.shares) or "none, as there are no audit records"
        raise refuse("share", share, f"one of the shares that were asked for: {known}")

    def all(self) -> list[Claim]:
        """Return every claim, the worst case first."""
        pairs = [*self.shares, *(pair for group in self.groups.values() for pair in group)]
        return [
            self.everyone,
            *([self.for_rows] if self.for_rows else []),
            *(claim for pair in pairs for claim in (pair.ex_post, pair.estimate)),
            self.average,
            self.bayesian,
            *self.gate,
            *self.private,
        ]

    def __len__(self) -> int:
        return len(self.all())

    @overload
    def __getitem__(self, index: int) -> Claim: ...
    @overload
    def __getitem__(self, index: slice) -> list[Claim]: ...
    def __getitem__(self, index: int | slice) -> Claim | list[Claim]:
        return self.all()[index]

    def __iter__(self) -> Iterator[Claim]:
        return iter(self.all())

    def statement(self) -> str:
        """Return all claims in words, and below them what they rest on."""
        return statement(self)

    def __str__(self) -> str:
        return self.statement()

    def to_markdown(self) -> str:
        """Return all claims as Markdown tables for a model card."""
        return to_markdown(self)

    def _repr_html_(self) -> str:
        """Return all claims as tables for a notebook."""
        return to_html(self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: figures that cannot be claimed are None with a reason."""
        values: dict[str, Any] = {
            "worst_case": self.worst_case.to_dict(),
            "bayesian": {**_figures(self.bayesian), "lambda": self.bayesian.order},
            "shares": [_share(pair) for pair in self.shares],
            "average": {**_figures(self.average), "estimator": self.estimator},
        }
        if self.groups:
            values["groups"] = {name: [_share(pair) for pair in group] for name, group in self.groups.items()}
        if self.for_rows is not None:
            values["rows"] = self.for_rows.to_dict()
        return values

    def resting_on(self, caveats: Sequence[Caveat]) -> RunClaims:
        """Return the claims with what the steps rest on said in each; the one for everyone says it already."""

        def both(pairs: Sequence[ShareClaims]) -> tuple[ShareClaims, ...]:
            return tuple(
                ShareClaims(resting_on(pair.ex_post, caveats), resting_on(pair.estimate, caveats)) for pair in pairs
            )

        return replace(
            self,
            shares=both(self.shares),
            groups={name: both(pairs) for name, pairs in self.groups.items()},
            average=resting_on(self.average, caveats),
            bayesian=resting_on(self.bayesian, caveats),
            gate=tuple(resting_on(claim, caveats) for claim in self.gate),
            private=tuple(resting_on(claim, caveats) for claim in self.private),
        )


def _figures(claim: Claim) -> dict[str, Any]:
    return {
        "epsilon": finite_or_none(claim.epsilon),
        "delta": claim.delta,
        "gamma": claim.gamma,
        "kind": claim.kind,
        "reason": claim.reason,
        "notes": list(claim.notes),
    }


def _share(pair: ShareClaims) -> dict[str, Any]:
    sure, estimate = pair.ex_post, pair.estimate
    return {
        "share": sure.share,
        "epsilon": finite_or_none(sure.epsilon),
        "estimate_epsilon": finite_or_none(estimate.epsilon),
        "gamma": sure.gamma,
        "direction": sure.direction,
        "records": sure.samples,
        "reason": sure.reason or estimate.reason,
    }


def run_claims(ledger: StoredLedger, request: ClaimRequest, precision: Precision | None = None) -> RunClaims:
    """Compute everything that may be said about the run of a ledger."""
    delta, gamma, records = request.delta, request.paper_gamma, ledger.audit_records
    gate = declared_gate(ledger)
    worst = ledger_worst_case(ledger, delta)
    rests_on = [CAVEATS[name] for name in ledger.history.caveats]
    everyone = everyone_claim(worst, rests_on)
    figures = RecordFigures(ledger, delta, worst.epsilon, precision)
    shares, groups = _shares(figures, ledger.audit_groups or [], request, everyone) if records else ((), {})
    met = gate is not None and gate.met(ledger.costs([gate.at])[:, 0])
    batches = (bayesian.from_batches(ledger, delta=delta, gamma=gamma, worst_case=everyone),) if request.private else ()
    claims = RunClaims(
        worst_case=worst,
        everyone=everyone,
        for_rows=rows_claim(figures.clip_bound, everyone, request.rows) if request.rows > 1 else None,
        shares=shares,
        groups=groups,
        average=average_claim(figures, request, records, everyone),
        estimator=request.estimator,
        bayesian=bayesian.from_audit(figures, delta=delta, gamma=gamma, worst_case=everyone),
        gate=gate.claims(met=met, worst_case=everyone) if gate is not None else (),
        private=batches,
        figures=figures,
    )
    return claims.resting_on(rests_on) if rests_on else claims


def _shares(
    figures: RecordFigures, groups: list[str], request: ClaimRequest, everyone: Claim
) -> tuple[tuple[ShareClaims, ...], dict[str, tuple[ShareClaims, ...]]]:
    """Return the claims for all audit records, and for those of each group."""
    shares, names = tuple(request.shares), sorted(set(groups))
    together = len(shares) * (1 + len(names))
    gamma, note = request.gamma, "Each share holds by itself, not all of them together."
    if request.joint and together:
        gamma = request.gamma / together
        note = f"All {together} shares hold together with {confidence(request.gamma)} confidence."

    def claims_of(epsilons: RecordEpsilons, group: str | None = None) -> tuple[ShareClaims, ...]:
        found = share_claims(
            epsilons, shares, delta=request.delta, gamma=gamma, note=note, group=group, worst_case=everyone
        )
        return tuple(found)

    epsilons = RecordEpsilons(figures.ex_post, figures.estimates, figures.method)
    members: dict[str, list[int]] = {name: [] for name in names}
    for number, name in enumerate(groups):
        members[name].append(number)
    by_group = {name: claims_of(epsilons.of(np.array(those)), name) for name, those in members.items()}
    return claims_of(epsilons), by_group
