"""Risk beside epsilon: what an attacker gets, for everyone and for shares of the population.

For everyone it follows from the profile of the worst case and is as sure as that. For a share it comes from the profile
of each audit record, as if its exposures had been fixed before the run: an estimate. An ex-post epsilon depends on the
run that took place and bounds no rate over runs, so it has no risk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bayesdp.claims.claim import Claim, Kind
from bayesdp.claims.everyone import UNCLIPPED
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.claims.shares import FIXED_NORMS, NO_AUDIT, SAMPLED, too_few_records
from bayesdp.claims.tables import Lines, html_table, markdown_table
from bayesdp.estimators import order_statistic_rank
from bayesdp.formatting import confidence, finite_or_none, percent, percent_digits, round_up
from bayesdp.guarantees.trade_off import (
    FALSE_POSITIVE_RATES,
    Guarantee,
    RecordRisks,
    Risk,
    attacker_sentence,
    guaranteed_risk,
    smaller,
)
from bayesdp.ledger import Caveat
from bayesdp.validation import refuse


@dataclass(frozen=True, kw_only=True)
class RiskClaim:
    """What an attacker gets, with whom it covers, how surely, and on what assumptions; frozen and comparable.

    Attributes:
        risk: True-positive rates, advantage and mu; None where nothing can be claimed, and then ``reason`` says why.
        kind: "proved" if every attacker is covered, or "estimate".
        condition: What must be true for it to be proved, as for the epsilon beside it.
        share: The fraction of the population that is covered; None for everyone.
        gamma: The probability, for each figure of a share, that the sample misled.
        samples: The number of audit records behind the figures of a share.
        assumptions: What the figures assume, besides noise, clipping and sampling as recorded.
        reason: Why there are no figures, if there are none.
    """

    risk: Risk | None
    kind: Kind
    condition: str | None = None
    share: float | None = None
    gamma: float = 0.0
    samples: int | None = None
    assumptions: tuple[str, ...] = ()
    reason: str | None = None

    def for_whom(self) -> str:
        """Return the words for the people who are covered."""
        if self.share is None:
            return "For everyone"
        return f"For at least {percent(self.share)} of people like those in the audit set"

    def statement(self) -> str:
        """Return the figures in a sentence; all of them are rounded up, never down."""
        if self.risk is None:
            return f"{self.for_whom()}: nothing can be said about an attacker: {self.reason}."
        sentence = attacker_sentence(self.risk, self._at_most)
        surely = f", with {confidence(self.gamma)} confidence for each figure" if self.gamma else ""
        advantage, mu = percent_digits(self.risk.advantage), round_up(self.risk.mu)
        return (
            f"{self.for_whom()}{surely}: {sentence[0].lower()}{sentence[1:-1]}; the advantage over guessing is "
            f"{self._at_most} {advantage}, and mu = {mu} ({self.kind_words()})."
        )

    def kind_words(self) -> str:
        """Return the kind with its condition, if it has one."""
        return self.kind if self.condition is None else f"{self.kind} {self.condition}"

    @property
    def _at_most(self) -> str:
        return "at most" if self.kind == "proved" else "about"

    def __str__(self) -> str:
        return self.statement()

    def table_lines(self) -> list[tuple[str, str]]:
        """Return the lines (name, value) of a table; the first is (for whom, what the table is about)."""
        whom = f"Risk {self.for_whom().lower()}"
        if self.risk is None:
            return [(whom, f"no claim: {self.reason}")]
        rates = zip(self.risk.fpr, self.risk.tpr, strict=True)
        lines = [
            (whom, f"mu = {round_up(self.risk.mu)}"),
            *((f"true positives at {percent(fpr)} false positives", percent_digits(tpr)) for fpr, tpr in rates),
            ("advantage", percent_digits(self.risk.advantage)),
            ("kind", self.kind_words()),
        ]
        if self.gamma:
            lines.append(("confidence, for each figure", confidence(self.gamma)))
        return lines + [("assumes", text) for text in self.assumptions]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; figures that cannot be claimed are None, with a ``reason``."""
        risk = self.risk
        return {
            **({} if self.share is None else {"share": self.share, "gamma": self.gamma, "records": self.samples}),
            "mu": None if risk is None else finite_or_none(risk.mu),
            "tpr_at_fpr": None if risk is None else {f"{f:g}": t for f, t in zip(risk.fpr, risk.tpr, strict=True)},
            "advantage": None if risk is None else risk.advantage,
            "delta": None if risk is None else risk.delta,
            "kind": self.kind,
            "condition": self.condition,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class RunRisk:
    """The risk of a run: for ``everyone``, and for each requested share; empty ``shares`` without audit records."""

    everyone: RiskClaim
    shares: tuple[RiskClaim, ...]

    def share(self, share: float) -> RiskClaim:
        """Return the risk of a requested share; raise InvalidInputError for any other."""
        for claim in self.shares:
            if claim.share == share:
                return claim
        known = ", ".join(repr(claim.share) for claim in self.shares) or NO_AUDIT
        raise refuse("share", share, f"one of the requested shares: {known}")

    def withheld(self, reason: str) -> RunRisk:
        """Return the risk of everyone alone, with the reason why there are no figures for shares."""
        return RunRisk(self.everyone, tuple(replace(claim, risk=None, reason=reason) for claim in self.shares))

    def all(self) -> list[RiskClaim]:
        """Return the claims as a new list, that for everyone first."""
        return [self.everyone, *self.shares]

    def statement(self) -> str:
        """Return all of them in words, one per line, and what mu means."""
        return "\n".join(["What an attacker gains, beside epsilon:", *(f"- {claim}" for claim in self.all()), MEANING])

    def __str__(self) -> str:
        return self.statement()

    def to_markdown(self) -> str:
        """Return a Markdown table for each claim, for a model card."""
        return "\n".join(markdown_table(lines) for lines in self._tables())

    def to_html(self) -> str:
        """Return an HTML table for each claim; all text is escaped."""
        return "".join(html_table(lines) for lines in self._tables())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"everyone": self.everyone.to_dict(), "shares": [claim.to_dict() for claim in self.shares]}

    def _tables(self) -> list[Lines]:
        return [claim.table_lines() for claim in self.all()]


