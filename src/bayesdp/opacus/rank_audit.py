"""Audit records of several processes: each rank computes the norms of its share, and rank 0 gets them in order."""

from __future__ import annotations

from typing import Any

import torch

from bayesdp.opacus.audit import AuditNorms, AuditRecords
from bayesdp.opacus.ranks import Ranks


def share_of_rank(audit: AuditNorms | None, ranks: Ranks) -> AuditNorms | None:
    """Return what this rank audits: m records over R ranks are consecutive shares of m / R, rounded up or down.

    An ``AuditNorms`` of the user's own is asked on every rank, as it may need all of them, and those of rank 0 count.
    """
    if audit is None or ranks.size == 1:
        return audit
    if isinstance(audit, AuditRecords):
        first, after = (audit.records * number // ranks.size for number in (ranks.rank, ranks.rank + 1))
        audit.restrict(first, after)
        return audit
    return audit if ranks.has_ledger else _AskedOnly(audit)


class _AskedOnly:
    """Norms that are computed because other ranks need it, and not sent."""

    records = 0

    def __init__(self, audit: Any) -> None:
        self._audit = audit

    def due(self) -> bool:
        """Return whether norms are to be computed at this step."""
        return self._audit.due()

    def norms(self) -> torch.Tensor:
        """Compute the norms, and return none."""
        self._audit.norms()
        return torch.zeros(0)
