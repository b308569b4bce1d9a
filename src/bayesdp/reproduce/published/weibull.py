"""Synthetic gradients with heavy tails, 50 records of 1000 coordinates, and their accounting two ways.

As published: the distances of all 1225 pairs, and noise of 2C, so that a pair clipped to C has exposure 1 at most.
By norms: what one record adds, and noise of C.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesdp.guarantees.worst_case import epsilon as worst_case
from bayesdp.mechanisms import SubsampledGaussian
from bayesdp.paper.bayesian_accountant import BayesianAccountant
from bayesdp.profiles.conversion import epsilon_from_costs
from bayesdp.reproduce.published import accountants
from bayesdp.validation import FloatArray

RATE = 1 / 1000
DELTA = 1e-5
ALL_LAMBDAS = np.arange(1.0, 65.0)
_GAMMA = 2.0**-53
_LEFT, _RIGHT = np.triu_indices(50, 1)


def curves(order: int) -> dict[str, tuple[str, str, str]]:
    """Return label, colour and style of each curve in a panel; ``order`` is the lambda that the paper printed."""
    return {
        "dp_published": (f"DP, as published (lambda {order})", "black", "-"),
        "bdp_published": (f"BDP, as published (lambda {order})", "tab:red", "-"),
        "dp_moments": ("DP, moments, best lambda", "black", "--"),
        "dp_pld": ("DP, PLD", "black", ":"),
        "bdp_best": ("BDP, best lambda", "tab:red", "--"),
        "bdp_norms": ("BDP, norms, best lambda", "tab:blue", "--"),
    }


def draw_gradients(rng: np.random.Generator) -> FloatArray:
    """Return gradients of 50 records, [50, 1000]; every coordinate is Weibull(0.5)."""
    return rng.weibull(0.5, (50, 1000))


def pair_distances(gradients: FloatArray) -> FloatArray:
    """Return the distances of all pairs of 50 gradients, [1225]."""
    gram = gradients @ gradients.T
    squares: NDArray[Any] = np.diag(gram)
    return np.sqrt(np.maximum(0.0, squares[_LEFT] + squares[_RIGHT] - 2 * gram[_LEFT, _RIGHT]))


def published_accountant(total_steps: int, lambdas: FloatArray) -> BayesianAccountant:
    """Return the authors' accountant at the orders given, before its first step."""
    return accountants.published_accountant(total_steps, lambdas, _GAMMA)


def norms_accountant(total_steps: int) -> BayesianAccountant:
    """Return the accountant of what one record adds, at orders 1 to 64, before its first step."""
    return accountants.norms_accountant(total_steps, ALL_LAMBDAS, _GAMMA)


def best_epsilon(accountant: BayesianAccountant) -> float:
    """Return epsilon at delta 1e-5 and the best order."""
    return accountants.best_epsilon(accountant, DELTA)


def moments_accountant(exposure: float, steps: int, lambdas: FloatArray) -> float:
    """Return classic DP's epsilon at one exposure by Chernoff, at the best of the orders given."""
    return epsilon_from_costs(_costs(exposure, steps, lambdas), lambdas, DELTA, "chernoff")[0]


def same_orders(exposure: float, steps: int) -> float:
    """Return classic DP's epsilon at one exposure with the orders and the conversion of `norms_accountant`."""
    return epsilon_from_costs(_costs(exposure, steps, ALL_LAMBDAS), ALL_LAMBDAS, DELTA, "improved")[0]


def _costs(exposure: float, steps: int, lambdas: FloatArray) -> FloatArray:
    return steps * SubsampledGaussian(sample_rate=RATE).log_moment([exposure], lambdas)[0]


def classic(exposure: float, steps: int) -> tuple[float, float | None]:
    """Return classic DP's epsilon at one exposure by Rényi divergences and by privacy loss distributions."""
    bounds = worst_case(noise_multiplier=1 / exposure, sample_rate=RATE, steps=steps, delta=DELTA)
    return bounds.rdp_epsilon, bounds.pld_epsilon
