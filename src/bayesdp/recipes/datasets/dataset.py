"""What a data set is: rows to train on, rows to choose with, rows for the audit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesdp.validation import refuse


@dataclass(frozen=True)
class Rows:
    """Inputs [n, ...] and the class of each [n]."""

    x: NDArray[Any]
    y: NDArray[np.int64]

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise refuse("len(y)", len(self.y), f"a class for each of {len(self.x)} rows")

    def __len__(self) -> int:
        return len(self.y)

    def take(self, indices: NDArray[np.int64]) -> Rows:
        """Some of them."""
        return Rows(self.x[indices], self.y[indices])


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """``development`` rows may be learnt from; ``held_out`` are those of them with which choices are made.

    ``audit`` rows are drawn from the same population and never trained on. They measure exposure and, at the very
    end and once, accuracy: whoever chooses settings by them has no audit set any more.
    """

    name: str
    source: str
    development: Rows
    audit: Rows
    held_out: NDArray[np.int64]
    classes: int
    "How many there are, known beforehand: what the rows happen to have would be learnt from them."

    @property
    def train(self) -> Rows:
        """What to train on while settings are being chosen."""
        return self.development.take(np.setdiff1d(np.arange(len(self.development)), self.held_out))

    @property
    def validation(self) -> Rows:
        """What to choose settings with."""
        return self.development.take(self.held_out)

    def with_features(self, compute: Callable[[NDArray[Any]], NDArray[Any]]) -> Dataset:
        """The same with other inputs, computed from each row by itself."""
        return replace(
            self,
            development=Rows(compute(self.development.x), self.development.y),
            audit=Rows(compute(self.audit.x), self.audit.y),
        )
