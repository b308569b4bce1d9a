"""Data sets of the recipes: from a folder, from OpenML, or bundled with scikit-learn.

``load("mnist")`` looks into the folder that is given, else into the one that BAYESDP_DATA names, else asks OpenML
through scikit-learn, which keeps what it has fetched. ``FILES`` says which files a folder has for each.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bayesdp import validation
from bayesdp.recipes.datasets import bundled, files, openml, tables
from bayesdp.recipes.datasets.dataset import Dataset, Rows
from bayesdp.recipes.datasets.files import FILES
from bayesdp.validation import refuse

__all__ = ["FILES", "NAMES", "Dataset", "Rows", "load"]

VARIABLE = "BAYESDP_DATA"
VALIDATION = 0.1
"""The share of development rows that is set aside for choices."""

Parts = tuple[Rows, Rows]
"""Development and audit rows."""

_FROM_FOLDER: dict[str, Callable[[Path], Parts]] = {
    "mnist": files.idx_images,
    "fashion-mnist": files.idx_images,
    "cifar10": files.cifar10,
    "abalone": lambda folder: tables.abalone(files.abalone(folder)),
    "adult": lambda folder: tables.adult(*files.adult(folder)),
}
_FROM_OPENML: dict[str, Callable[[], Parts]] = {
    "mnist": lambda: openml.images("mnist_784", 1, 60_000, (28, 28)),
    "fashion-mnist": lambda: openml.images("Fashion-MNIST", 1, 60_000, (28, 28)),
    "cifar10": lambda: openml.images("CIFAR_10", 1, 50_000, (3, 32, 32)),
    "abalone": lambda: tables.abalone(openml.abalone()),
    "adult": lambda: tables.adult(*openml.adult()),
}
NAMES = (*_FROM_FOLDER, "digits")


def load(name: str, data: str | Path | None = None, *, seed: int = 0) -> Dataset:
    """The data set ``name``, split into rows for training, for choices (validation) and for the audit.

    Audit rows are the published test set (Abalone: the last fifth, as in the paper; digits: 500 drawn rows) and are
    never trained on. ``seed`` decides which of the others are for validation, and the audit rows of digits.
    """
    if name not in NAMES:
        raise refuse("name", name, f"one of {', '.join(NAMES)}")
    seed = validation.count("seed", seed, minimum=0)
    if name == "digits":
        development, audit = bundled.digits(seed)
        return _split(name, "bundled with scikit-learn", development, audit, seed)
    folder = data if data is not None else os.environ.get(VARIABLE) or None
    if folder is None:
        return _split(name, "OpenML", *_FROM_OPENML[name](), seed)
    return _split(name, "folder", *_FROM_FOLDER[name](files.folder_of(name, Path(folder))), seed)


def _split(name: str, source: str, development: Rows, audit: Rows, seed: int) -> Dataset:
    order = np.random.default_rng([seed, len(development)]).permutation(len(development))
    held_out: NDArray[np.int64] = np.sort(order[: round(VALIDATION * len(development))])
    classes = 2 if name in ("abalone", "adult") else 10
    for rows in (development, audit):
        if not len(rows) or not (rows.y.min() >= 0 and rows.y.max() < classes):
            raise refuse("data", name, f"rows of classes 0 to {classes - 1}, for training and for the audit")
    return Dataset(name=name, source=source, development=development, audit=audit, held_out=held_out, classes=classes)
