"""The authors' accountant, as their code has it; the same theorem where it holds; epsilon at the best of the orders."""

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


def as_published(total_steps: int, lambdas: ArrayLike, gamma: float) -> BayesianAccountant:
    """At some orders, before the first step."""
    return BayesianAccountant(total_steps, lambdas, StudentT(gamma=gamma), conversion="chernoff", as_published=True)


def of_norms(total_steps: int, lambdas: ArrayLike, gamma: float) -> BayesianAccountant:
    """For what one record adds: the tighter conversion, and failures of the estimator charged for every order."""
    return BayesianAccountant(total_steps, lambdas, StudentT(gamma=gamma), conversion="improved")


@dataclass(frozen=True)
class Accounts:
    """Two of the same run."""

    published: BayesianAccountant
    "Of pairs, as in the authors' code."
    by_epoch: list[float]
    "Its epsilon after each epoch."
    norms: BayesianAccountant
    "Of single records, more orders, the tighter conversion: under the paper's assumptions, but as its theorem has it."


def account(seen: Distances, settings: PublishedSettings, rows: int, largest_move: float, delta: float) -> Accounts:
    """A run of training as published; ``largest_move`` is what one record moves the mean of its batch at most."""
    steps = settings.steps(rows)
    published, norms = as_published(steps, LAMBDAS, GAMMA), of_norms(steps, MORE_LAMBDAS, GAMMA)
    noise = {"noise_std": settings.noise_std, "sample_rate": settings.sample_rate(rows)}
    by_epoch: list[float] = []
    for step, (pairs, moves) in enumerate(zip(seen.pairs, seen.moves, strict=True), start=1):
        published.step(pairs, **noise)
        norms.step(moves, clip=largest_move, **noise)
        if step % (steps // settings.epochs) == 0:
            by_epoch.append(best(published, delta))
    return Accounts(published, by_epoch, norms)


def best(accountant: BayesianAccountant, delta: float) -> float:
    """Epsilon at the best order, also where that is the last."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LastLambdaWarning)
        return accountant.epsilon(delta)


def floor(accountant: BayesianAccountant, delta: float) -> dict[str, float]:
    """What of epsilon no step has added: before the first one, and at the order that is the best now."""
    order = accountant.best_lambda(delta)
    before = -math.log(delta) / float(accountant.lambdas.max())
    return {"best_lambda": order, "floor": -math.log(delta) / order, "before_the_first_step": before}
