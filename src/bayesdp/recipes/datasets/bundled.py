"""Digits: 1,797 small images that come with scikit-learn."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from bayesdp.optional import needs
from bayesdp.recipes.datasets.dataset import Rows

AUDIT = 500
"""Enough for a claim about 99 % at 99 % confidence, which needs 459."""


def digits(seed: int) -> tuple[Rows, Rows]:
    """Images [n, 8, 8] with values from 0 to 16; audit rows are drawn at random."""
    with needs("recipes", "the data set digits"):
        from sklearn import datasets
    data: Any = cast(Any, datasets).load_digits()
    rows = Rows(np.asarray(data.images, np.uint8), np.asarray(data.target, np.int64))
    order = np.random.default_rng([seed, 8]).permutation(len(rows))
    return rows.take(np.sort(order[AUDIT:])), rows.take(np.sort(order[:AUDIT]))
