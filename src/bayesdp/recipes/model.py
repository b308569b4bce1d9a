"""What a recipe gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A trained model: its arrays, how to classify with them, and how often it is right on audit rows."""

    arrays: dict[str, NDArray[Any]]
    classify: str
    accuracy: float
    baseline: Callable[[], float]
    "Trains the same without noise; what it gives is not private."
