"""What an experiment of the paper is: it computes plain values, draws them, and judges what the paper says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bayesdp.progress import Progress

Result = dict[str, Any]
"""The figures of one experiment as plain values: what its JSON file holds."""
MARKS = {True: "holds", False: "does not hold", None: "open"}
"""How a verdict reads in words."""
DATA_SETS = {"mnist": "MNIST", "cifar10": "CIFAR-10", "abalone": "Abalone", "adult": "Adult"}
"""How the data sets of the paper are written, by their names here."""


@dataclass(frozen=True, kw_only=True)
class ExperimentOptions:
    """What someone who repeats an experiment may choose."""

    seed: int = 0
    small: bool = False
    "A trial with few steps and little data: it shows that everything runs, and is not compared with the paper."
    data: Path | None = None
    "The folder with the data sets; without it BAYESDP_DATA or OpenML."
    folder: Path = Path("reproduction")
    "Where results go; trained models are kept below it."
    track: Progress = iter


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether one statement of the paper holds, by the authors' own procedure and by correct accounting, and why.

    The field names are keys of the JSON files in results/.
    """

    says: str
    "The statement, in the paper's sense but our words."
    as_published: bool | None
    "Whether it holds for the figures that the authors' procedure gives; None if those were not computed."
    accounted_right: bool | None
    "Whether it holds when the theorem is used only where it covers the mechanism, or is not needed; None if open."
    why: str

    def lines(self) -> str:
        """Return the verdict as two lines to print: the statement, then whether it holds and why."""
        said = f"{MARKS[self.as_published]} as published, {MARKS[self.accounted_right]} with correct accounting"
        return f"The paper says: {self.says}\n  {said}. {self.why}"


class Experiment(Protocol):
    """A module that repeats one experiment of the paper.

    ``compute`` does the work and returns plain values; the other functions need only these, so that pictures, page and
    verdicts can be made again from a JSON file. The words of the page are in ``templates/TARGET.md``.
    """

    TITLE: str
    SECONDS: float
    "About how long it takes on two cores, without the training of image models."

    def compute(self, options: ExperimentOptions) -> Result:
        """Return all figures, those of the paper beside ours."""
        ...

    def draw(self, result: Result, figure: Any) -> None:
        """Draw the result into an empty matplotlib figure, in the manner of the printed one."""
        ...

    def template_values(self, result: Result) -> dict[str, Any]:
        """Return what the template needs and the result does not hold as it is: lines of tables, derived figures."""
        ...

    def verdicts(self, result: Result) -> list[Verdict]:
        """Return which statements of the paper hold, judged by these figures alone."""
        ...


def rounded(values: Iterable[float], digits: int = 8) -> list[float]:
    """Return the values rounded to significant digits, which keeps JSON files readable."""
    return [float(f"{value:.{digits}g}") for value in values]
