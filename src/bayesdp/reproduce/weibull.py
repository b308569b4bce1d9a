"""Synthetic gradients with heavy tails, 50 records of 1000 coordinates, and their accounting both ways.

As published: distances of all 1225 pairs, noise of 2C, so that a pair clipped to C has exposure 1 at most; one order.
Norms instead of pairs: what one record adds, noise of C; the best of all orders.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesdp.guarantees.worst_case import epsilon as worst_case
from bayesdp.mechanisms import SubsampledGaussian
from bayesdp.paper.bayesian_accountant import BayesianAccountant
from bayesdp.profiles.conversion import epsilon_from_costs
from bayesdp.reproduce.published import accountants as published_accounting
from bayesdp.validation import FloatArray

RATE = 1 / 1000
DELTA = 1e-5
NOISE = """As published, the noise is twice that: a pair is
compared, and two gradients clipped to C are at most 2C apart. What one record adds is at most C, and *norms* are beside
noise of once that; DP is the same either way."""
ALL_LAMBDAS = np.arange(1.0, 65.0)
_GAMMA = 2.0**-53
_LEFT, _RIGHT = np.triu_indices(50, 1)


def lines(order: int) -> dict[str, tuple[str, str, str]]:
    """What a panel of a picture shows: label, colour and style, by name; ``order`` is the lambda that was printed."""
    return {
        "dp_published": (f"DP, as published (lambda {order})", "black", "-"),
        "bdp_published": (f"BDP, as published (lambda {order})", "tab:red", "-"),
        "dp_moments": ("DP, moments, best lambda", "black", "--"),
        "dp_pld": ("DP, PLD", "black", ":"),
        "bdp_best": ("BDP, best lambda", "tab:red", "--"),
        "bdp_norms": ("BDP, norms, best lambda", "tab:blue", "--"),
    }


def gradients(rng: np.random.Generator) -> FloatArray:
    """Of 50 records, [50, 1000]."""
    return rng.weibull(0.5, (50, 1000))


def pair_distances(of: FloatArray) -> FloatArray:
    """Of all pairs, [1225]."""
    gram = of @ of.T
    squares: NDArray[Any] = np.diag(gram)
    return np.sqrt(np.maximum(0.0, squares[_LEFT] + squares[_RIGHT] - 2 * gram[_LEFT, _RIGHT]))


def as_published(total_steps: int, lambdas: FloatArray) -> BayesianAccountant:
    """The authors' accountant at some orders."""
    return published_accounting.as_published(total_steps, lambdas, _GAMMA)


def of_norms(total_steps: int) -> BayesianAccountant:
    """The accountant of what one record adds, at all orders."""
    return published_accounting.of_norms(total_steps, ALL_LAMBDAS, _GAMMA)


def best(accountant: BayesianAccountant) -> float:
    """Epsilon at the best order."""
    return published_accounting.best(accountant, DELTA)


def moments_accountant(exposure: float, steps: int, lambdas: FloatArray) -> float:
    """Classic DP at an exposure, by Chernoff at the best of some orders, as the moments accountant does."""
    return epsilon_from_costs(_costs(exposure, steps, lambdas), lambdas, DELTA, "chernoff")[0]


def same_orders(exposure: float, steps: int) -> float:
    """Classic DP at the orders and with the conversion of ``of_norms``."""
    return epsilon_from_costs(_costs(exposure, steps, ALL_LAMBDAS), ALL_LAMBDAS, DELTA, "improved")[0]


def _costs(exposure: float, steps: int, lambdas: FloatArray) -> FloatArray:
    return steps * SubsampledGaussian(sample_rate=RATE).log_moment([exposure], lambdas)[0]


def classic(exposure: float, steps: int) -> tuple[float, float | None]:
    """Classic DP by Rényi divergences and by privacy loss distributions."""
    found = worst_case(noise_multiplier=1 / exposure, sample_rate=RATE, steps=steps, delta=DELTA)
    return found.rdp_epsilon, found.pld_epsilon
