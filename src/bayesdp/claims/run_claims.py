"""Everything that may be said about a run, as one object."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

import numpy as np

from bayesdp.claims import bayesian
from bayesdp.claims.average import average_claim
from bayesdp.claims.claim import Claim
from bayesdp.claims.clip_advice import clip_sentence
from bayesdp.claims.everyone import (
    anytime_claim,
    everyone_claim,
    guaranteed_clip_bound,
    guaranteed_worst_case,
    kept_plan,
    ledger_caveats,
    left_out_claim,
    resting_on,
)
from bayesdp.claims.gate import declared_gate
from bayesdp.claims.group_rows import rows_claim
from bayesdp.claims.members import level_claims, member_claims
from bayesdp.claims.overview import Overview, overview
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.claims.request import ClaimRequest
from bayesdp.claims.risk import RunRisk, run_risk
from bayesdp.claims.run_facts import RunFacts
from bayesdp.claims.selected import WITHHELD, SelectionFigures, selection_figures
from bayesdp.claims.shares import RecordEpsilons, ShareClaims, share_claims
from bayesdp.claims.statement import statement, to_markdown
from bayesdp.claims.tables import html_table, markdown_table
from bayesdp.formatting import confidence, finite_or_none
from bayesdp.guarantees.clip_bound import ClipBound
from bayesdp.guarantees.worst_case import WorstCase
from bayesdp.ledger import Caveat, StoredLedger
from bayesdp.profiles import Precision
from bayesdp.validation import refuse


@dataclass(frozen=True)
class RunClaims(Sequence[Claim]):
    """All claims of a run: by name, and as a sequence of ``Claim`` that starts with the worst case.

        claims = ledger.claims()
        claims.everyone.epsilon, claims.share(0.99).ex_post.epsilon, claims.average.reason
        print(claims.statement())

    Printed, it is the statement; in a notebook, a table. Two objects are equal if all their claims are.

    Attributes:
        worst_case: Classic differential privacy of the run, with the figures of each accountant.
        everyone: The same as a claim: of the plan, of the budget, or of the steps taken with its condition.
        anytime: What holds for everyone however steps and settings were chosen; None if a plan or budget covers it.
        left_out: What is guaranteed to everyone who was left out; None if that is no less than for everyone.
        for_rows: The claim for a person with several rows, if it was requested.
        shares: For each requested share the pair ``ex_post`` (sure for this run) and ``estimate``; see ``share``.
            Empty without audit records.
        groups: The same for every group of audit records, by its name.
        members: For each requested share, what holds for a random person trained on with that probability.
        levels: The levels of the plan that most people trained on keep to; empty without a plan.
        average: The claim about the population on average, without a model of the data.
        bayesian: The paper's claim, which relies on one.
        gate: The claims (record out, record in) of the gate that was declared before the run; empty without a gate.
        private: What was computed from training members; empty unless it was requested.
        risk: What an attacker gets: ``risk.everyone`` and ``risk.share(0.99)``, each a ``RiskClaim``.
        selection: What was paid for choosing this run among others; None if it was not chosen.
        advice: What the audit set shows about the clip bound, in a sentence; None if there is nothing to advise.
        facts: Steps, records and unit of the run.
        request: What was asked for.
        seal: The seal of the ledger when the claims were made.
        figures: Costs and profiles of the audit records, from which the claims were made.
    """

    worst_case: WorstCase
    everyone: Claim
    anytime: Claim | None
    left_out: Claim | None
    for_rows: Claim | None
    shares: tuple[ShareClaims, ...]
    groups: dict[str, tuple[ShareClaims, ...]]
    members: tuple[Claim, ...]
    levels: tuple[Claim, ...]
    average: Claim
    bayesian: Claim
    gate: tuple[Claim, ...]
    private: tuple[Claim, ...]
    risk: RunRisk
    selection: SelectionFigures | None
    advice: str | None = field(compare=False, repr=False)
    facts: RunFacts = field(compare=False, repr=False)
    request: ClaimRequest = field(compare=False, repr=False)
    seal: str = field(compare=False, repr=False)
    figures: RecordFigures = field(compare=False, repr=False)

    def share(self, share: float, *, group: str | None = None) -> ShareClaims:
        """Return the two claims about a requested share, ``.ex_post`` and ``.estimate``; of one group, if it is named.

        Raises:
            InvalidInputError: For a share that was not requested, for a group that does not exist, and for any share
                if there are no audit records.
        """
        if group is not None and group not in self.groups:
            raise refuse("group", group, f"one of the groups of audit records: {', '.join(self.groups) or 'none'}")
        pairs = self.shares if group is None else self.groups[group]
        for pair in pairs:
            if pair.ex_post.share == share:
                return pair
        known = ", ".join(repr(pair.ex_post.share) for pair in pairs) or "none, as a share needs audit records"
        raise refuse("share", share, f"one of the requested shares: {known}")

    def all(self) -> list[Claim]:
        """Return every claim as a new list, the worst case first."""
        pairs = [*self.shares, *(pair for group in self.groups.values() for pair in group)]
        return [
            self.everyone,
            *([self.anytime] if self.anytime else []),
            *([self.left_out] if self.left_out else []),
            *([self.for_rows] if self.for_rows else []),
            *(claim for pair in pairs for claim in (pair.ex_post, pair.estimate)),
            *self.members,
            *self.levels,
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

    def overview(self) -> Overview:
        """Return the run summed up in a few sentences, each under its own name."""
        return overview(self)

    def statement(self, *, all: bool = False) -> str:
        """Return the run summed up in about ten lines; with ``all``, every claim.

        The short form says what was trained, what is guaranteed to everyone, what is sure in this run and for whom,
        what is estimated, and what is not covered. ``all`` adds averages, the paper's figure, groups and methods: one
        numbered line for each claim, below them what they rest on, and what an attacker gains.
        """
        short = self.overview().statement()
        return f"{short}\n\n{statement(self)}\n\n{self.risk.statement()}" if all else short

    def __str__(self) -> str:
        return self.statement()

    def to_markdown(self, *, all: bool = False) -> str:
        """Return the statement as a Markdown table for a model card; with ``all``, a table for every claim too."""
        short = markdown_table(self.overview().table())
        return f"{short}\n{to_markdown(self)}\n{self.risk.to_markdown()}" if all else short

    def _repr_html_(self) -> str:
        """Return the statement as a table for a notebook."""
        return html_table(self.overview().table())

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values for JSON; a figure that cannot be claimed is None, with a reason."""
        values: dict[str, Any] = {
            "statement": self.overview().to_dict(),
            "worst_case": self.worst_case.to_dict_with_kind(),
            "bayesian": {**_figures(self.bayesian), "lambda": self.bayesian.order},
            "shares": [_share_figures(pair) for pair in self.shares],
            "average": {**_figures(self.average), "estimator": self.request.estimator},
            "risk": self.risk.to_dict(),
        }
        if self.members:
            values["members"] = [_sure_figures(claim) for claim in self.members]
            values["levels"] = [_sure_figures(claim) for claim in self.levels]
        if self.groups:
            values["groups"] = {name: [_share_figures(pair) for pair in pairs] for name, pairs in self.groups.items()}
        if self.selection is not None:
            values["selection"] = self.selection.to_dict()
        if self.left_out is not None:
            values["left_out"] = _figures(self.left_out)
        if self.for_rows is not None:
            values["rows"] = self.for_rows.to_dict()
        return values

    def resting_on(self, caveats: Sequence[Caveat]) -> RunClaims:
        """Return a copy in which every claim names the caveats of the steps; the one for everyone names them already.

        A claim that a caveat weakens becomes an estimate.
        """

        def both(pairs: Sequence[ShareClaims]) -> tuple[ShareClaims, ...]:
            return tuple(
                ShareClaims(resting_on(pair.ex_post, caveats), resting_on(pair.estimate, caveats)) for pair in pairs
            )

        return replace(
            self,
            shares=both(self.shares),
            groups={name: both(pairs) for name, pairs in self.groups.items()},
            members=tuple(resting_on(claim, caveats) for claim in self.members),
            levels=tuple(resting_on(claim, caveats) for claim in self.levels),
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


def _share_figures(pair: ShareClaims) -> dict[str, Any]:
    figures = _sure_figures(pair.ex_post)
    return {
        **figures,
        "estimate_epsilon": finite_or_none(pair.estimate.epsilon),
        "gamma": pair.ex_post.gamma,
        "reason": figures["reason"] or pair.estimate.reason,
    }


def _sure_figures(claim: Claim) -> dict[str, Any]:
    """Return what is sure about a share of people, or about members."""
    return {
        "share": claim.share,
        "epsilon": finite_or_none(claim.epsilon),
        "ex_post_epsilon": finite_or_none(claim.epsilon if claim.own_epsilon is None else claim.own_epsilon),
        "kind": claim.kind,
        "condition": claim.condition,
        "direction": claim.direction,
        "records": claim.samples,
        "reason": claim.reason if claim.own_epsilon is None else claim.no_better(),
    }


def compute_claims(ledger: StoredLedger, request: ClaimRequest, precision: Precision | None = None) -> RunClaims:
    """Compute everything that may be said about the run of a ledger: the work behind ``Ledger.claims``.

    ``precision`` trades the time for profiles of records against their tightness; any setting errs upwards.
    """
    delta, gamma, records = request.delta, request.paper_gamma, ledger.audit_records
    gate = declared_gate(ledger)
    worst = guaranteed_worst_case(ledger, delta)
    caveats = ledger_caveats(ledger)
    everyone = everyone_claim(worst, caveats)
    figures = RecordFigures(ledger, delta, worst.epsilon, precision, request.form)
    guaranteed = guaranteed_clip_bound(ledger, figures.clip_bound)
    left_out = left_out_claim(guaranteed, everyone)
    shares, groups = _shares(figures, ledger.audit_groups or [], request, everyone, left_out) if records else ((), {})
    if ledger.declared_selection is not None and math.isinf(worst.epsilon):
        shares, groups = tuple(pair.without(everyone.reason or WITHHELD) for pair in shares), {}
    looks, plan = request.looks, kept_plan(ledger) if records else None
    members = member_claims(figures, guaranteed, tuple(request.shares), delta, everyone, looks) if records else ()
    planned = None if plan is None else ClipBound.of(plan.repeated_steps())
    met = gate is not None and gate.met(ledger.costs([gate.chosen_order])[:, 0])
    batches = (bayesian.from_batches(ledger, delta=delta, gamma=gamma, worst_case=everyone),) if request.private else ()
    risk_gamma = shares[0].estimate.gamma if shares else request.gamma
    risk = run_risk(
        figures, guaranteed, everyone, tuple(request.shares), gamma=risk_gamma, records=records, caveats=caveats
    )
    selection = selection_figures(ledger, worst)
    average = average_claim(figures, request, records, everyone)
    paper = bayesian.from_audit(figures, delta=delta, gamma=gamma, worst_case=everyone)
    claims = RunClaims(
        worst_case=worst,
        everyone=everyone,
        anytime=anytime_claim(figures.clip_bound, ledger.mixture_in, delta, caveats, everyone)
        if worst.condition
        else None,
        left_out=left_out,
        for_rows=rows_claim(guaranteed, everyone, request.rows) if request.rows > 1 else None,
        shares=shares,
        groups=groups,
        members=members,
        levels=() if planned is None or selection else level_claims(figures, planned, delta, everyone, looks),
        average=average.withheld(WITHHELD) if selection else average,
        bayesian=paper.withheld(WITHHELD) if selection else paper,
        gate=gate.claims(met=met, worst_case=everyone) if gate is not None else (),
        private=tuple(claim.withheld(WITHHELD) for claim in batches) if selection else batches,
        risk=risk.withheld(WITHHELD) if selection else risk,
        selection=selection,
        advice=clip_sentence(ledger, figures, risk_gamma),
        facts=RunFacts.of(ledger),
        request=request,
        seal=ledger.seal,
        figures=figures,
    )
    return claims.resting_on(caveats) if caveats else claims


def _together_note(together: int, gamma: float, request: ClaimRequest) -> str:
    """Return in words how surely all claims about shares hold at once, by the union bound."""
    looks = f", at each of {request.looks} looks," if request.looks > 1 else ""
    if request.joint:
        return f"All {together} shares{looks} hold together with {confidence(request.gamma)} confidence."
    whole = together * request.looks * gamma
    if whole >= 1:
        return f"Each share holds by itself; how surely all {together}{looks} hold together cannot be said."
    return (
        f"Each share holds by itself, and all {together}{looks} together with at least {confidence(whole)} confidence."
    )


def _shares(
    figures: RecordFigures, groups: list[str], request: ClaimRequest, everyone: Claim, left_out: Claim | None
) -> tuple[tuple[ShareClaims, ...], dict[str, tuple[ShareClaims, ...]]]:
    """Return the claims from all audit records, and from those of each group."""
    shares, names = tuple(request.shares), sorted(set(groups))
    together = len(shares) * (1 + len(names))
    gamma = request.gamma / (request.looks * (together if request.joint and together else 1))
    note = _together_note(together, gamma, request)

    def claims_of(epsilons: RecordEpsilons, group: str | None = None) -> tuple[ShareClaims, ...]:
        return share_claims(
            epsilons,
            shares,
            delta=request.delta,
            gamma=gamma,
            note=note,
            group=group,
            worst_case=everyone,
            left_out=left_out,
        )

    epsilons = RecordEpsilons(figures.ex_post, figures.estimates, figures.method, request.form)
    in_group: dict[str, list[int]] = {name: [] for name in names}
    for number, name in enumerate(groups):
        in_group[name].append(number)
    by_group = {name: claims_of(epsilons.of(np.array(numbers)), name) for name, numbers in in_group.items()}
    return claims_of(epsilons), by_group
