"""What every recipe is given (``RecipeRun``), and what it gives back (``Fitted``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesdp.progress import Progress
from bayesdp.randomness import Randomness
from bayesdp.recipes.checkpoint import CHECKPOINT, Checkpoint
from bayesdp.recipes.datasets import Dataset, fingerprint
from bayesdp.run_ledger import Ledger


@dataclass(frozen=True, kw_only=True)
class RecipeRun:
    """One run of a recipe: its data, the worst case it must stay within, where it is recorded and kept."""

    dataset: Dataset
    "Features in place of inputs. Development rows are trained on; audit rows only have their norms recorded."
    features: str
    "The name of the extractor that made the features."
    target_epsilon: float
    delta: float
    ledger: Ledger
    randomness: Randomness
    folder: Path | None = None
    "Where an interrupted run finds what it needs to go on; None if it cannot go on."
    track: Progress = iter

    def checkpoint(self, settings: Mapping[str, Any]) -> Checkpoint | None:
        """Return the checkpoint of this run, or None without a folder.

        Loading it with other settings or other rows raises InvalidInputError: a fingerprint of the rows is kept in it.
        The checkpoint is as private as the rows are.
        """
        if self.folder is None:
            return None
        return Checkpoint(self.folder / CHECKPOINT, {**settings, "data": fingerprint(self.dataset.arrays())})


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A trained model: its arrays, how to classify with them, and its accuracy on ``Dataset.judged``."""

    arrays: dict[str, NDArray[Any]]
    classify: str
    accuracy: float
    baseline: Callable[[], float]
    "Trains without noise and returns the same accuracy, which is not private."
    hits: Callable[[], tuple[NDArray[np.bool_], NDArray[np.bool_]]]
    "Says of each development row, which is private, and of each audit row whether it is classified correctly."
