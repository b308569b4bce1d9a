"""What settings a recipe has, by the kind of model; ``catalogue.py`` has the settings themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class ProbeChoice:
    """Settings of a linear probe on whitened features, with all records at every step.

    ``centre`` and ``shape`` are the parts of the budget that the two releases for the whitening take; a ``shape`` of 0
    leaves the second one out. The budget of Gaussian releases without sampling is the sum of 1 / z^2 over them, with z
    the noise multiplier. ``floor`` is the least variance, see ``release_shape``. ``average`` is the share of steps, at
    the end, whose weights are averaged.
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


@dataclass(frozen=True, kw_only=True)
class ImageNetworkChoice(NetworkChoice):
    """Settings of a network for images that is trained from scratch, see ``image_network.py``.

    ``network`` names its form, ``views`` the fixed variants of an image over which gradients are averaged before they
    are clipped. ``average`` is the share of steps, at the end, whose weights are averaged.
    """

    module: ClassVar[str] = "image_network"
    network: str
    views: str = "plain"
    average: float = 0.25


Choice = ProbeChoice | VariationalChoice | NetworkChoice
"""Settings for one target; ``fit_recipe(run, choice)`` of ``bayesdp.recipes.<choice.module>`` trains with them."""
