"""The authors' accountant as their code has it, the same theorem where it holds, and both of them on one run."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

from numpy.typing import ArrayLike

from bayesdp.estimators import StudentT
from bayesdp.paper.bayesian_accountant import BayesianAccountant, LastLambdaWarning
from bayesdp.reproduce.published.sgd import Distances, PublishedSettings

LAMBDAS = (2, 4, 8, 16, 32)
MORE_LAMBDAS = (*LAMBDAS, 64, 128, 256)
GAMMA = 1e-15


def published_accountant(total_steps: int, lambdas: ArrayLike, gamma: float) -> BayesianAccountant:
    """Return the authors' accountant before its first step; its epsilon is not a bound (docs/theory.md)."""
    return BayesianAccountant(total_steps, lambdas, StudentT(gamma=gamma), conversion="chernoff", as_published=True)


def norms_accountant(total_steps: int, lambdas: ArrayLike, gamma: float) -> BayesianAccountant:
    """Return an accountant for what one record adds, where the paper's theorem holds.

    It uses the tighter conversion and charges failures of the estimator at every order. Student's t stays a model.
    """
    return BayesianAccountant(total_steps, lambdas, StudentT(gamma=gamma), conversion="improved")


@dataclass(frozen=True)
class RunAccountants:
    """Two accountants that have seen every step of one training run."""

    published: BayesianAccountant
    "Fed with distances of pairs, as in the authors' code."
    epsilon_by_epoch: list[float]
    "The best epsilon of ``published`` after each epoch."
    norms: BayesianAccountant
    "Fed with what single records move, at more orders: the paper's assumptions, but as its theorem has it."


def account_run(
    distances: Distances, settings: PublishedSettings, records: int, largest_move: float, delta: float
) -> RunAccountants:
    """Return the accountants of a run of `fit_as_published` that trained on this number of records.

    ``largest_move`` is how far one record moves the mean of its batch at most; ``delta`` is that of the epsilons after
    each epoch. Batches were shuffled but are accounted for as Poisson samples, as in the authors' code.
    """
    steps = settings.steps(records)
    published = published_accountant(steps, LAMBDAS, GAMMA)
    norms = norms_accountant(steps, MORE_LAMBDAS, GAMMA)
    noise = {"noise_std": settings.noise_std, "sample_rate": settings.sample_rate(records)}
    epsilon_by_epoch: list[float] = []
    for step, (pairs, moves) in enumerate(zip(distances.pairs, distances.moves, strict=True), start=1):
        published.step(pairs, **noise)
        norms.step(moves, clip=largest_move, **noise)
        if step % (steps // settings.epochs) == 0:
            epsilon_by_epoch.append(best_epsilon(published, delta))
    return RunAccountants(published, epsilon_by_epoch, norms)


def best_epsilon(accountant: BayesianAccountant, delta: float) -> float:
    """Return epsilon at the best order, without the warning if that is the last one of the grid."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LastLambdaWarning)
        return accountant.epsilon(delta)


def epsilon_floor(accountant: BayesianAccountant, delta: float) -> dict[str, float]:
    """Return how much of epsilon no step has added: -log(delta)/lambda at the order that is best now.

    ``before_the_first_step`` is the floor at the largest order, where it is lowest.
    """
    order = accountant.best_lambda(delta)
    before = -math.log(delta) / float(accountant.lambdas.max())
    return {"best_lambda": order, "floor": -math.log(delta) / order, "before_the_first_step": before}
