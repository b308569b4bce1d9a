"""The authors' accountant, as their code has it; the same theorem where it holds; epsilon at the best of the orders."""

from __future__ import annotations

import math
import warnings

from numpy.typing import ArrayLike

from bayesdp.accountant import BayesianAccountant, LastLambdaWarning
from bayesdp.estimators import StudentT


def as_published(total_steps: int, lambdas: ArrayLike, gamma: float) -> BayesianAccountant:
    """At some orders, before the first step."""
    return BayesianAccountant(total_steps, lambdas, StudentT(gamma=gamma), conversion="chernoff", as_published=True)


def of_norms(total_steps: int, lambdas: ArrayLike, gamma: float) -> BayesianAccountant:
    """For what one record adds: the tighter conversion, and failures of the estimator charged for every order."""
    return BayesianAccountant(total_steps, lambdas, StudentT(gamma=gamma), conversion="improved")


def best(accountant: BayesianAccountant, delta: float) -> float:
    """Epsilon at the best order, also where that is the last."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LastLambdaWarning)
        return accountant.epsilon(delta)


def floor(accountant: BayesianAccountant, delta: float) -> dict[str, float]:
    """The part of epsilon that stood there before the first step, at the order that is the best now."""
    order = accountant.best_lambda(delta)
    return {"best_lambda": order, "floor": -math.log(delta) / order}
