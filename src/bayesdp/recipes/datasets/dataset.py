"""What a data set is: rows to train on, rows to choose settings with, rows for the audit; and the hash of rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesdp.validation import refuse


@dataclass(frozen=True)
class Rows:
    """Inputs x [n, ...] and the class y [n] of each row. Raises InvalidInputError if the lengths differ."""

    x: NDArray[Any]
    y: NDArray[np.int64]

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise refuse("len(y)", len(self.y), f"a class for each of {len(self.x)} rows")

    def __len__(self) -> int:
        return len(self.y)

    def take(self, indices: NDArray[np.int64]) -> Rows:
        """Return the rows at these indices, in their order."""
        return Rows(self.x[indices], self.y[indices])


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A data set that is split three ways: training, validation and audit rows.

    ``development`` rows may be learnt from: those at the indices ``held_out`` are for validation, to choose settings
    with, and the others for training. ``audit`` rows are drawn from the same population and never trained on. They
    measure exposure and, once at the very end, accuracy: whoever chooses settings by them no longer has an audit set.
    """

    name: str
    source: str
    development: Rows
    audit: Rows
    held_out: NDArray[np.int64]
    classes: int
    "The number of classes, known beforehand: reading it off the rows would be learning from them."
    test: Rows | None = None
    "Rows for the accuracy, where the published test set differs in kind from the rows that are trained on."

    @property
    def judged(self) -> Rows:
        """The rows on which the accuracy is computed, at the very end: the test rows, or else the audit rows."""
        return self.audit if self.test is None else self.test

    @property
    def train(self) -> Rows:
        """The rows to train on while settings are being chosen."""
        return self.development.take(np.setdiff1d(np.arange(len(self.development)), self.held_out))

    @property
    def validation(self) -> Rows:
        """The rows to choose settings with."""
        return self.development.take(self.held_out)

    def with_features(self, compute: Callable[[NDArray[Any]], NDArray[Any]]) -> Dataset:
        """Return the data set with ``compute(x)`` in place of its inputs.

        ``compute`` must treat each row by itself: features that depend on other rows are a release of their own.
        """
        return replace(
            self,
            development=Rows(compute(self.development.x), self.development.y),
            audit=Rows(compute(self.audit.x), self.audit.y),
            test=None if self.test is None else Rows(compute(self.test.x), self.test.y),
        )

    def with_audit_rows(self, count: int | None) -> Dataset:
        """Return the data set with ``count`` of its audit rows, always the same; the others still count for accuracy.

        None, or as many rows as there are, changes nothing.
        """
        if count is None or count >= len(self.audit):
            return self
        kept = np.random.default_rng(len(self.audit)).permutation(len(self.audit))[:count]
        return replace(self, audit=self.audit.take(np.sort(kept)), test=self.judged)

    def arrays(self) -> list[NDArray[Any]]:
        """Return inputs and classes of the development rows, then those of the audit rows: what a run is made of."""
        return [self.development.x, self.development.y, self.audit.x, self.audit.y]


def fingerprint(arrays: Iterable[NDArray[Any]], *, about: str = "") -> str:
    """Return the SHA-256 of a text and of the values of arrays, one after the other, as 64 hexadecimal digits.

    Values are hashed as bytes, so shapes and types count only if ``about`` names them. A fingerprint of private rows is
    as private as the rows: it belongs into checkpoints and caches, and into no report. Files on users' disks are
    recognised by it, so what it returns must never change.
    """
    digest = hashlib.sha256(about.encode())
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
