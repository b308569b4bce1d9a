"""Data sets through scikit-learn: from OpenML, each fetched once and kept; and the digits bundled with the library."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from bayesdp.optional import needs
from bayesdp.recipes.datasets.dataset import Rows
from bayesdp.validation import InvalidInputError, refuse

_TRAINING_ROWS_OF_ADULT = 32_561
_THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_AUDIT_DIGITS = 500  # enough for a claim about 99 % of people at 99 % confidence, which needs 459
_DIGITS_ORDER = (1797, 500)  # seeds the order of the digits, of which the first 500 are for the audit


def digits() -> tuple[Rows, Rows]:
    """Return 1,797 images [n, 8, 8] with values from 0 to 16, of which 500 are audit rows.

    The audit rows are the same for everybody: settings were chosen, and other models trained, on the other rows only.
    """
    with needs("recipes", "the data set digits"):
        from sklearn import datasets
    data: Any = cast(Any, datasets).load_digits()
    rows = Rows(np.asarray(data.images, np.uint8), np.asarray(data.target, np.int64))
    order = np.random.default_rng(_DIGITS_ORDER).permutation(len(rows))
    return rows.take(np.sort(order[_AUDIT_DIGITS:])), rows.take(np.sort(order[:_AUDIT_DIGITS]))


def images(name: str, version: int, training: int, shape: tuple[int, ...]) -> tuple[Rows, Rows]:
    """Return images of bytes from OpenML; the first ``training`` rows are the published training set.

    ``shape`` is the shape in which OpenML has an image; channels, if it has any, are moved from the front to the end.
    """
    values, target = _fetch(name, version)
    x = values.to_numpy().astype(np.uint8).reshape(-1, *shape)
    if len(shape) == 3:
        x = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    labels = target.astype(str)
    y = np.array([_THINGS.index(label) if label in _THINGS else int(float(label)) for label in labels], np.int64)
    if len(x) <= training:
        raise refuse("OpenML", name, f"more than {training} rows, there are {len(x)}")
    return Rows(x[:training], y[:training]), Rows(x[training:], y[training:])


def abalone() -> list[list[str]]:
    """Return lines as in ``abalone.data``."""
    values, target = _fetch("abalone", 1)
    return _lines(values, target)


def adult() -> tuple[list[list[str]], list[list[str]]]:
    """Return lines as in ``adult.data`` and in ``adult.test``; missing values are question marks."""
    values, target = _fetch("adult", 2)
    lines = _lines(values, target)
    return lines[:_TRAINING_ROWS_OF_ADULT], lines[_TRAINING_ROWS_OF_ADULT:]


def _lines(values: Any, target: Any) -> list[list[str]]:
    whole = values.assign(**{"its class": target}).astype(object).to_numpy()
    # A missing value is None or NaN, and NaN is the value that differs from itself.
    return [["?" if value != value or value is None else str(value) for value in line] for line in whole]


def _fetch(name: str, version: int) -> tuple[Any, Any]:
    with needs("recipes", f"fetching {name} from OpenML"):
        import pandas  # noqa: F401  # pyright: ignore[reportUnusedImport]
        from sklearn.datasets import fetch_openml
    try:
        fetched: Any = fetch_openml(name, version=version, as_frame=True)
    except Exception as error:  # no network, no such data set, a damaged cache: errors of many classes
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise InvalidInputError(
            f"data=None: OpenML did not give {name} ({reason}). Expected a network, or a folder with the files: "
            "--data FOLDER, or the variable BAYESDP_DATA."
        ) from None
    return fetched.data, fetched.target
