"""Bayesian logistic regression on a table, all records at every step."""

from __future__ import annotations

from bayesdp.recipes.catalogue import VariationalChoice
from bayesdp.recipes.datasets import Dataset
from bayesdp.recipes.recipe_run import Fitted, RecipeRun
from bayesdp.recipes.variational import BayesianLogisticRegression


def fit(run: RecipeRun, choice: VariationalChoice) -> Fitted:
    """Train on development rows; audit rows go into the ledger."""
    train, audit = run.dataset.development, run.dataset.audit
    model = BayesianLogisticRegression(
        epsilon=run.target_epsilon,
        delta=run.delta,
        steps=choice.steps,
        clip=choice.clip,
        learning_rate=choice.learning_rate,
        momentum=choice.momentum,
        average=choice.average,
        classes=(0, 1),
    )
    model.fit_into(
        run.ledger,
        train.x,
        train.y,
        (audit.x, audit.y),
        randomness=run.randomness,
        checkpoint=run.checkpoint,
        track=run.track,
    )
    return Fitted(
        arrays={"mean": model.posterior_mean_, "scale": model.posterior_scale_},
        classify="the second class where sigmoid([features, 1] @ theta), averaged over the posterior, is above 1/2",
        accuracy=float(model.score(audit.x, audit.y)),
        baseline=lambda: _baseline(run.dataset),
    )


def _baseline(dataset: Dataset) -> float:
    """Not private: logistic regression without noise."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=1000).fit(dataset.development.x, dataset.development.y)
    return float(model.score(dataset.audit.x, dataset.audit.y))
