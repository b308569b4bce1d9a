"""The exact delta of one step of the subsampled Gaussian, and of two where the first output decides what the second is.

Of each output the attacker sees the part along one person's own direction: N(0, 1) without the person, and with them
N(exposure, 1) if they were drawn. Nothing of the accountant is used here.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import norm

from bayesdp.attack.small_training import step_losses
from bayesdp.claims.claim import Direction
from bayesdp.validation import FloatArray

DIRECTIONS: tuple[Direction, ...] = ("record in", "record out")
OUTPUTS, _SPACING = np.linspace(-9.0, 10.0, 3801, retstep=True)
"""The first outputs over which is summed; finer than anything here changes."""


def step_delta(
    exposure: float | FloatArray, epsilons: FloatArray, rate: float = 1.0, direction: Direction = "record in"
) -> FloatArray:
    """Return the hockey-stick divergence of one step at epsilons of either sign; arrays broadcast.

    The loss log(1 - q + q e^{e y - e^2/2}) rises with the output y: record in, it exceeds epsilon above one output, and
    record out, where its sign is reversed, below another. At q = 1 both are the same. Exposures are below 20.
    """
    sign = 1 if direction == "record in" else -1
    with np.errstate(divide="ignore"):
        power = np.log1p(np.maximum(np.expm1(np.minimum(sign * epsilons, 700.0)) / rate, -1.0))
    edge = power / exposure + np.asarray(exposure) / 2
    without = norm.cdf(-sign * edge)
    present = (1 - rate) * without + rate * norm.cdf(sign * (exposure - edge))
    p, q = (present, without) if direction == "record in" else (without, present)
    return np.maximum(p - np.exp(np.minimum(epsilons, 700.0)) * q, 0.0)


def two_steps_delta(
    first: FloatArray, second: FloatArray, epsilon: float, rate: float = 1.0, direction: Direction = "record in"
) -> FloatArray:
    """Return delta at ``epsilon`` of each person, [n], whose exposures are ``first`` [n, 1] and ``second``.

    ``second`` is [n, 1], or [n, len(OUTPUTS)] where it depends on the first output.
    """
    losses = step_losses(OUTPUTS, first, rate)
    density = norm.pdf(OUTPUTS) * (np.exp(losses) if direction == "record in" else 1.0) * _SPACING
    left = epsilon - (losses if direction == "record in" else -losses)
    return (density * step_delta(second, left, rate, direction)).sum(axis=1)
