"""A privacy claim: an epsilon that names whom it covers, how surely, and on what assumptions."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

Kind = Literal["proved", "ex-post", "estimate", "model-based"]
Audience = Literal["everyone", "share", "average"]
Direction = Literal["both", "record in", "record out"]

_WORDS: dict[Kind, str] = {
    "proved": "This is proved.",
    "ex-post": "This holds for the run that took place, not for every run the procedure might have made.",
    "estimate": "This is an estimate, not a bound.",
    "model-based": "This rests on a statistical model of the data and is not a bound without it.",
}


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One guarantee; frozen, comparable, and printed as a sentence.

    ``gamma`` is the probability that the sample misled the estimator, ``gamma_in_delta`` says that it is already
    part of delta. ``private`` marks figures computed from training members: not for release. ``worst_case`` is the
    claim for everyone at the same noise, which stands beside every other.
    """

    epsilon: float
    delta: float
    audience: Audience
    direction: Direction
    kind: Kind
    method: str
    share: float | None = None
    gamma: float = 0.0
    gamma_in_delta: bool = False
    order: float | None = None
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    private: bool = False
    worst_case: Claim | None = None

    def statement(self) -> str:
        """The claim in words, with its caveats."""
        who = {
            "everyone": "For everyone",
            "share": f"For at least {100 * (self.share or 0):g} % of people like those sampled",
            "average": "On average over people like those sampled",
        }[self.audience]
        size = "no finite epsilon" if math.isinf(self.epsilon) else f"epsilon = {round_up(self.epsilon)}"
        parts = [f"{who}: {size} at delta = {self.delta:g} ({self.method})."]
        if self.gamma and not self.gamma_in_delta:
            parts.append(f"Confidence in the sample: {100 * (1 - self.gamma):g} %.")
        if self.gamma_in_delta:
            parts.append(f"delta includes {self.gamma:.3g} for a misleading sample.")
        parts.append(_WORDS[self.kind])
        if self.assumptions:
            parts.append("It assumes: " + "; ".join(self.assumptions) + ".")
        parts.extend(self.notes)
        if self.private:
            parts.append("Private: computed from training members, not for release.")
        if self.worst_case is not None:
            parts.append(self.worst_case.statement())
        return " ".join(parts)

    def __str__(self) -> str:
        return self.statement()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; an infinite epsilon becomes None."""
        values = asdict(self)
        if math.isinf(self.epsilon):
            values["epsilon"] = None
        values["worst_case"] = self.worst_case.to_dict() if self.worst_case else None
        values["statement"] = self.statement()
        return values


def round_up(value: float, digits: int = 3) -> str:
    """``value`` with a few significant digits, never below it."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    step = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    rounded = math.ceil(value / step * (1 - 1e-12)) * step
    return f"{rounded:.{digits}g}"
