"""What every recipe is given, and what it gives back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesdp.progress import Progress
from bayesdp.randomness import Randomness
from bayesdp.recipes.checkpoint import CHECKPOINT, Checkpoint
from bayesdp.recipes.datasets import Dataset
from bayesdp.run_ledger import Ledger


@dataclass(frozen=True, kw_only=True)
class RecipeRun:
    """A run of a recipe: on what, within which worst case, where it is recorded and kept."""

    dataset: Dataset
    "With features in place of its inputs; development rows are trained on, audit rows go into the ledger."
    features: str
    "By which extractor."
    target_epsilon: float
    delta: float
    ledger: Ledger
    randomness: Randomness
    folder: Path | None = None
    "Where an interrupted run finds what it needs to go on."
    track: Progress = iter

    def checkpoint(self, settings: Mapping[str, Any]) -> Checkpoint | None:
        """That of this run, if it has a folder: with other settings or other data it is refused."""
        if self.folder is None:
            return None
        return Checkpoint(self.folder / CHECKPOINT, {**settings, "data": self._fingerprint()})

    def _fingerprint(self) -> str:
        """Of the rows. It is kept in the checkpoint only, which is as private as they are."""
        digest = hashlib.sha256()
        for rows in (self.dataset.development, self.dataset.audit):
            for array in (rows.x, rows.y):
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A trained model: its arrays, how to classify with them, and how often it is right on audit rows."""

    arrays: dict[str, NDArray[Any]]
    classify: str
    accuracy: float
    baseline: Callable[[], float]
    "Trains the same without noise; what it gives is not private."
