"""What training with a recipe gives back: one run, or several with different seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bayesdp.claims import RunClaims
from bayesdp.formatting import finite_or_none, percent
from bayesdp.guarantees.clip_bound import worst_case_of_many
from bayesdp.guarantees.worst_case import WorstCase
from bayesdp.mechanisms.gaussian import RepeatedStep
from bayesdp.recipes.recipe_run import Fitted
from bayesdp.validation import refuse

_NO_TIME = "not given: it would tell how many runs there were, or whether the first was chosen, which must stay secret"


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A private model and what may be claimed about it.

    ``accuracy`` is the share of ``judged_on`` (audit or test rows) that are classified correctly; ``baseline_accuracy``
    the same without noise, which is not private, or None. ``seconds`` is the time that everything took, data and report
    included; None for a run that was chosen among others. The whole time would tell how many there were, and that of
    the run alone whether it was the first, and both must stay secret.
    """

    recipe: str
    accuracy: float
    baseline_accuracy: float | None
    claims: RunClaims
    settings: dict[str, Any]
    seed: int
    reproducible: bool
    seconds: float | None
    model: Fitted
    repeated_steps: list[RepeatedStep] | None
    "Noise multiplier, sampling rate and number of its steps, for composition; None for a run chosen among others."
    judged_on: str = "audit rows"
    aim: str | None = None
    "What the settings were chosen for and what was given up, in words; None for the aim everyone."

    def statement(self) -> str:
        """Return accuracy and claims in about ten lines."""
        accuracy = f"{self.recipe}: {100 * self.accuracy:.2f} % of the {self.judged_on} classified correctly"
        if self.baseline_accuracy is not None:
            accuracy += f"; without privacy, which is not for release, {100 * self.baseline_accuracy:.2f} %"
        aim = "" if self.aim is None else f"Aim: {self.aim}\n"
        return f"{accuracy}.\n{aim}{self.claims.statement()}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; what cannot be claimed is None with a reason."""
        without = "not computed: it is not private, so it must be asked for (--baseline, or --reproducible)"
        return {
            "recipe": self.recipe,
            "accuracy": self.accuracy,
            "baseline_accuracy": self.baseline_accuracy,
            **({"baseline_reason": without} if self.baseline_accuracy is None else {}),
            **self.claims.to_dict(),
            "seconds": self.seconds,
            **({"seconds_reason": _NO_TIME} if self.seconds is None else {}),
            "seed": self.seed,
            "for_release": not self.reproducible and self.baseline_accuracy is None,
            "settings": self.settings,
        }


@dataclass(frozen=True)
class SeedRuns:
    """Runs of one recipe with different seeds, on the same rows and with the same audit rows.

    Raises InvalidInputError for a run that was chosen among others (``tune``): its steps do not include the choice.
    """

    runs: Sequence[Trained]

    def __post_init__(self) -> None:
        for run in self.runs:
            _composable(run)

    @property
    def combined_worst_case(self) -> WorstCase:
        """The worst case against someone who sees all of the models."""
        steps = [part for run in self.runs for part in _composable(run)]
        return worst_case_of_many(steps, self.runs[0].claims.worst_case.delta)

    def statement(self) -> str:
        """Return the statement of each run, and then that of all of them together."""
        parts = [run.statement() for run in self.runs]
        parts.append(
            f"All {len(self.runs)} models together, also if only the best of them is published: "
            f"{self.combined_worst_case.statement()} To choose the best by audit rows is to use these: what rests on "
            "them is then an estimate for the model that was chosen."
        )
        return "\n\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: the runs, mean and standard deviation, the worst case of all together."""
        figures: dict[str, list[float]] = {
            "accuracy": [run.accuracy for run in self.runs],
            "epsilon": [run.claims.worst_case.epsilon for run in self.runs],
        }
        for number, pair in enumerate(self.runs[0].claims.shares):
            name = f"epsilon for {percent(pair.ex_post.share or 0)}"
            figures[name] = [run.claims.shares[number].ex_post.epsilon for run in self.runs]
        mean = {name: finite_or_none(float(np.mean(values))) for name, values in figures.items()}
        with np.errstate(invalid="ignore"):
            spread = {name: finite_or_none(float(np.std(values))) for name, values in figures.items()}
        runs = [run.to_dict() for run in self.runs]
        return {"runs": runs, "mean": mean, "sd": spread, "together": self.combined_worst_case.to_dict()}


def _composable(run: Trained) -> list[RepeatedStep]:
    if run.repeated_steps is None:
        expected = "runs that were not chosen among others (--tune): choices among runs are not composed"
        raise refuse("repeated_steps", None, expected)
    return run.repeated_steps
