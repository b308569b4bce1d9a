"""Recipes: private models that are complete, from raw data to the statement.

datasets/        MNIST, Fashion-MNIST, CIFAR-10, Abalone, Adult, digits, each split three ways
features.py      public features of one row alone; feature_cache.py keeps them
public_basis.py  fewer of them, found in images that strokes.py makes up
release.py       a noisy sum, in the ledger before it is used
whitening.py     centre and shape of features, released with noise
linear_probe.py  DP-SGD for a linear model, with norms in closed form
dp_sgd.py        DP-SGD for any model of PyTorch, on Opacus
variational.py   private Bayesian logistic regression
tempered.py      experimental: one sample of a tempered posterior
run.py           what a recipe is given and gives back
sgd.py, loop.py, checkpoint.py    descent, the steps of a run, going on after an interruption
catalogue.py     the recipes and their settings
training.py      what `bayesdp train` does
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayesdp.recipes.catalogue import RECIPES
    from bayesdp.recipes.datasets import Dataset, Rows, load
    from bayesdp.recipes.dp_sgd import fit_model
    from bayesdp.recipes.linear_probe import ProbeRows, fit_probe
    from bayesdp.recipes.sgd import SgdSettings
    from bayesdp.recipes.tempered import TemperedLogisticRegression
    from bayesdp.recipes.training import Trained, train
    from bayesdp.recipes.variational import BayesianLogisticRegression

_HOME = {
    "BayesianLogisticRegression": "variational",
    "Dataset": "datasets",
    "ProbeRows": "linear_probe",
    "RECIPES": "catalogue",
    "Rows": "datasets",
    "SgdSettings": "sgd",
    "TemperedLogisticRegression": "tempered",
    "Trained": "training",
    "fit_model": "dp_sgd",
    "fit_probe": "linear_probe",
    "load": "datasets",
    "train": "training",
}
__all__ = [
    "RECIPES",
    "BayesianLogisticRegression",
    "Dataset",
    "ProbeRows",
    "Rows",
    "SgdSettings",
    "TemperedLogisticRegression",
    "Trained",
    "fit_model",
    "fit_probe",
    "load",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"bayesdp.recipes.{_HOME[name]}"), name)
    raise AttributeError(f"module 'bayesdp.recipes' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
