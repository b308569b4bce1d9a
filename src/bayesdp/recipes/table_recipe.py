"""Bayesian logistic regression on a table, all records at every step."""

from __future__ import annotations

from pathlib import Path

from bayesdp.ledger import Ledger
from bayesdp.randomness import Randomness
from bayesdp.recipes.catalogue import VariationalChoice
from bayesdp.recipes.checkpoint import CHECKPOINT
from bayesdp.recipes.datasets import Dataset
from bayesdp.recipes.loop import Track
from bayesdp.recipes.model import Fitted
from bayesdp.recipes.variational import BayesianLogisticRegression


def fit(
    dataset: Dataset,
    choice: VariationalChoice,
    *,
    target_epsilon: float,
    delta: float,
    ledger: Ledger,
    randomness: Randomness,
    folder: Path | None,
    track: Track,
) -> Fitted:
    """Train on development rows; audit rows go into the ledger."""
    train, audit = dataset.development, dataset.audit
    model = BayesianLogisticRegression(
        epsilon=target_epsilon,
        delta=delta,
        steps=choice.steps,
        clip=choice.clip,
        learning_rate=choice.learning_rate,
        momentum=choice.momentum,
        average=choice.average,
    )
    path = None if folder is None else folder / CHECKPOINT
    model.fit_into(ledger, train.x, train.y, (audit.x, audit.y), randomness=randomness, checkpoint=path, track=track)
    return Fitted(
        arrays={"mean": model.posterior_mean_, "scale": model.posterior_scale_},
        classify="the second class where sigmoid([features, 1] @ theta), averaged over the posterior, is above 1/2",
        accuracy=float(model.score(audit.x, audit.y)),
        baseline=lambda: _baseline(dataset),
    )


def _baseline(dataset: Dataset) -> float:
    """Not private: logistic regression without noise."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=1000).fit(dataset.development.x, dataset.development.y)
    return float(model.score(dataset.audit.x, dataset.audit.y))
