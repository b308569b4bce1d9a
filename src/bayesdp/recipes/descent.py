"""What follows noisy gradients: weights with momentum and averages (``Descent``), and a Gaussian posterior.

All of it is post-processing of released sums, so it costs no privacy. Both keep their state in checkpoints.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bayesdp import validation
from bayesdp.validation import FloatArray, refuse

_FIRST_CURVATURE = 0.1  # of one record, before anything is known; it is at most 1/4 of a squared feature


@dataclass(frozen=True, kw_only=True)
class SgdSettings:
    """Settings of a run of DP-SGD, checked when they are made.

    ``steps`` noisy sums are released. Each record is in the sum of a step with probability ``sample_rate``; a rate of 1
    takes all records at every step, without sampling. Gradients are clipped to the norm ``clip``, and the noise on
    their sum has the standard deviation ``noise_multiplier * clip``. ``mask`` is the share of weights that a step
    updates, drawn anew for each step; None updates all. ``average`` is the share of steps, at the end, whose weights
    are averaged into the result.

    Raises InvalidInputError for a setting out of its range.
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
        """Return plain values for JSON."""
        return asdict(self)


class Descent:
    """Weights that follow noisy gradients, with their momentum and the average of the last ones."""

    def __init__(self, start: FloatArray, settings: SgdSettings) -> None:
        self.weights = start.copy()
        self._settings = settings
        self._velocity = np.zeros_like(start)
        self._sum = np.zeros_like(start)
        self._averaged = 0

    def update(self, gradient: FloatArray, step: int) -> None:
        """Take step number ``step``, counted from 0, along a noisy gradient of the shape of the weights."""
        velocity = self._settings.momentum * self._velocity + gradient
        self.weights, self._velocity = self.weights - self._settings.learning_rate * velocity, velocity
        if step >= round((1 - self._settings.average) * self._settings.steps):
            self._sum, self._averaged = self._sum + self.weights, self._averaged + 1

    @property
    def result(self) -> FloatArray:
        """The averaged weights; the last weights if none were averaged."""
        return self._sum / self._averaged if self._averaged else self.weights

    def state(self) -> dict[str, FloatArray]:
        """Return the arrays that ``restore`` needs."""
        return {
            "weights": self.weights,
            "velocity": self._velocity,
            "sum": self._sum,
            "averaged": np.array([float(self._averaged)]),
        }

    def restore(self, state: dict[str, FloatArray]) -> None:
        """Go back to a state. Raises InvalidInputError if it is of a model of another size."""
        for name, expected in self.state().items():
            if name not in state or state[name].shape != expected.shape:
                raise refuse("checkpoint", name, "the checkpoint of a model of the same size")
        self.weights, self._velocity, self._sum = state["weights"], state["velocity"], state["sum"]
        self._averaged = int(state["averaged"][0])


class GaussianPosterior:
    """Independent Gaussians, whose means follow gradient descent and whose widths come from the curvature.

    ``variational.py`` says which posterior this approximates and why. ``d`` is the number of weights, ``prior`` the
    standard deviation of their prior N(0, prior^2).
    """

    def __init__(self, d: int, records: int, prior: float, settings: SgdSettings) -> None:
        self._descent = Descent(np.zeros(d), settings)
        self._curvature = _Curvature(np.full(d, _FIRST_CURVATURE * records))
        self._prior, self._records = prior, records

    @property
    def mean(self) -> FloatArray:
        """The means around which the next theta is drawn."""
        return self._descent.weights

    @property
    def scale(self) -> FloatArray:
        """The standard deviations, never larger than that of the prior."""
        return self._curvature.scale(self._prior)

    @property
    def result(self) -> FloatArray:
        """The means, averaged over the last steps."""
        return self._descent.result

    def update(self, gradient: FloatArray, eta: FloatArray, noise_std: float, step: int) -> None:
        """Take a step along the noisy gradient of all records at mean + scale * eta."""
        scale = self.scale
        self._curvature.add(gradient * eta / scale, noise_std / scale)
        self._descent.update((gradient + self.mean / self._prior**2) / self._records, step)

    def state(self) -> dict[str, FloatArray]:
        """Return the arrays that ``restore`` needs."""
        return {**self._descent.state(), "curvature": self._curvature.mean, "precision": self._curvature.weight}

    def restore(self, state: dict[str, FloatArray]) -> None:
        """Go back to a state. Raises InvalidInputError if it is of a model of another size."""
        self._descent.restore(state)
        self._curvature.mean, self._curvature.weight = state["curvature"], state["precision"]


class _Curvature:
    """The expected curvature of the negative log likelihood along each coordinate, as a mean of noisy values.

    Each value is weighted by its precision, and the first guess as if its standard deviation were its size: where noise
    swamps the curvature, the guess stays.
    """

    def __init__(self, first: FloatArray) -> None:
        self.weight = first**-2
        self.mean = first

    def add(self, noisy: FloatArray, std: FloatArray) -> None:
        """Add a noisy value, with the standard deviation of its noise."""
        weight = self.weight + std**-2
        self.mean = self.mean + (noisy - self.mean) * std**-2 / weight
        self.weight = weight

    def scale(self, prior: float) -> FloatArray:
        """Return the standard deviation of the posterior, never larger than the prior's, whatever the noise."""
        return 1 / np.sqrt(np.maximum(self.mean, 0.0) + prior**-2)