MEANING = (
    "The attacker knows everything but whether one person was in the data, and finds a person who was (a true "
    "positive) while raising a false alarm about a given share of those who were not. The advantage is the largest "
    "difference between these two rates: a guess from even odds is right half of it more often than chance. For "
    "experts: a Gaussian release at distance mu reveals at least as much, up to delta."
)


def run_risk(
    figures: RecordFigures,
    bound: Guarantee | None,
    everyone: Claim,
    shares: Sequence[float],
    *,
    gamma: float,
    records: int,
    caveats: Sequence[Caveat] = (),
) -> RunRisk:
    """Return the risk of a run: for everyone from ``bound``, the profile behind ``everyone``, and for shares.

    The figure of a share is the k-th smallest of the audit records' own, for each figure by itself: the rank of
    ``order_statistic_rank`` at ``gamma``. No figure exceeds that for everyone, which covers the share too. ``caveats``
    are those of the steps.
    """
    assumed = everyone.assumptions
    kind, condition = everyone.kind, everyone.condition
    if bound is None:
        reason = everyone.reason or UNCLIPPED
        whole = RiskClaim(risk=None, kind=kind, condition=condition, assumptions=assumed, reason=reason)
    else:
        risk = guaranteed_risk(bound, everyone.delta)
        whole = RiskClaim(risk=risk, kind=kind, condition=condition, assumptions=assumed)
    if not records:
        return RunRisk(whole, ())
    risks = figures.risks(FALSE_POSITIVE_RATES)
    if whole.risk is not None:
        risks = smaller(risks, _single(whole.risk))
    contradicted = [text for caveat in caveats for text in caveat.contradicts]
    kept = (text for text in (SAMPLED, FIXED_NORMS) if text not in contradicted)
    assumptions = (*kept, *(caveat.text for caveat in caveats))
    common = RiskClaim(risk=None, kind="estimate", gamma=gamma, samples=records, assumptions=assumptions)
    return RunRisk(
        whole, tuple(_share_risk(risks, replace(common, share=share), share, everyone.delta) for share in shares)
    )


def _share_risk(risks: RecordRisks, claim: RiskClaim, share: float, delta: float) -> RiskClaim:
    records, gamma = len(risks.mu), claim.gamma
    rank = order_statistic_rank(records, share, gamma)
    if rank is None:
        return replace(claim, reason=too_few_records(share, gamma, records))
    tpr = np.partition(risks.tpr, rank - 1, axis=0)[rank - 1]
    advantage, mu = (float(np.partition(values, rank - 1)[rank - 1]) for values in (risks.advantage, risks.mu))
    risk = Risk(tpr=tuple(tpr.tolist()), fpr=FALSE_POSITIVE_RATES, advantage=advantage, mu=mu, delta=delta)
    return replace(claim, risk=risk)


def _single(risk: Risk) -> RecordRisks:
    return RecordRisks(np.array([risk.tpr]), np.array([risk.advantage]), np.array([risk.mu]))
