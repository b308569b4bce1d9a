"""Norms as they come in: checked once, however many hands they go through on their way into the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bayesdp import validation
from bayesdp.validation import FloatArray, refuse


@dataclass(frozen=True, eq=False)
class CheckedNorms:
    """Norms [n] that were checked: one dimension, finite, at least 0."""

    values: FloatArray

    def __len__(self) -> int:
        return len(self.values)

    def above(self, clip: float | None) -> int:
        """Count the norms above the clip bound; none are if there is no bound."""
        return 0 if clip is None else int(np.count_nonzero(self.values > clip))


def checked_norms(name: str, values: Any) -> CheckedNorms:
    """Check norms [n] of any array type; those that were checked before pass as they are.

    Raises InvalidInputError, which quotes ``name`` and the first bad value.
    """
    if isinstance(values, CheckedNorms):
        return values
    norms = validation.non_negative_array(name, values)
    if norms.ndim != 1:
        raise refuse(f"{name}.shape", norms.shape, "one norm per record, [n]")
    return CheckedNorms(norms)
