"""The recipes: the features, the model and the settings for each data set, chosen on validation rows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bayesdp import validation
from bayesdp.recipes.choices import Choice, ImageNetworkChoice, NetworkChoice, ProbeChoice, VariationalChoice
from bayesdp.validation import refuse

AIMS = ("everyone", "typical")
"""For whom settings were chosen: the most accurate model for everyone's worst case, or the least epsilon for half."""


@dataclass(frozen=True, kw_only=True)
class OnValidationRows:
    """What settings gave on validation rows: the accuracy, and epsilon of half of the people, estimated."""

    accuracy: float
    half: float


@dataclass(frozen=True, kw_only=True)
class Typical:
    """Settings with which half of the people lose least at the same worst case, for less accuracy.

    ``gives`` is what they gave on validation rows, ``instead_of`` what the most accurate settings gave.
    """

    choice: Choice
    gives: OnValidationRows
    instead_of: OnValidationRows
    tried: int
    "The number of configurations that were compared."

    def statement(self) -> str:
        """Return in words what was given up and for what."""
        return (
            f"typical people. On validation rows these settings classified {100 * self.gives.accuracy:.2f} % correctly "
            f"where those for everyone had {100 * self.instead_of.accuracy:.2f} %; for that, epsilon of half of the "
            f"people was about {self.gives.half:.3f} instead of {self.instead_of.half:.3f}, at the same worst case of "
            f"{self.choice.target_epsilon:g}."
        )


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is trained on which features: settings for one target epsilon or more, the default first."""

    name: str
    features: str
    choices: tuple[Choice, ...]
    typical: tuple[Typical, ...] = ()
    "Settings for the aim typical, if there are any."
    candidates: tuple[Choice, ...] = ()
    "Settings among which ``--tune`` draws, whatever the target: a coarse range, the same for all data of a kind."
    tried: int | None = None
    "The number of configurations that were compared on validation rows; None if they were not counted."
    before: str = "which to compare was found by hand on the same rows, not counted"
    "How it was found what to compare."
    audit_used_for: str | None = None
    "What audit rows were used for before the settings were final, if for anything; see ``Ledger.create``."
    data: str | None = None
    "The data set, where the recipe has another name."
    audit_rows: int | None = None
    "The number of audit rows whose norms are recorded; None for all. The accuracy is always that of all of them."

    @property
    def data_name(self) -> str:
        """The name of the data set."""
        return self.name if self.data is None else self.data

    def choice(self, target_epsilon: float | None) -> Choice:
        """Return the settings for the nearest target, in terms of ratios; for None the default.

        Raises InvalidInputError unless the target is a finite number above 0.
        """
        return self.choices[_nearest([choice.target_epsilon for choice in self.choices], target_epsilon)]

    def aimed(self, target_epsilon: float | None) -> Typical:
        """Return the settings for the aim typical, with what they give up, as ``choice`` does for the aim everyone.

        Raises InvalidInputError if the recipe has none.
        """
        if not self.typical:
            known = ", ".join(name for name, recipe in RECIPES.items() if recipe.typical)
            raise refuse("aim", "typical", f"everyone for the recipe {self.name}; typical settings exist for {known}")
        return self.typical[_nearest([typical.choice.target_epsilon for typical in self.typical], target_epsilon)]

    def to_dict(self, choice: Choice, typical: Typical | None = None) -> dict[str, Any]:
        """Return plain values for JSON: the features, the settings, and how the settings were chosen."""
        tuning = {
            "configurations": self.tried,
            "data": f"validation rows of {self.data_name}",
            "private": False,
            "audit_used_for": self.audit_used_for,
            "before": self.before,
        }
        aim: dict[str, Any] = {"aim": AIMS[typical is not None]}
        if typical is not None:
            tuning["configurations"] = typical.tried
            aim["given_up"] = {"gives": asdict(typical.gives), "instead_of": asdict(typical.instead_of)}
        return {"features": self.features, **aim, **asdict(choice), "tuning": tuning}


def _nearest(targets: Sequence[float], target_epsilon: float | None) -> int:
    """Return the number of the target that is nearest in terms of ratios; 0 for None."""
    if target_epsilon is None:
        return 0
    target = validation.positive("target_epsilon", target_epsilon)
    return min(range(len(targets)), key=lambda number: abs(math.log(targets[number] / target)))


def _probes() -> tuple[Choice, ...]:
    """Return a coarse range for probes. Rows have length 1, so the length of a first step is the rate times the clip.

    A clip of 0.02 cuts nearly every gradient to the same length: then steps of a total length of 5 to 40 are tried.
    """
    grid = itertools.product((30, 100), (5.0, 10.0, 20.0, 40.0), (0.05, 0.2))
    return tuple(
        ProbeChoice(target_epsilon=1.0, steps=steps, clip=0.02, learning_rate=length / 0.02, shape=shape)
        for steps, length, shape in grid
    )


def _quiet_probe(**settings: Any) -> ProbeChoice:
    """Return a probe whose clip leaves most gradients whole; whitening, which charges everyone alike, costs little."""
    little: dict[str, Any] = {"centre": 0.003, "shape": 0.03, "floor": 0.5}
    return ProbeChoice(**(little | settings))


def _tables() -> tuple[Choice, ...]:
    """Return a coarse range for tables: ``length`` is what all steps together add up to with gradients at the clip."""
    return tuple(
        VariationalChoice(target_epsilon=1.0, steps=steps, clip=clip, learning_rate=length / (steps * clip))
        for steps, clip, length in itertools.product((10, 40), (0.5, 1.0, 2.0), (40.0, 80.0, 160.0))
    )


_NETWORKS: tuple[Choice, ...] = tuple(
    NetworkChoice(target_epsilon=1.0, steps=steps, sample_rate=1.0, clip=clip, learning_rate=rate)
    for steps, clip, rate in itertools.product((20, 40), (1.0, 2.0, 4.0), (0.25, 0.5, 1.0))
)
_LOOKED = "looks at the accuracy of earlier versions of this recipe"
RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="mnist",
            features="drawn-digits",
            candidates=_probes(),
            choices=(
                _quiet_probe(target_epsilon=0.65, steps=120, clip=0.3, learning_rate=250.0, momentum=0.5),
                _quiet_probe(target_epsilon=0.5, steps=120, clip=0.6, learning_rate=150.0, momentum=0.0),
                _quiet_probe(target_epsilon=0.2, steps=60, clip=0.15, learning_rate=250.0, momentum=0.5),
            ),
            typical=(
                Typical(
                    choice=_quiet_probe(
                        target_epsilon=0.65, steps=120, clip=0.6, learning_rate=150.0, momentum=0.0, shape=0.003
                    ),
                    gives=OnValidationRows(accuracy=0.9880, half=0.0685),
                    instead_of=OnValidationRows(accuracy=0.9892, half=0.1273),
                    tried=4,
                ),
            ),
            tried=32,
            audit_used_for=_LOOKED,
        ),
        Recipe(
            name="fashion-mnist",
            features="scattering-efficientnet",
            candidates=_probes(),
            choices=(
                _quiet_probe(target_epsilon=0.65, steps=120, clip=0.3, learning_rate=250.0, momentum=0.5, shape=0.1),
            ),
            tried=16,
            audit_used_for=_LOOKED,
        ),
        Recipe(
            name="cifar10",
            features="efficientnet-lite2-224",
            candidates=_probes(),
            choices=(
                ProbeChoice(target_epsilon=0.65, steps=60, clip=0.02, learning_rate=900.0, shape=0.2, floor=0.5),
                ProbeChoice(target_epsilon=0.2, steps=40, clip=0.02, learning_rate=800.0, shape=0.1, floor=0.5),
                ProbeChoice(target_epsilon=0.09, steps=10, clip=0.02, learning_rate=2500.0, shape=0.1, floor=0.5),
            ),
            typical=(
                Typical(
                    choice=_quiet_probe(
                        target_epsilon=0.65, steps=120, clip=0.6, learning_rate=75.0, momentum=0.0, shape=0.01
                    ),
                    gives=OnValidationRows(accuracy=0.9056, half=0.1575),
                    instead_of=OnValidationRows(accuracy=0.9112, half=0.3822),
                    tried=12,
                ),
            ),
            tried=62,
            audit_used_for=_LOOKED,
        ),
        Recipe(
            name="abalone",
            features="table",
            candidates=_tables(),
            choices=(
                VariationalChoice(target_epsilon=0.12, steps=100, clip=0.25, learning_rate=2.0),
                VariationalChoice(target_epsilon=0.15, steps=50, clip=0.5, learning_rate=1.0),
            ),
            tried=72,
            audit_used_for=_LOOKED,
        ),
        Recipe(
            name="adult",
            features="table",
            candidates=_tables(),
            choices=(VariationalChoice(target_epsilon=0.06, steps=100, clip=2.0, learning_rate=5.0, momentum=0.5),),
            typical=(
                Typical(
                    choice=VariationalChoice(target_epsilon=0.1, steps=80, clip=5.0, learning_rate=1.0),
                    gives=OnValidationRows(accuracy=0.8498, half=0.00753),
                    instead_of=OnValidationRows(accuracy=0.8534, half=0.0133),
                    tried=36,
                ),
            ),
            tried=94,
            audit_used_for=_LOOKED,
        ),
        Recipe(
            name="sst2",
            features="sentence-encoder",
            candidates=_probes(),
            choices=(ProbeChoice(target_epsilon=1.0, steps=80, clip=0.1, learning_rate=60.0, shape=0.1, floor=0.5),),
            tried=8,
            audit_used_for="first experiments, which suggested the layers of the features",
        ),
        Recipe(
            name="digits",
            features="pixels",
            candidates=_NETWORKS,
            # For a demonstration: of the settings within two points of the most accurate, those in which validation
            # rows are the least exposed, so that typical people lose less than the worst case.
            choices=(NetworkChoice(target_epsilon=3.0, steps=40, sample_rate=1.0, clip=2.0, learning_rate=0.5),),
            tried=48,
            before="network and range of settings were found by hand on other splits, before the audit rows were drawn",
        ),
        Recipe(
            name="mnist-network",
            data="mnist",
            features="normalised-pixels",
            choices=(
                ImageNetworkChoice(
                    target_epsilon=2.0,
                    network="standardised-grey",
                    steps=80,
                    sample_rate=0.1,
                    clip=1.0,
                    learning_rate=2.0,
                ),
            ),
            tried=5,
            audit_used_for=_LOOKED,
            audit_rows=500,
        ),
        Recipe(
            name="cifar10-network",
            data="cifar10",
            features="normalised-pixels",
            choices=(
                ImageNetworkChoice(
                    target_epsilon=3.0,
                    network="standardised-colour",
                    views="mirrored",
                    steps=200,
                    sample_rate=0.03,
                    clip=1.0,
                    learning_rate=1.0,
                ),
            ),
            tried=5,
            audit_used_for=_LOOKED,
            audit_rows=500,
        ),
    )
}


def find_recipe(name: str) -> Recipe:
    """Return the recipe of this name. Raises InvalidInputError for a name that is in no catalogue."""
    if name not in RECIPES:
        raise refuse("recipe", name, f"one of {', '.join(RECIPES)}")
    return RECIPES[name]
