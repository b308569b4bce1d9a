"""Table 1: accuracy and epsilon on four data sets, as published, and with our own recipes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from bayesdp.recipes.datasets import Rows, load
from bayesdp.recipes.features import EXTRACTORS, extract
from bayesdp.recipes.training import train
from bayesdp.reproduce.experiment import Found, Options
from bayesdp.reproduce.published.accountants import best, floor
from bayesdp.reproduce.published.images import DELTA, DELTA_MU, MODELS, trained
from bayesdp.reproduce.published.variational import VariationalSettings, fit_variational
from bayesdp.reproduce.table1_story import NAMES, PRINTED, story, verdicts

__all__ = ["SECONDS", "TITLE", "compute", "draw", "story", "verdicts"]
TITLE = "Table 1"
SECONDS = 200.0
_LEARNING_RATES = (1e-4, 2e-5, 5e-6)
"""At which the same model has another epsilon; a table shows them all."""
_VARIATIONAL = {
    "abalone": VariationalSettings(steps=1000, batch=100, learning_rate=_LEARNING_RATES[1]),
    "adult": VariationalSettings(steps=1000, batch=300, learning_rate=_LEARNING_RATES[1]),
}
_RECIPES = {"mnist": 0.65, "cifar10": 0.65, "abalone": 0.15, "adult": 0.06}
"""Worst-case epsilons of our own recipes."""


def compute(options: Options) -> Found:
    """The table three times: as printed, as published and computed here, our own recipes."""
    as_published = {name: trained(model, options)[2] for name, model in MODELS.items()}
    for name in _VARIATIONAL:
        as_published[name] = _variational(name, options)
    targets = {} if options.small else _RECIPES
    ours = {name: _recipe(name, target, options) for name, target in targets.items()}
    return {
        "settings": {"seed": options.seed, "delta": DELTA, "delta_mu": DELTA_MU},
        "printed": PRINTED,
        "as_published": as_published,
        "ours": ours,
    }


def _variational(name: str, options: Options) -> dict[str, Any]:
    dataset = extract(load(name, options.data), EXTRACTORS["table"])
    settings = _VARIATIONAL[name]
    if options.small:
        settings = replace(settings, steps=20, batch=10)
    rng = np.random.default_rng([options.seed, 1])
    development, audit = _design(dataset.development), _design(dataset.audit)
    tried: list[dict[str, float]] = []
    for rate in options.track(_LEARNING_RATES):
        posterior, accountant = fit_variational(*development, replace(settings, learning_rate=rate), seed=options.seed)
        accuracy, epsilon = posterior.accuracy(*audit, rng), best(accountant, DELTA_MU)
        tried.append({"learning_rate": rate, "accuracy": accuracy, "epsilon": epsilon, **floor(accountant, DELTA_MU)})
    (row,) = (one for one in tried if one["learning_rate"] == settings.learning_rate)
    baseline = LogisticRegression(max_iter=1000).fit(*development).score(*audit)
    return {**row, "baseline": float(baseline), "worst_case": None, "by_learning_rate": tried}


def _design(rows: Rows) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    return np.c_[np.asarray(rows.x, np.float64), np.ones(len(rows))], rows.y


def _recipe(name: str, target: float, options: Options) -> dict[str, Any]:
    found = train(
        name,
        data=options.data,
        target_epsilon=target,
        seed=options.seed,
        reproducible=True,
        baseline=False,
        track=lambda items, what: options.track(items),
    )
    half = found.claims.share(0.5)
    return {
        "accuracy": found.accuracy,
        "worst_case": found.claims.worst_case.epsilon,
        "half_ex_post": half.ex_post.epsilon,
        "half_estimate": half.estimate.epsilon,
    }


def draw(found: Found, figure: Any) -> None:
    """How much of each Bayesian epsilon is the floor -log(delta)/lambda of its order."""
    axis = figure.subplots()
    rows = [found["as_published"][name] for name in NAMES]
    places = np.arange(len(rows))
    before, floor, epsilon = (
        np.array([row[name] for row in rows]) for name in ("before_the_first_step", "floor", "epsilon")
    )
    axis.bar(places - 0.2, [found["printed"][name]["bdp"] for name in NAMES], 0.35, color="lightgrey", label="printed")
    parts = {
        "here: floor -log(delta)/lambda before the first step": (np.zeros(len(rows)), before, "tab:orange"),
        "rise of the floor, as steps make high lambdas useless": (before, floor, "moccasin"),
        "cost of the steps at the best lambda": (floor, epsilon, "tab:red"),
    }
    for label, (low, high, colour) in parts.items():
        axis.bar(places + 0.2, np.maximum(0.0, high - low), 0.35, bottom=low, color=colour, label=label)
    axis.set_xticks(places, list(NAMES.values()))
    axis.set_ylabel("BDP epsilon at delta = 1e-10, as published")
    axis.legend(fontsize=8)
