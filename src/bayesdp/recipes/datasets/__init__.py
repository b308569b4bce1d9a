"""Data sets of the recipes: from a folder, from OpenML, or bundled with scikit-learn.

``load("mnist")`` looks into the folder that is given, else into the one that BAYESDP_DATA names; without either it
asks OpenML through scikit-learn, which keeps what it fetches. ``FILES`` lists the files that a folder must have.

dataset.py        what a data set is, and the fingerprint of rows
files.py          files of a folder, as their publishers give them
scikit_learn.py   OpenML, and the digits that come with scikit-learn
scaled_tables.py  Abalone and Adult as numbers, scaled by public constants
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bayesdp import validation
from bayesdp.recipes.datasets import files, scaled_tables, scikit_learn
from bayesdp.recipes.datasets.dataset import Dataset, Rows, fingerprint
from bayesdp.recipes.datasets.files import FILES
from bayesdp.validation import refuse

__all__ = ["FILES", "NAMES", "Dataset", "Rows", "fingerprint", "load"]

VARIABLE = "BAYESDP_DATA"
VALIDATION = 0.1
"""The share of development rows that is held out for validation."""

AUDIT_ROWS = 1000
"""The number of audit rows that are drawn from the training file where the published test set is of another kind."""

Parts = tuple[Rows, Rows] | tuple[Rows, Rows, Rows]
"""Development and audit rows, and test rows if they are not the audit rows."""


def _audit_from_training(training: Rows, test: Rows) -> Parts:
    """Draw audit rows from the rows for training, the same ones each time, and keep the test rows for accuracy."""
    order = np.random.default_rng(len(training)).permutation(len(training))
    audit: NDArray[np.int64] = np.sort(order[: min(AUDIT_ROWS, len(training) // 2)])
    return training.take(np.setdiff1d(order, audit)), training.take(audit), test


_FROM_FOLDER: dict[str, Callable[[Path], Parts]] = {
    "mnist": files.idx_images,
    "fashion-mnist": files.idx_images,
    "cifar10": files.cifar10,
    "abalone": lambda folder: scaled_tables.abalone(files.abalone(folder)),
    "adult": lambda folder: scaled_tables.adult(*files.adult(folder)),
    "sst2": lambda folder: _audit_from_training(*files.sst2(folder)),
}
_FROM_OPENML: dict[str, Callable[[], Parts]] = {
    "mnist": lambda: scikit_learn.images("mnist_784", 1, 60_000, (28, 28)),
    "fashion-mnist": lambda: scikit_learn.images("Fashion-MNIST", 1, 60_000, (28, 28)),
    "cifar10": lambda: scikit_learn.images("CIFAR_10", 1, 50_000, (3, 32, 32)),
    "abalone": lambda: scaled_tables.abalone(scikit_learn.abalone()),
    "adult": lambda: scaled_tables.adult(*scikit_learn.adult()),
}
NAMES = (*_FROM_FOLDER, "digits")


def load(name: str, data: str | Path | None = None, *, seed: int = 0) -> Dataset:
    """Return the data set ``name``, split into rows for training, for validation and for the audit.

    ``data`` is the folder in which the data set has a folder of its own; None takes the one that BAYESDP_DATA names,
    and without that variable OpenML is asked, which does not have SST-2. Audit rows are the published test set
    (Abalone: the last fifth, as in the paper; digits: 500 rows; SST-2: 1,000 rows of the training file), the same for
    every seed, so that no run trains on the audit rows of another. ``seed`` decides which tenth of the other rows is
    held out for validation.

    Raises InvalidInputError for an unknown name, a missing or damaged file, or if OpenML does not answer, and
    MissingLibraryError where scikit-learn or pandas is needed and not installed.
    """
    if name not in NAMES:
        raise refuse("name", name, f"one of {', '.join(NAMES)}")
    seed = validation.count("seed", seed, minimum=0)
    if name == "digits":
        return _split(name, "bundled with scikit-learn", *scikit_learn.digits(), seed=seed)
    folder = data if data is not None else os.environ.get(VARIABLE) or None
    if folder is not None:
        otherwise = "; or leave it out to fetch the data from OpenML" if name in _FROM_OPENML else ""
        parts = _FROM_FOLDER[name](files.folder_of(name, Path(folder), otherwise=otherwise))
        return _split(name, "folder", *parts, seed=seed)
    if name not in _FROM_OPENML:
        wanted = " and ".join(f"{name}/{file}" for file in FILES[name])
        raise refuse("data", None, f"a folder with {wanted}, as --data or in {VARIABLE}: OpenML does not have this set")
    return _split(name, "OpenML", *_FROM_OPENML[name](), seed=seed)


def _split(name: str, source: str, development: Rows, audit: Rows, test: Rows | None = None, *, seed: int) -> Dataset:
    order = np.random.default_rng([seed, len(development)]).permutation(len(development))
    held_out: NDArray[np.int64] = np.sort(order[: round(VALIDATION * len(development))])
    classes = 2 if name in ("abalone", "adult", "sst2") else 10
    for rows in (development, audit, *([] if test is None else [test])):
        if not len(rows) or not (rows.y.min() >= 0 and rows.y.max() < classes):
            raise refuse("data", name, f"rows of classes 0 to {classes - 1}, for training and for the audit")
    return Dataset(
        name=name,
        source=source,
        development=development,
        audit=audit,
        held_out=held_out,
        classes=classes,
        test=test,
    )
