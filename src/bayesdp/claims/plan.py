"""The plan of a run: steps, noise, sampling rate and clip bound, declared before the first step.

"Proved" needs it. The epsilon of the steps taken so far is differential privacy only if nobody chose their number by
looking at the model: whoever trains "one more epoch" because the last one looked bad, or stops because it looked good,
can have a delta tens of times as large as the one claimed at that epsilon (docs/theory.md). The epsilon of a plan needs
no such assumption: a run that stops early is the planned run with the rest of its outputs thrown away.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, cast

from bayesdp import validation
from bayesdp.ledger import StoredLedger, Stretch
from bayesdp.mechanisms.gaussian import RepeatedStep
from bayesdp.validation import refuse

_ROUNDING = 2.0**-50  # relative: what dividing noise by the clip bound rounds, and no more


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One stage of a run: ``steps`` steps with these settings, in the units of ``Ledger.step``.

    Raises InvalidInputError for values that no step could have.
    """

    steps: int
    noise_std: float
    sample_rate: float
    clip: float

    def __post_init__(self) -> None:
        checked = {
            "steps": validation.count("steps", self.steps, minimum=1),
            "noise_std": validation.noise_std(self.noise_std),
            "sample_rate": validation.sample_rate(self.sample_rate),
            "clip": validation.positive("clip", self.clip),
        }
        validation.noise_multiplier(checked["noise_std"] / checked["clip"])
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def noise_multiplier(self) -> float:
        """The standard deviation of the noise over the clip bound, as accountants want it."""
        return self.noise_std / self.clip

    def covers(self, taken: Stretch | Plan) -> bool:
        """Whether steps with the settings of ``taken`` reveal no more than planned: as much noise, no higher rate."""
        noise_multiplier = taken.noise_multiplier
        return (
            noise_multiplier is not None
            and noise_multiplier >= self.noise_multiplier * (1 - _ROUNDING)
            and taken.sample_rate <= self.sample_rate * (1 + _ROUNDING)
        )


@dataclass(frozen=True)
class DeclaredPlan:
    """The stages of a run, one after the other, as a ledger keeps them."""

    stages: tuple[Plan, ...]

    @staticmethod
    def of(plan: Any) -> DeclaredPlan:
        """Collect the stages of a ``Plan``, or of several; raises InvalidInputError for anything else, and for none."""
        given = cast("list[Any]", [*plan] if isinstance(plan, list | tuple) else [plan])
        stages = [stage for stage in given if isinstance(stage, Plan)]
        if not stages or len(stages) != len(given):
            raise refuse("plan", cast(object, plan), "a Plan, or a list of them for the stages of a run")
        return DeclaredPlan(tuple(stages))

    @property
    def steps(self) -> int:
        """How many steps are planned in all."""
        return sum(stage.steps for stage in self.stages)

    @property
    def ends(self) -> list[int]:
        """The number of the last step of each stage."""
        return list(accumulate(stage.steps for stage in self.stages))

    def repeated_steps(self) -> list[RepeatedStep]:
        """Return the planned steps as (noise multiplier, sampling rate, steps)."""
        return [(stage.noise_multiplier, stage.sample_rate, stage.steps) for stage in self.stages]

    def departure(self, stretches: Sequence[Stretch]) -> str | None:
        """Return in words where a run left the plan; None if each step revealed no more than was planned for it.

        The comparison is step by step: the t-th step of the run against the t-th step of the plan. Then the run is
        dominated by the plan, however its settings were chosen (dominating pairs compose adaptively; Zhu, Dong & Wang
        2022, "Optimal accounting of differential privacy via characteristic function", Theorem 10).
        """
        ends = self.ends
        for stretch in stretches:
            first, last = stretch.first, stretch.first + stretch.steps - 1
            for stage, end in zip(self.stages, ends, strict=True):
                if end - stage.steps < last and first <= end and not stage.covers(stretch):
                    step = max(first, end - stage.steps + 1)
                    return f"step {step} had less noise, or a higher sampling rate, than planned"
            if last > self.steps:
                return f"{last} steps were taken, {self.steps} were planned"
        return None

    def to_json(self) -> str:
        """Return the plan as text, for the settings of a ledger."""
        return json.dumps([asdict(stage) for stage in self.stages])

    @staticmethod
    def from_json(text: str) -> DeclaredPlan:
        """Return the plan from the text that ``to_json`` gave."""
        return DeclaredPlan(tuple(Plan(**stage) for stage in json.loads(text)))


def declared_plan(ledger: StoredLedger) -> DeclaredPlan | None:
    """Return the plan that was declared when a ledger was created, if there is one."""
    declared = ledger.declared_plan
    return None if declared is None else DeclaredPlan.from_json(declared)
