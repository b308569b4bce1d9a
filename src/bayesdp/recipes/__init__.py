"""Recipes: complete private models, from raw data to the statement.

    datasets/         MNIST, Fashion-MNIST, CIFAR-10, Abalone, Adult, SST-2 and digits, each split three ways
    features.py       public features, each computed from one row alone; feature_cache.py keeps them
    sentence_encoder.py  features of texts, by a frozen transformer in a folder of the user's
    release.py        noisy sums, recorded in the ledger before they are used
    whitening.py      centre and shape of features, released with noise
    descent.py        what follows noisy gradients: settings, weights, a Gaussian posterior
    linear_probe.py   DP-SGD for a linear model, with norms in closed form; the recipe for images and sentences
    dp_sgd.py         DP-SGD for any PyTorch model, on Opacus; the recipe for digits
    record_norms.py   gradients of audit records as ``dp_sgd.py`` clips them: means over views, masked
    image_network.py  networks for images from scratch; the recipes without public features
    variational.py    private Bayesian logistic regression; the recipe for tables
    loop.py           the steps of a run; checkpoint.py keeps its state
    recipe_run.py     what a recipe is given and gives back
    catalogue.py      the recipes and their settings; choices.py: which settings there are
    tuning.py         settings chosen privately: the best of a random number of runs
    training.py       ``bayesdp train``, which gives back what is in trained.py; demo.py ``bayesdp demo``

Names are imported when they are first used. Without the libraries of the extra ``recipes`` that raises
MissingLibraryError, an ImportError that names what to install.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayesdp.recipes.catalogue import RECIPES as RECIPES
    from bayesdp.recipes.datasets import Dataset as Dataset
    from bayesdp.recipes.datasets import Rows as Rows
    from bayesdp.recipes.datasets import load as load
    from bayesdp.recipes.descent import SgdSettings as SgdSettings
    from bayesdp.recipes.dp_sgd import fit_model as fit_model
    from bayesdp.recipes.linear_probe import ProbeRows as ProbeRows
    from bayesdp.recipes.linear_probe import fit_probe as fit_probe
    from bayesdp.recipes.trained import Trained as Trained
    from bayesdp.recipes.training import train as train
    from bayesdp.recipes.variational import BayesianLogisticRegression as BayesianLogisticRegression

_HOME = {
    "BayesianLogisticRegression": "variational",
    "Dataset": "datasets",
    "ProbeRows": "linear_probe",
    "RECIPES": "catalogue",
    "Rows": "datasets",
    "SgdSettings": "descent",
    "Trained": "trained",
    "fit_model": "dp_sgd",
    "fit_probe": "linear_probe",
    "load": "datasets",
    "train": "training",
}
"""The module from which each name comes. No module may have such a name: it would hide the name once it is imported."""
__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"bayesdp.recipes.{_HOME[name]}"), name)
    raise AttributeError(f"module 'bayesdp.recipes' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
