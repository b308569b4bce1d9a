"""The same data sets from OpenML, through scikit-learn, which fetches each once and keeps it."""

from __future__ import annotations

from typing import Any

import numpy as np

from bayesdp.optional import needs
from bayesdp.recipes.datasets.dataset import Rows
from bayesdp.validation import InvalidInputError, refuse

_TRAINING_ROWS_OF_ADULT = 32_561
_THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def images(name: str, version: int, training: int, shape: tuple[int, ...]) -> tuple[Rows, Rows]:
    """Rows of bytes; the first ``training`` are the published training set. Channels are moved to the end."""
    values, target = _fetch(name, version)
    x = values.to_numpy().astype(np.uint8).reshape(-1, *shape)
    if len(shape) == 3:
        x = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    names = target.astype(str)
    y = np.array([_THINGS.index(one) if one in _THINGS else int(float(one)) for one in names], np.int64)
    if len(x) <= training:
        raise refuse("OpenML", name, f"more than {training} rows, there are {len(x)}")
    return Rows(x[:training], y[:training]), Rows(x[training:], y[training:])


def abalone() -> list[list[str]]:
    """Lines as in ``abalone.data``."""
    values, target = _fetch("abalone", 1)
    return _lines(values, target)


def adult() -> tuple[list[list[str]], list[list[str]]]:
    """Lines as in ``adult.data`` and ``adult.test``, which follow each other; missing values are question marks."""
    values, target = _fetch("adult", 2)
    lines = _lines(values, target)
    return lines[:_TRAINING_ROWS_OF_ADULT], lines[_TRAINING_ROWS_OF_ADULT:]


def _lines(values: Any, target: Any) -> list[list[str]]:
    whole = values.assign(**{"its class": target})
    return [["?" if one != one or one is None else str(one) for one in row] for row in whole.astype(object).to_numpy()]


def _fetch(name: str, version: int) -> tuple[Any, Any]:
    with needs("recipes", f"fetching {name} from OpenML"):
        import pandas  # noqa: F401  # pyright: ignore[reportUnusedImport]
        from sklearn.datasets import fetch_openml
    try:
        fetched: Any = fetch_openml(name, version=version, as_frame=True)
    except Exception as error:  # no network, no such data set, a damaged cache: many kinds
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise InvalidInputError(
            f"data=None: OpenML did not give {name} ({reason}). Expected a network, or a folder with the files: "
            "--data FOLDER, or the variable BAYESDP_DATA."
        ) from None
    return fetched.data, fetched.target
