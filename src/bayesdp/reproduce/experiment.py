"""What an experiment is: it computes plain values, draws them, and tells what they say."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

Found = dict[str, Any]
"""What was computed, for JSON."""
MARKS = {True: "holds", False: "does not hold", None: "open"}
"""Of something the paper says."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is asked for."""

    seed: int = 0
    small: bool = False
    "A few steps and little data: to try it, not to compare."
    data: Path | None = None
    "A folder with the data sets; otherwise BAYESDP_DATA or OpenML."
    folder: Path = Path("reproduction")
    "Where results are; trained models are kept below it."
    track: Callable[[Sequence[Any]], Iterable[Any]] = iter


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """On one thing the paper says."""

    says: str
    as_published: bool | None
    "Whether it holds for what the authors' procedure gives; None if that was not computed."
    accounted_right: bool | None
    "Whether it holds when the theorem is used where it covers the mechanism, or needs no theorem; None if open."
    why: str

    def lines(self) -> str:
        """To print."""
        said = f"{MARKS[self.as_published]} as published, {MARKS[self.accounted_right]} when accounted right"
        return f"The paper says: {self.says}\n  {said}. {self.why}"


class Experiment(Protocol):
    """A module of this package."""

    TITLE: str
    SECONDS: float
    "About how long it takes on two cores."

    def compute(self, options: Options) -> Found:
        """All figures, published ones beside ours."""
        ...

    def draw(self, found: Found, figure: Any) -> None:
        """Into a matplotlib figure, like the printed one."""
        ...

    def story(self, found: Found) -> str:
        """What it shows, in Markdown."""
        ...

    def verdicts(self, found: Found) -> list[Verdict]:
        """What of the paper holds, by these figures."""
        ...


def short(values: Iterable[float], digits: int = 8) -> list[float]:
    """So many digits of each, to keep files readable."""
    return [float(f"{value:.{digits}g}") for value in values]


def for_json(value: Any) -> Any:
    """The same with None for what is not finite, which JSON has no word for."""
    if isinstance(value, dict):
        return {name: for_json(one) for name, one in cast(dict[str, Any], value).items()}
    if isinstance(value, list | tuple):
        return [for_json(one) for one in cast(Sequence[Any], value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """In Markdown; numbers with three digits."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(_cell(one) for one in row) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
