"""A run in a few sentences: what was trained, what is guaranteed to whom, what is only estimated, what is not covered.

Statement, report, model card and notebook show these sentences, so that no two of them can disagree. Everything else
that may be said about a run (averages, the paper's figure, methods, groups) is in the claims themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from bayesdp.cautions import about_delta, about_epsilon
from bayesdp.claims.claim import NO_BETTER, Claim
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.claims.request import ClaimRequest
from bayesdp.claims.risk import RunRisk
from bayesdp.claims.run_facts import RunFacts
from bayesdp.claims.selected import SelectionFigures
from bayesdp.claims.shares import FIXED_NORMS, NOT_USED, SAMPLED, ShareClaims
from bayesdp.claims.skipped_steps import price_of_skipped_steps
from bayesdp.formatting import confidence, guesses, listed, percent, round_up
from bayesdp.guarantees.worst_case import WorstCase

NO_AUDIT_SET = "there is no audit set, so nothing can be said about typical people."
SEEDED = (
    "NOT FOR RELEASE: the random noise that hides people came from a given number, the seed. Whoever knows the seed "
    "can subtract the noise, and for them nothing below holds."
)
_MANY = {"row": "rows", "person": "people"}


class Summarised(Protocol):
    """The claims that an overview is made of: ``RunClaims``."""

    @property
    def worst_case(self) -> WorstCase: ...
    @property
    def everyone(self) -> Claim: ...
    @property
    def anytime(self) -> Claim | None: ...
    @property
    def for_rows(self) -> Claim | None: ...
    @property
    def shares(self) -> tuple[ShareClaims, ...]: ...
    @property
    def members(self) -> tuple[Claim, ...]: ...
    @property
    def levels(self) -> tuple[Claim, ...]: ...
    @property
    def gate(self) -> tuple[Claim, ...]: ...
    @property
    def selection(self) -> SelectionFigures | None: ...
    @property
    def advice(self) -> str | None: ...
    @property
    def facts(self) -> RunFacts: ...
    @property
    def risk(self) -> RunRisk: ...
    @property
    def request(self) -> ClaimRequest: ...
    @property
    def figures(self) -> RecordFigures: ...


@dataclass(frozen=True, kw_only=True)
class Overview:
    """The sentences, by what they are about; every epsilon in them is rounded up.

    Attributes:
        stamps: What nobody may overlook, such as NOT FOR RELEASE.
        advice: What the audit set shows about the clip bound: an estimate, and no claim. None if nothing is to be said.
        trained: Steps, records, delta and unit.
        everyone: What is guaranteed to everyone, or why nothing is.
        guessing: The same in natural frequencies; None if nothing is guaranteed.
        tuning: What choosing the run among others cost, or why that is not covered; None if it was not chosen.
        anytime: What holds for this run however its steps were chosen; None where a plan or budget covers that.
        members: What is sure, in the run that took place, for the people trained on; None without an audit set.
        left_out: The same for people like those in the audit set, who were left out; why there is nothing without one.
        estimate: What is estimated for shares of people, and not guaranteed; None without an audit set.
        several_rows: What is guaranteed to a person with several rows, if it was asked for.
        gate: What the gate gives that was declared before the run, if there is one.
        not_covered: Whom and what none of it covers, a phrase each.
        rests_on: What it assumes, a phrase each.
        cautions: What a reader should know before using it, a sentence each.
    """

    stamps: tuple[str, ...]
    advice: str | None
    trained: str
    everyone: str
    guessing: str | None
    tuning: str | None
    anytime: str | None
    members: str | None
    left_out: str
    estimate: str | None
    several_rows: str | None
    gate: str | None
    not_covered: tuple[str, ...]
    rests_on: tuple[str, ...]
    cautions: tuple[str, ...]

    def lines(self) -> list[tuple[str, str]]:
        """Return (label, sentences) for everything that is said, in the order of a statement."""
        guarantee = " ".join(text for text in (self.everyone, self.guessing, self.anytime) if text)
        named = [
            ("Advice", self.advice),
            ("Trained", self.trained),
            ("Guarantee for everyone", guarantee),
            ("Tuning", self.tuning),
            ("This run, people whose data was used", self.members),
            ("This run, people whose data was not used", self.left_out),
            ("Estimated, not guaranteed", self.estimate),
            ("Several rows", self.several_rows),
            ("Gate", self.gate),
            ("Not covered", _listing(self.not_covered)),
            ("It rests on", _listing(self.rests_on)),
            *(("Caution", sentence) for sentence in self.cautions),
        ]
        return [(label, text) for label, text in named if text]

    def statement(self) -> str:
        """Return all of it as text, one labelled line each."""
        return "\n".join([*self.stamps, *(f"{label}: {text}" for label, text in self.lines())])

    def table(self) -> list[tuple[str, str]]:
        """Return the same as lines (name, value) of a table, the guarantee first."""
        first = ("Guarantee for everyone", "Trained")
        lines = sorted(self.lines(), key=lambda line: first.index(line[0]) if line[0] in first else len(first))
        return [*lines, *(("Not to be overlooked", stamp) for stamp in self.stamps)]

    def to_dict(self) -> dict[str, Any]:
        """Return the sentences as plain values for JSON."""
        return asdict(self)


def overview(claims: Summarised) -> Overview:
    """Sum up the claims of a run."""
    facts, everyone = claims.facts, claims.everyone
    return Overview(
        stamps=((SEEDED,) if facts.seeded else ()) + facts.notes,
        advice=claims.advice,
        trained=_trained(facts, everyone.delta),
        everyone=_everyone(everyone, claims.worst_case.basis, facts),
        guessing=_guessing(claims),
        tuning=None if claims.selection is None else claims.selection.statement(),
        anytime=_anytime(claims.anytime),
        members=_members(claims) if claims.members else None,
        left_out=_left_out(claims) if facts.audit_records else NO_AUDIT_SET,
        estimate=_estimate(claims.shares, everyone) if claims.shares else None,
        several_rows=_several_rows(claims),
        gate=claims.gate[0].headline(with_kind=True) if claims.gate else None,
        not_covered=tuple(_not_covered(claims)),
        rests_on=tuple(_rests_on(claims)),
        cautions=tuple(_cautions(claims)),
    )


def _trained(facts: RunFacts, delta: float) -> str:
    records = "" if facts.training_records is None else f" on {facts.training_records:,} {_MANY[facts.unit]}"
    unit = "One row counts as one person." if facts.unit == "row" else "Each record is one person."
    steps = "1 step" if facts.steps == 1 else f"{facts.steps:,} steps"
    return f"{steps}{records}, at delta = {round_up(delta)}{_one_in(delta)} for each figure. {unit}"


def _one_in(delta: float) -> str:
    """Return a small probability as "1 in 100,000", which is at least the probability."""
    return f" (1 in {math.floor(1 / delta * (1 + 1e-12)):,})" if delta < 0.1 else ""


def _everyone(claim: Claim, basis: str | None, facts: RunFacts) -> str:
    if math.isinf(claim.epsilon):
        return f"none, because {claim.reason}."
    figure = round_up(claim.epsilon)
    if claim.kind != "proved":
        return f"none. It is estimated at epsilon = {figure}, and the true value may be higher."
    proved = f"proved for {basis}" if basis else f"proved {claim.condition}" if claim.condition else "proved"
    secret = ", against those who do not know the seed" if facts.seeded else ""
    return f"epsilon at most {figure} ({proved}){secret}."


def _guessing(claims: Summarised) -> str | None:
    risk = claims.risk.everyone.risk
    if risk is None or claims.everyone.kind != "proved":
        return None
    often = guesses((1 + risk.advantage) / 2)
    everything = "everything else but the seed" if claims.facts.seeded else "everything else"
    return (
        f"Someone who knows {everything}, starts from even odds and guesses from the model whether a person was in "
        f"the data is right at most {often}; this includes delta."
    )


def _anytime(claim: Claim | None) -> str | None:
    if claim is None or math.isinf(claim.epsilon) or claim.kind != "ex-post":
        return None
    return f"However steps and settings were chosen, epsilon is at most {round_up(claim.epsilon)} for this run."


def _left_out(run: Summarised) -> str:
    claims, facts = [pair.ex_post for pair in run.shares], run.facts
    parts: list[str] = []
    if sure := _distinct([claim for claim in claims if _sure(claim)]):
        figures = [f"{_share(claim)} at most {round_up(claim.epsilon)}" for claim in sure]
        figures[0] = figures[0].replace(" at most", " have epsilon at most")
        parts.append(
            f"of people like the {facts.audit_records:,} in the audit set, at least {listed(figures)}, with "
            f"{confidence(sure[0].gamma)} confidence."
        )
    if doubtful := [claim for claim in claims if _doubtful(claim)]:
        parts.append(f"nothing is sure for {_shares(doubtful)}, {_why_doubtful(facts)}.")
    if no_better := [claim for claim in claims if claim.own_epsilon is not None]:
        parts.append(f"for {_shares(no_better)} of them {_no_better(no_better[0])}.")
    parts += [f"for {_share(claim)} there is no claim, because {claim.reason}." for claim in claims if claim.reason]
    parts += filter(None, [price_of_skipped_steps(run.figures, claims, facts.steps)])
    return _sentences(parts) or "no share was asked for."


def _members(claims: Summarised) -> str:
    members, facts = claims.members, claims.facts
    levels = () if all(_sure(claim) for claim in members) else claims.levels
    if sure := _distinct([claim for claim in (*members, *levels) if _sure(claim)]):
        figures = [f"{round_up(claim.epsilon)} with {percent(claim.share or 0)}" for claim in sure]
        figures[0] = figures[0].replace("with", "with a probability of at least")
        rest = [claim for claim in members if claim.own_epsilon is not None]
        more = f" With {listed([percent(claim.share or 0) for claim in rest])} {_no_better(rest[0])}." if rest else ""
        return f"the epsilon of one of them, picked at random, is at most {listed(figures)}{_condition(sure[0])}.{more}"
    if any(_doubtful(claim) for claim in members):
        return f"nothing is sure, {_why_doubtful(facts)}."
    if all(claim.reason for claim in members):
        return f"no claim, because {members[0].reason}."
    return f"{NO_BETTER}."


def _no_better(claim: Claim) -> str:
    """Return in words what holds where there is no figure below that of everyone, or of everyone left out."""
    if claim.direction == "record out":
        return f"it is at most {round_up(claim.epsilon)}, as for everyone left out{_condition(claim)}"
    return "there is no figure below the one for everyone"


def _condition(claim: Claim) -> str:
    """Return that a figure rests on the condition that the line about the guarantee names; nothing if there is none."""
    return ", on the same condition as the guarantee" if claim.condition else ""


def _why_doubtful(facts: RunFacts) -> str:
    used = facts.audit_used_for
    return "only estimated (see what it rests on)" if used is None else f"because the audit set was used for: {used}"


def _estimate(pairs: Sequence[ShareClaims], everyone: Claim) -> str:
    most = round_up(everyone.epsilon)
    finite = [pair.estimate for pair in pairs if math.isfinite(pair.estimate.epsilon)]
    better = _distinct([claim for claim in finite if round_up(claim.epsilon) != most])
    if not better:
        return f"{NO_BETTER}."
    figures = listed([f"{_share(claim)} about {round_up(claim.epsilon)}" for claim in better])
    rest = [claim for claim in finite if claim not in better and claim.epsilon > better[-1].epsilon]
    more = f" For {_shares(rest)} it is {NO_BETTER}." if rest else ""
    return f"epsilon of people like the audit set, whether their data was used or not: {figures}.{more}"


def _several_rows(claims: Summarised) -> str | None:
    claim = claims.for_rows
    if claim is None:
        return None
    figure = _everyone(claim, claims.worst_case.basis, claims.facts)
    return f"for a person with up to {claims.request.rows} rows: {figure}"


def _not_covered(claims: Summarised) -> list[str]:
    facts = claims.facts
    covered = claims.selection is not None and claims.selection.covered
    choices = "other choices by it" if covered else "choosing settings or the best of several models"
    return [
        *(["people with more than one row"] if facts.unit == "row" and claims.for_rows is None else []),
        f"other uses of the same data: {choices}, means or vocabularies taken from it",
        *([f"the {facts.audit_records:,} audit people, on whom privacy was measured"] if facts.audit_records else []),
        "what the model teaches about people in general, whether or not their data was used",
    ]


def _rests_on(claims: Summarised) -> list[str]:
    """Return the assumptions of what is guaranteed, sure or estimated, each once."""
    of_shares = [*(pair.ex_post for pair in claims.shares), *claims.members]
    used = [claims.everyone, *(claim for claim in of_shares if _sure(claim) or _doubtful(claim))]
    texts = dict.fromkeys(text for claim in used for text in claim.assumptions)
    estimates = (pair.estimate for pair in claims.shares if not pair.estimate.reason)
    texts |= dict.fromkeys(text for claim in estimates for text in claim.assumptions if text != FIXED_NORMS)
    if SAMPLED in texts:  # which says more
        texts.pop(NOT_USED, None)
    return list(texts)


def _cautions(claims: Summarised) -> list[str]:
    facts, everyone, worst = claims.facts, claims.everyone, claims.worst_case
    sentences = [worst.note] if worst.note and not worst.basis else []
    return sentences + about_epsilon(everyone.epsilon) + about_delta(everyone.delta, facts.training_records)


def _sure(claim: Claim) -> bool:
    """Whether a claim is sure, and says more than the one for everyone."""
    return claim.reason is None and claim.own_epsilon is None and claim.kind in ("proved", "ex-post")


def _doubtful(claim: Claim) -> bool:
    """Whether a claim would be sure but for a caveat of the run."""
    return claim.reason is None and claim.own_epsilon is None and claim.kind not in ("proved", "ex-post")


def _distinct(claims: Sequence[Claim]) -> list[Claim]:
    """Return the claims in rising order, without those that say no more than another: as small, for as many."""
    kept: list[Claim] = []
    for claim in sorted(claims, key=lambda claim: (-(claim.share or 0), claim.epsilon)):
        if not kept or float(round_up(claim.epsilon)) < float(round_up(kept[-1].epsilon)):
            kept.append(claim)
    return kept[::-1]


def _share(claim: Claim) -> str:
    return "half" if claim.share == 0.5 else percent(claim.share or 0)


def _shares(claims: Sequence[Claim]) -> str:
    return listed([_share(claim) for claim in claims])


def _listing(phrases: Sequence[str]) -> str:
    return f"{'; '.join(phrases)}." if phrases else ""


def _sentences(parts: Sequence[str]) -> str:
    """Return sentences of which all but the first begin with a capital letter; the first follows a colon."""
    return " ".join(part if number == 0 else part[0].upper() + part[1:] for number, part in enumerate(parts))
