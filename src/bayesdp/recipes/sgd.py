"""Gradient descent on noisy sums: settings, momentum, the average of the last weights. All of it is post-processing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bayesdp import validation
from bayesdp.validation import FloatArray, refuse


@dataclass(frozen=True, kw_only=True)
class SgdSettings:
    """How to train. ``sample_rate`` 1 takes all records at every step, without sampling.

    ``mask``: the share of weights that a step updates, drawn anew for each step. ``average``: the share of steps, at
    the end, whose weights are averaged into the result.
    """

    steps: int
    sample_rate: float
    clip: float
    noise_multiplier: float
    learning_rate: float
    momentum: float = 0.9
    mask: float | None = None
    average: float = 0.0

    def __post_init__(self) -> None:
        validation.count("steps", self.steps, minimum=1)
        validation.sample_rate(self.sample_rate)
        validation.positive("clip", self.clip)
        validation.noise_multiplier(self.noise_multiplier)
        validation.positive("learning_rate", self.learning_rate)
        if not 0 <= validation.non_negative("momentum", self.momentum) < 1:
            raise refuse("momentum", self.momentum, "a number from 0 to below 1")
        if self.mask is not None:
            validation.probability("mask", self.mask)
        if not 0 <= validation.non_negative("average", self.average) <= 1:
            raise refuse("average", self.average, "a share of the steps from 0 to 1")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


class Descent:
    """Weights, their momentum, and the average so far."""

    def __init__(self, start: FloatArray, settings: SgdSettings) -> None:
        self.weights = start.copy()
        self._settings = settings
        self._velocity = np.zeros_like(start)
        self._sum = np.zeros_like(start)
        self._averaged = 0

    def update(self, gradient: FloatArray, step: int) -> None:
        """One step, the ``step``-th from 0, along a noisy gradient."""
        velocity = self._settings.momentum * self._velocity + gradient
        self.weights, self._velocity = self.weights - self._settings.learning_rate * velocity, velocity
        if step >= round((1 - self._settings.average) * self._settings.steps):
            self._sum, self._averaged = self._sum + self.weights, self._averaged + 1

    @property
    def result(self) -> FloatArray:
        """The averaged weights; the last ones if none were averaged."""
        return self._sum / self._averaged if self._averaged else self.weights

    def state(self) -> dict[str, FloatArray]:
        """For a checkpoint."""
        return {
            "weights": self.weights,
            "velocity": self._velocity,
            "sum": self._sum,
            "averaged": np.array([float(self._averaged)]),
        }

    def restore(self, state: dict[str, FloatArray]) -> None:
        """From a checkpoint of the same model."""
        for name, expected in self.state().items():
            if name not in state or state[name].shape != expected.shape:
                raise refuse("checkpoint", name, "the checkpoint of a model of the same size")
        self.weights, self._velocity, self._sum = state["weights"], state["velocity"], state["sum"]
        self._averaged = int(state["averaged"][0])
