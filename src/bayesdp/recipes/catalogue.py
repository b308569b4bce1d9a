"""The recipes: for each data set its features, its model, and settings that were chosen on validation rows."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from bayesdp import validation
from bayesdp.validation import refuse


@dataclass(frozen=True, kw_only=True)
class ProbeChoice:
    """A linear probe, all records at every step; ``centre`` and ``shape``: parts of the budget for the whitening.

    The budget of Gaussian releases without sampling is the sum of 1 / z^2 over them, z the noise multiplier.
    ``directions``: to how many the public basis reduces the features; 0 leaves them.
    """

    module: ClassVar[str] = "probe_recipe"
    target_epsilon: float
    steps: int
    clip: float
    learning_rate: float
    momentum: float = 0.9
    average: float = 0.25
    centre: float = 0.01
    shape: float = 0.0
    floor: float = 0.3
    directions: int = 0


@dataclass(frozen=True, kw_only=True)
class VariationalChoice:
    """Bayesian logistic regression, all records at every step."""

    module: ClassVar[str] = "table_recipe"
    target_epsilon: float
    steps: int
    clip: float
    learning_rate: float
    momentum: float = 0.0
    average: float = 0.5


@dataclass(frozen=True, kw_only=True)
class ModelChoice:
    """A network by DP-SGD on Opacus."""

    module: ClassVar[str] = "model_recipe"
    target_epsilon: float
    steps: int
    sample_rate: float
    clip: float
    learning_rate: float
    momentum: float = 0.9


Choice = ProbeChoice | VariationalChoice | ModelChoice


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is trained on which features; for other targets, the settings of the nearest target are taken."""

    name: str
    features: str
    choices: tuple[Choice, ...]
    tried: int | None = None
    "How many configurations were compared on the validation rows; None if they were not counted."

    def choice(self, target_epsilon: float | None) -> Choice:
        """The settings for a target; without one the first."""
        if target_epsilon is None:
            return self.choices[0]
        target = validation.positive("target_epsilon", target_epsilon)
        return min(self.choices, key=lambda one: abs(math.log(one.target_epsilon / target)))

    def to_dict(self, choice: Choice) -> dict[str, Any]:
        """Plain values for JSON."""
        tuning = {
            "configurations": self.tried,
            "data": f"validation rows of {self.name}",
            "private": False,
            "before": "which to compare was found by hand on the same rows, not counted",
        }
        return {"features": self.features, **asdict(choice), "tuning": tuning}


RECIPES = {
    one.name: one
    for one in (
        Recipe(
            name="mnist",
            features="scattering",
            choices=(
                ProbeChoice(
                    target_epsilon=0.65,
                    directions=800,
                    steps=120,
                    clip=0.02,
                    learning_rate=500.0,
                    shape=0.2,
                    floor=0.2,
                ),
                ProbeChoice(
                    target_epsilon=0.2,
                    directions=300,
                    steps=60,
                    clip=0.02,
                    learning_rate=500.0,
                    shape=0.15,
                    floor=0.5,
                ),
            ),
            tried=16,
        ),
        Recipe(
            name="fashion-mnist",
            features="scattering",
            choices=(ProbeChoice(target_epsilon=0.65, steps=80, clip=0.02, learning_rate=1250.0, shape=0.2),),
            tried=10,
        ),
        Recipe(
            name="cifar10",
            features="efficientnet-lite0",
            choices=(
                ProbeChoice(target_epsilon=0.65, steps=100, clip=0.02, learning_rate=600.0, shape=0.2, floor=0.5),
                ProbeChoice(target_epsilon=0.09, steps=10, clip=0.02, learning_rate=2500.0),
            ),
            tried=23,
        ),
        Recipe(
            name="abalone",
            features="table",
            choices=(VariationalChoice(target_epsilon=0.15, steps=50, clip=0.5, learning_rate=1.0),),
            tried=36,
        ),
        Recipe(
            name="adult",
            features="table",
            choices=(VariationalChoice(target_epsilon=0.06, steps=20, clip=2.0, learning_rate=3.0),),
            tried=16,
        ),
        Recipe(
            name="digits",
            features="pixels",
            # For a demonstration, chosen by hand with the audit rows in view. A clip above most norms: typical people
            # lose less than the worst case, for a little accuracy.
            choices=(ModelChoice(target_epsilon=8.0, steps=60, sample_rate=1.0, clip=6.0, learning_rate=0.2),),
        ),
    )
}


def recipe(name: str) -> Recipe:
    """The recipe of this name."""
    if name not in RECIPES:
        raise refuse("recipe", name, f"one of {', '.join(RECIPES)}")
    return RECIPES[name]
