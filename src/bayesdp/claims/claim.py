"""A privacy claim: an epsilon that names whom it covers, how surely, and on what assumptions."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from bayesdp import properties
from bayesdp.claims.tables import html_table, markdown_table
from bayesdp.formatting import confidence, finite_or_none, percent, round_up
from bayesdp.validation import refuse

Kind = Literal["proved", "ex-post", "estimate", "model-based"]
Audience = Literal["everyone", "share", "average"]
Direction = Literal["both", "record in", "record out"]

_WORDS: dict[Kind, str] = {
    "proved": "This is proved.",
    "ex-post": "This holds for the run that took place, not for every run the procedure might have made.",
    "estimate": "This is an estimate, not a bound.",
    "model-based": "This rests on a statistical model of the data and is not a bound without it.",
}
_MEANINGS: dict[Kind, str] = {
    "proved": "holds for every data set and every run.",
    "ex-post": "holds for the run that took place, not for every run the procedure might have made.",
    "estimate": "is not a bound.",
    "model-based": "rests on a statistical model of the data and is not a bound without it.",
}
_DIRECTIONS: dict[Direction, str] = {
    "both": "",
    "record in": "It bounds what the release says about someone who was in the data.",
    "record out": "It bounds what the release says about someone who was not in the data.",
}


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One guarantee; frozen, comparable, and printed as a sentence.

    ``gamma`` is the probability that the sample misled the estimator, ``gamma_in_delta`` says that it is already
    part of delta; ``samples`` is the number of audit records behind the claim and ``group`` the group of them.
    ``private`` marks figures computed from training members: not for release. ``worst_case`` is the claim for everyone
    at the same noise, which stands beside every other. Where nothing can be claimed, ``epsilon`` is infinite and
    ``reason`` says why.
    """

    epsilon: float
    delta: float
    audience: Audience
    direction: Direction
    kind: Kind
    method: str
    share: float | None = None
    group: str | None = None
    samples: int | None = None
    gamma: float = 0.0
    gamma_in_delta: bool = False
    order: float | None = None
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    reason: str | None = None
    private: bool = False
    worst_case: Claim | None = None

    def for_whom(self) -> str:
        """The people whom it covers."""
        people = "people like those in the audit set" if self.samples else "people like those sampled"
        if self.group is not None:
            people += f" in group {self.group!r}"
        return {
            "everyone": "For everyone",
            "share": f"For at least {percent(self.share or 0)} of {people}",
            "average": f"On average over {people}",
        }[self.audience]

    def figure(self) -> str:
        """epsilon and delta, never rounded below themselves; or why there is none."""
        if math.isinf(self.epsilon):
            return f"no claim at delta = {self.delta:g}: {self.reason}" if self.reason else "no finite epsilon"
        return f"epsilon = {round_up(self.epsilon)} at delta = {round_up(self.delta)}"

    def statement(self) -> str:
        """The claim in words, with its caveats."""
        parts = [self.headline()] + ([] if self.reason else self._caveats())
        if self.worst_case is not None:
            parts.append(self.worst_case.statement())
        return " ".join(parts)

    def headline(self, *, with_kind: bool = False) -> str:
        """Whom it covers, how surely, and the figure."""
        sure = self.gamma and not self.gamma_in_delta and not self.reason
        surely = f", with {confidence(self.gamma)} confidence" if sure else ""
        how = f"{self.kind}; {self.method}" if with_kind else self.method
        private = " Private: computed from training members, not for release." if self.private else ""
        return f"{self.for_whom()}{surely}: {self.figure()}" + ("." if self.reason else f" ({how}).") + private

    def _caveats(self) -> list[str]:
        parts = [_WORDS[self.kind]]
        if self.gamma_in_delta:
            parts.insert(0, f"delta includes {self.gamma:.3g} for a misleading sample.")
        if _DIRECTIONS[self.direction]:
            parts.append(_DIRECTIONS[self.direction])
        if self.assumptions:
            parts.append("It assumes: " + "; ".join(self.assumptions) + ".")
        return parts + list(self.notes)

    def __str__(self) -> str:
        return self.statement()

    def with_figure(self, epsilon: float, **changes: Any) -> Claim:
        """The same with another epsilon and whatever else changes; an infinite one needs a reason."""
        reason = self.reason
        if math.isinf(epsilon) and reason is None:
            reason = "the noise is too small for these norms"
        return replace(self, epsilon=epsilon, reason=reason, **changes)

    def without(self, reason: str) -> Claim:
        """The same without any figure."""
        return replace(self, epsilon=math.inf, reason=reason)

    def for_rows(self, rows: int) -> Claim:
        """The same for one person with so many rows: group privacy, at a larger epsilon and delta.

        For claims about everyone, and for the paper's average (its Proposition 4). What holds for a share of single
        records says nothing about several rows of one person.
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
        """Plain values for JSON; an infinite epsilon becomes None."""
        values = asdict(self)
        values["epsilon"] = finite_or_none(self.epsilon)
        values["worst_case"] = self.worst_case.to_dict() if self.worst_case else None
        values["statement"] = self.statement()
        return values

    def to_markdown(self) -> str:
        """Return a Markdown table for a model card, followed by that of the worst case."""
        return "\n".join(markdown_table(claim.table_lines()) for claim in self._with_worst_case())

    def _repr_html_(self) -> str:
        """Return an HTML table for a notebook, followed by that of the worst case."""
        return "".join(html_table(claim.table_lines()) for claim in self._with_worst_case())

    def _with_worst_case(self) -> list[Claim]:
        return [self] if self.worst_case is None else [self, self.worst_case]

    def rests_on(self) -> list[str]:
        """Return in sentences what the figure rests on: its kind, its direction, assumptions, notes."""
        if self.reason:
            return []
        direction = _DIRECTIONS[self.direction]
        return [
            f"{self.kind}: {_MEANINGS[self.kind]}",
            *([f"{self.direction}: {direction}"] if direction else []),
            *(f"assumed: {text}." for text in self.assumptions),
            *self.notes,
        ]

    def table_lines(self) -> list[tuple[str, str]]:
        """Return what a table says about the claim, as (name, value); the first line is the figure."""
        lines = [(self.for_whom(), self.figure())]
        if not self.reason:
            lines += [("kind", f"{self.kind}: {_MEANINGS[self.kind]}"), ("method", self.method)]
            lines.append(("direction", ": ".join(filter(None, [self.direction, _DIRECTIONS[self.direction]]))))
        if self.gamma and not self.reason:
            where = ", inside delta" if self.gamma_in_delta else ""
            lines.append(("confidence", f"{confidence(self.gamma)} (gamma = {self.gamma:.3g}{where})"))
        if self.samples:
            lines.append(("audit records", str(self.samples)))
        lines += [("assumes", text) for text in self.assumptions] + [("note", text) for text in self.notes]
        if self.private:
            lines.append(("private", "computed from training members, not for release"))
        return lines
