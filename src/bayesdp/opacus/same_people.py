"""Tell by a digest whether audit records are the rows that they were at earlier steps, where that is evident.

A record's cost is the sum over all steps, so its place in the norms must belong to one person throughout. A script that
resumes a run and splits its data anew, without a seed, also trains on people whom the ledger has as audit records. So a
digest of the rows that an audit ``Subset`` takes is kept with each step. Tensors and data sets of another form have
none: of these, only the number of records is compared.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Subset

from bayesdp.opacus.trained_rows import parts_of


def rows_digest(audit: Any) -> tuple[int, ...]:
    """Return a digest of 64 bits of the rows that audit records are of their data set; none if that is not known."""
    held = audit.dataset if isinstance(audit, DataLoader) else audit
    parts = list(parts_of(held)) if isinstance(held, Subset) else []
    if len(parts) != 1:
        return ()
    dataset, rows = parts[0]
    if rows is None or not hasattr(dataset, "__len__"):
        return ()
    told = np.array([len(dataset), *rows.tolist()], "<i8").tobytes()
    return (int.from_bytes(blake2b(told, digest_size=8).digest(), "big"),)
