"""Norms as they come in: checked once, however many functions they pass through on their way into the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bayesdp import validation
from bayesdp.validation import FloatArray, refuse


@dataclass(frozen=True, eq=False)
class CheckedNorms:
    """Gradient norms before clipping, ``values`` [n], known to be finite and at least 0.

    Only ``checked_norms`` makes them. An adapter that has checked its norms hands them on in this form, and
    ``Ledger.step`` does not check them again.
    """

    values: FloatArray

    def __len__(self) -> int:
        return len(self.values)

    def above(self, clip: float | None) -> int:
        """Count the norms above the clip bound: 0 if there is no bound."""
        return 0 if clip is None else int(np.count_nonzero(self.values > clip))


def checked_norms(name: str, values: Any) -> CheckedNorms:
    """Check norms [n] in any array type: one dimension, finite, at least 0.

    ``CheckedNorms`` are returned as they are, without a second look. Raises InvalidInputError that quotes ``name`` with
    the first bad value, or with the shape.
    """
    if isinstance(values, CheckedNorms):
        return values
    norms = validation.non_negative_array(name, values)
    if norms.ndim != 1:
        raise refuse(f"{name}.shape", norms.shape, "one norm per record, [n]")
    return CheckedNorms(norms + 0.0)  # a norm of -0.0 becomes 0: the grid reads bits, and the sign is one of them


def checked_audit_norms(values: Any, records: int) -> CheckedNorms:
    """Check the norms of all audit records, [m], where m = ``records``; 0 stands for a number not known yet.

    Raises InvalidInputError as ``checked_norms`` does, and for another number of norms, or none.
    """
    norms = checked_norms("audit", values)
    if len(norms) == 0 or (records and len(norms) != records):
        expected = f"one norm for each of the {records} audit records" if records else "at least one norm"
        raise refuse("len(audit)", len(norms), expected)
    return norms
