"""The stages of a recipe's run, known before it begins: how many steps with how much noise. They are its plan."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from bayesdp.claims.plan import Plan
from bayesdp.guarantees.calibration import calibrate
from bayesdp.recipes.choices import Choice, NetworkChoice, ProbeChoice
from bayesdp.validation import refuse


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Consecutive steps of a recipe with equal settings, before they are taken; a run has one stage or more.

    ``noise_multiplier`` is the standard deviation of the noise over ``clip``, the bound on each record's contribution;
    ``sample_rate`` the probability with which a record takes part in a step.
    """

    steps: int
    noise_multiplier: float
    sample_rate: float
    clip: float

    def plan(self) -> Plan:
        """Return the stage as a part of the plan that the ledger declares."""
        noise_std = self.noise_multiplier * self.clip
        return Plan(steps=self.steps, noise_std=noise_std, sample_rate=self.sample_rate, clip=self.clip)


@lru_cache(maxsize=64)
def stages(choice: Choice, target_epsilon: float, delta: float) -> tuple[Stage, ...]:
    """Return the stages of a run whose worst case is at most ``target_epsilon``, the training itself last.

    A linear probe first releases the centre of the features, and perhaps their shape. A Gaussian release with noise
    multiplier z is worth as much as several with the same sum of 1 / z^2, so a part p of the budget gets z / sqrt(p).
    Raises InvalidInputError if whitening takes the whole budget.
    """
    if not isinstance(choice, ProbeChoice):
        rate = choice.sample_rate if isinstance(choice, NetworkChoice) else 1.0
        noise = calibrate(target_epsilon=target_epsilon, sample_rate=rate, steps=choice.steps, delta=delta)
        return (Stage(steps=choice.steps, noise_multiplier=noise.noise_multiplier, sample_rate=rate, clip=choice.clip),)
    if choice.centre + choice.shape >= 1:
        raise refuse("centre + shape", choice.centre + choice.shape, "less than 1: the rest is for training")
    single = calibrate(target_epsilon=target_epsilon, sample_rate=1.0, steps=1, delta=delta).noise_multiplier
    parts = [choice.centre, choice.shape][: choice.whitening_releases]
    whitening = [Stage(steps=1, noise_multiplier=single / math.sqrt(part), sample_rate=1.0, clip=1.0) for part in parts]
    training = Stage(
        steps=choice.steps,
        noise_multiplier=single * math.sqrt(choice.steps / (1 - choice.centre - choice.shape)),
        sample_rate=1.0,
        clip=choice.clip,
    )
    return (*whitening, training)
