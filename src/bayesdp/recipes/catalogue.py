"""The recipes: the features, the model and the settings for each data set, chosen on validation rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from bayesdp import validation
from bayesdp.validation import refuse


@dataclass(frozen=True, kw_only=True)
class ProbeChoice:
    """Settings of a linear probe on whitened features, with all records at every step.

    ``centre`` and ``shape`` are the parts of the budget that the two releases for the whitening take; a ``shape`` of 0
    leaves the second one out. The budget of Gaussian releases without sampling is the sum of 1 / z^2 over them, with z
    the noise multiplier. ``floor`` is the least variance, see ``release_shape``. ``directions`` is the number of
    features that the public basis leaves; 0 keeps all of them. ``average`` is the share of steps, at the end, whose
    weights are averaged.
    """

    module: ClassVar[str] = "linear_probe"
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

    @property
    def whitening_releases(self) -> int:
        """How many releases come before the steps of the probe: the centre, and the shape if it has a part."""
        return 1 + (self.shape > 0)


@dataclass(frozen=True, kw_only=True)
class VariationalChoice:
    """Settings of Bayesian logistic regression, with all records at every step."""

    module: ClassVar[str] = "variational"
    target_epsilon: float
    steps: int
    clip: float
    learning_rate: float
    momentum: float = 0.0
    average: float = 0.5


@dataclass(frozen=True, kw_only=True)
class NetworkChoice:
    """Settings of a network that is trained by DP-SGD on Opacus."""

    module: ClassVar[str] = "dp_sgd"
    target_epsilon: float
    steps: int
    sample_rate: float
    clip: float
    learning_rate: float
    momentum: float = 0.9


Choice = ProbeChoice | VariationalChoice | NetworkChoice
"""Settings for one target; ``fit_recipe(run, choice)`` of ``bayesdp.recipes.<choice.module>`` trains with them."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is trained on which features: settings for one target epsilon or more, the default first."""

    name: str
    features: str
    choices: tuple[Choice, ...]
    tried: int | None = None
    "The number of configurations that were compared on validation rows; None if they were not counted."
    before: str = "which to compare was found by hand on the same rows, not counted"
    "How it was found what to compare."
    audit_uses: Mapping[float, str] = field(default_factory=dict[float, str])
    "What audit rows were used for while the settings for a target were found, by target; see ``Ledger.create``."

    def choice(self, target_epsilon: float | None) -> Choice:
        """Return the settings for the nearest target, in terms of ratios; for None the default.

        Raises InvalidInputError unless the target is a finite number above 0.
        """
        if target_epsilon is None:
            return self.choices[0]
        target = validation.positive("target_epsilon", target_epsilon)
        return min(self.choices, key=lambda choice: abs(math.log(choice.target_epsilon / target)))

    def audit_used_for(self, choice: Choice) -> str | None:
        """Return what the audit rows were used for while these settings were found; None if for nothing."""
        return self.audit_uses.get(choice.target_epsilon)

    def to_dict(self, choice: Choice) -> dict[str, Any]:
        """Return plain values for JSON: the features, the settings, and how the settings were chosen."""
        tuning = {
            "configurations": self.tried,
            "data": f"validation rows of {self.name}",
            "private": False,
            "audit_used_for": self.audit_used_for(choice),
            "before": self.before,
        }
        return {"features": self.features, **asdict(choice), "tuning": tuning}


_SECOND_LOOK = "a first look at the accuracy, after which settings were changed"
RECIPES = {
    recipe.name: recipe
    for recipe in (
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
            audit_uses={0.65: _SECOND_LOOK},
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
            audit_uses={0.06: _SECOND_LOOK},
        ),
        Recipe(
            name="sst2",
            features="sentence-encoder",
            choices=(ProbeChoice(target_epsilon=1.0, steps=80, clip=0.1, learning_rate=60.0, shape=0.1, floor=0.5),),
            tried=8,
        ),
        Recipe(
            name="digits",
            features="pixels",
            # For a demonstration: of the settings within two points of the most accurate, those in which validation
            # rows are the least exposed, so that typical people lose less than the worst case.
            choices=(NetworkChoice(target_epsilon=3.0, steps=40, sample_rate=1.0, clip=2.0, learning_rate=0.5),),
            tried=48,
            before="network and range of settings were found by hand on other splits, before the audit rows were drawn",
        ),
    )
}


def find_recipe(name: str) -> Recipe:
    """Return the recipe of this name. Raises InvalidInputError for a name that is in no catalogue."""
    if name not in RECIPES:
        raise refuse("recipe", name, f"one of {', '.join(RECIPES)}")
    return RECIPES[name]
