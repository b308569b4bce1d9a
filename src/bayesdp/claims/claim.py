"""A privacy claim: an epsilon that says whom it covers, how surely, and on what assumptions."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from bayesdp import properties
from bayesdp.claims.tables import html_table, markdown_table
from bayesdp.formatting import confidence, finite_or_none, percent, round_up
from bayesdp.validation import refuse

Kind = Literal["proved", "ex-post", "estimate", "model-based"]
Audience = Literal["everyone", "share", "members", "average"]
Direction = Literal["both", "record in", "record out"]

_KINDS: dict[Kind, str] = {
    "proved": "Proved: it holds for every data set and every run.",
    "ex-post": "Ex-post: it holds for the run that took place, not for every run the procedure could have made.",
    "estimate": "Estimate only: the true value may be higher.",
    "model-based": "Model-based: it relies on a statistical model of the data and is not a bound without it.",
}
NO_BETTER = "no better than for everyone"
"""Where the claim for everyone is the smaller one and stands in the place of another."""
OWN_DELTA = (
    "The ex-post figure of a run and the guarantee for everyone have a delta each; the smaller of the two, in "
    "whichever run, holds at the sum of both."
)
"""The note of figures that stand beside the guarantee for everyone, or in whose place it stands."""
_LEFT_OUT = " who was left out"
_DIRECTIONS: dict[Direction, str] = {
    "both": "",
    "record in": "Record in: it bounds what the release reveals about someone who was in the data.",
    "record out": "Record out: it bounds what the release reveals about someone who was not in the data.",
}


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One figure of privacy with everything that belongs to it; frozen, comparable, and printed as a sentence.

    The claim is that the release is (``epsilon``, ``delta``)-private for its ``audience``, in the sense of its
    ``kind`` and ``direction``, except with probability ``gamma``. Where nothing can be claimed, ``epsilon`` is
    infinite and ``reason`` says why.

    Attributes:
        epsilon: The privacy loss; printed figures are rounded up, never down.
        delta: The probability that the guarantee may fail.
        audience: Whom it covers: "everyone", a "share" of the population, the "members" who were trained on (one
            picked at random, with probability ``share``), or the population on "average".
        direction: "record out" bounds what is revealed about people who were not in the data, "record in" about
            people who were, "both" about either.
        kind: "proved" (every data set, every run), "ex-post" (the run that took place), "estimate" (not a bound) or
            "model-based" (not a bound unless a statistical model of the data is right).
        method: How the figure was computed.
        condition: What must be true for the kind to hold, said on the line itself: "if the number of steps ...".
        share: The fraction that is covered, if ``audience`` is "share" or "members".
        group: The group of audit records the claim is about, if it is about one.
        samples: The number of audit records behind the claim.
        gamma: The probability that the sample misled the estimator.
        gamma_in_delta: Whether ``gamma`` is already part of ``delta``.
        order: The order lambda at which the figure was computed, where there is a single one.
        assumptions: What the figure assumes, besides noise, clipping and sampling as recorded.
        notes: Sentences a reader of the figure should see.
        reason: Why there is no figure, if there is none.
        own_epsilon: The figure that this method gives by itself where that is larger than the one for everyone, which
            then stands in its place: a detail, never a claim.
        private: Whether it was computed from training members, and is therefore not for release.
        worst_case: The claim for everyone at the same noise, which accompanies every other claim.
    """

    epsilon: float
    delta: float
    audience: Audience
    direction: Direction
    kind: Kind
    method: str
    condition: str | None = None
    share: float | None = None
    group: str | None = None
    samples: int | None = None
    gamma: float = 0.0
    gamma_in_delta: bool = False
    order: float | None = None
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    reason: str | None = None
    own_epsilon: float | None = None
    private: bool = False
    worst_case: Claim | None = None

    def for_whom(self) -> str:
        """Return the words for the people the claim covers: "For everyone", "For at least 99 % of people ..."."""
        people = "people like those in the audit set" if self.samples else "people like those sampled"
        if self.group is not None:
            people += f" in group {self.group!r}"
        return {
            "everyone": "For everyone" + _LEFT_OUT * (self.direction == "record out"),
            "share": f"For at least {percent(self.share or 0)} of {people}",
            "members": f"For a person trained on, with probability at least {percent(self.share or 0)}",
            "average": f"On average over {people}",
        }[self.audience]

    def figure(self) -> str:
        """Return epsilon and delta as text, rounded up and never down; or why there is no figure."""
        if self.own_epsilon is not None:
            return f"{self.no_better()}, epsilon = {round_up(self.epsilon)} at delta = {round_up(self.delta)}"
        if math.isinf(self.epsilon):
            return f"no claim at delta = {self.delta:g}: {self.reason}" if self.reason else "no finite epsilon"
        return f"epsilon = {round_up(self.epsilon)} at delta = {round_up(self.delta)}"

    def no_better(self) -> str:
        """Return in words whose claim stands in the place of this one: that of everyone, or of everyone left out."""
        return NO_BETTER + _LEFT_OUT * (self.direction == "record out")

    def statement(self) -> str:
        """Return the claim in sentences, with its caveats, followed by the worst case."""
        parts = [self.headline()] + ([] if self.reason else self._caveats())
        if self.worst_case is not None:
            parts.append(self.worst_case.statement())
        return " ".join(parts)

    def headline(self, *, with_kind: bool = False) -> str:
        """Return one line: whom the claim covers, how surely, the figure, and how it was computed."""
        if self.own_epsilon is not None:
            how = f" ({self.kind} {self.condition})" if self.condition else ""
            return f"{self.for_whom()}: {self.figure()}{how}."
        sure = self.gamma and not self.gamma_in_delta and not self.reason
        surely = f", with {confidence(self.gamma)} confidence" if sure else ""
        kind = f"{self.kind} {self.condition}" if self.condition else self.kind
        how = f"{kind}; {self.method}" if with_kind or self.condition else self.method
        private = " Private: computed from training members, not for release." if self.private else ""
        return (
            f"{self.for_whom()}{surely}: {self.figure()}"
            + ("." if self.reason else f" ({how}).{self._above()}")
            + private
        )

    def _above(self) -> str:
        """Return a sentence for a figure above the one for everyone, which by its method is only weaker."""
        if self.audience == "everyone" or self.worst_case is None or self.epsilon <= self.worst_case.epsilon:
            return ""
        return f" The guarantee for everyone is smaller, {round_up(self.worst_case.epsilon)}, and holds for them too."

    def _caveats(self) -> list[str]:
        parts = [self._kind_words()]
        if self.gamma_in_delta:
            parts.insert(0, f"delta includes {self.gamma:.3g} for a misleading sample.")
        if _DIRECTIONS[self.direction]:
            parts.append(_DIRECTIONS[self.direction])
        if self.assumptions:
            parts.append("It assumes: " + "; ".join(self.assumptions) + ".")
        return parts + list(self.notes)

    def _kind_words(self) -> str:
        words = _KINDS[self.kind]
        if self.condition is not None:
            words = f"{words.removesuffix('.')}, {self.condition}."
        if self.kind == "estimate" and self.gamma and self.own_epsilon is None:
            words += " The confidence is about who happened to be in the audit set, and about nothing else."
        return words

    def __str__(self) -> str:
        return self.statement()

    def with_figure(self, epsilon: float, **changes: Any) -> Claim:
        """Return a copy with this epsilon and whatever else changes; an infinite epsilon gets a reason."""
        reason = self.reason
        if math.isinf(epsilon) and reason is None:
            reason = "the noise is too small for these norms"
        return replace(self, epsilon=epsilon, reason=reason, **changes)

    def capped(self, guaranteed: Claim | None = None) -> Claim:
        """Return the claim, or what is claimed for everyone in its place if that epsilon is smaller.

        That is ``guaranteed``, if given, otherwise ``worst_case``. The smaller one is a claim of its own, so nothing
        that this claim assumes is needed for it, and it has a delta of its own, as its note says.
        """
        everyone = guaranteed or self.worst_case
        if everyone is None or not everyone.epsilon < self.epsilon:
            return self
        return replace(
            self,
            epsilon=everyone.epsilon,
            own_epsilon=self.epsilon,
            kind=everyone.kind,
            direction=everyone.direction,
            condition=everyone.condition,
            method=everyone.method,
            assumptions=everyone.assumptions,
            notes=(OWN_DELTA,),
        )

    def without(self, reason: str) -> Claim:
        """Return a copy that claims nothing, and says why."""
        return replace(self, epsilon=math.inf, reason=reason)

    def withheld(self, reason: str) -> Claim:
        """Return a copy that claims nothing and says why, without notes and figures of its own, which do not hold."""
        return replace(self.without(reason), notes=(), own_epsilon=None, order=None)

    def for_rows(self, rows: int) -> Claim:
        """Return the claim for a person with up to ``rows`` rows, by group privacy: epsilon and delta both grow.

        Defined for claims about everyone, and for the paper's average (its Proposition 4). A claim about a share of
        single records implies nothing about several rows of one person, and neither do other averages.

        Raises:
            InvalidInputError: For any other claim, or if ``rows`` is not a whole number of at least 1.
        """
        if self.audience != "everyone" and self.kind != "model-based":
            raise refuse("audience", self.audience, "a claim for everyone, or the paper's average")
        epsilon, delta = self.epsilon, self.delta
        if math.isfinite(epsilon):
            epsilon, delta = properties.group_privacy(epsilon, delta, rows)
        return replace(
            self,
            epsilon=epsilon,
            delta=delta,
            notes=(*self.notes, f"It holds for a person with up to {rows} rows."),
            worst_case=self.worst_case.for_rows(rows) if self.worst_case else None,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain values for JSON, with the statement; an infinite epsilon becomes None."""
        values = asdict(self)
        values["epsilon"] = finite_or_none(self.epsilon)
        values["own_epsilon"] = None if self.own_epsilon is None else finite_or_none(self.own_epsilon)
        values["worst_case"] = self.worst_case.to_dict() if self.worst_case else None
        values["statement"] = self.statement()
        return values

    def to_markdown(self) -> str:
        """Return a Markdown table for a model card, followed by the table of the worst case."""
        return "\n".join(markdown_table(claim.table_lines()) for claim in self._with_worst_case())

    def _repr_html_(self) -> str:
        """Return an HTML table for a notebook, followed by the table of the worst case."""
        return "".join(html_table(claim.table_lines()) for claim in self._with_worst_case())

    def _with_worst_case(self) -> list[Claim]:
        return [self] if self.worst_case is None else [self, self.worst_case]

    def rests_on(self) -> list[str]:
        """Return sentences that say what the figure rests on: its kind, direction, assumptions and notes.

        Empty if nothing is claimed.
        """
        if self.reason:
            return []
        direction = _DIRECTIONS[self.direction]
        return [
            self._kind_words(),
            *([direction] if direction else []),
            *(f"Assumption: {text}." for text in self.assumptions),
            *self.notes,
        ]

    def table_lines(self) -> list[tuple[str, str]]:
        """Return the lines (name, value) of a table about the claim; the first is (for whom, figure)."""
        lines = [(self.for_whom(), self.figure())]
        if not self.reason:
            lines += [("kind", self._kind_words()), ("method", self.method)]
            lines.append(("direction", _DIRECTIONS[self.direction] or self.direction))
        if self.gamma and not self.reason:
            where = ", inside delta" if self.gamma_in_delta else ""
            lines.append(("confidence", f"{confidence(self.gamma)} (gamma = {self.gamma:.3g}{where})"))
        if self.samples:
            lines.append(("audit records", str(self.samples)))
        lines += [("assumes", text) for text in self.assumptions] + [("note", text) for text in self.notes]
        if self.private:
            lines.append(("private", "computed from training members, not for release"))
        return lines
