"""Folding: adding the journal of the last steps to the histograms of audit records, one slice of records at a time.

A slice is folded long after its steps were recorded. Until then the journal keeps them, on disk too, so a crash between
two slices loses nothing.
"""

from __future__ import annotations

from dataclasses import replace

from bayesdp.ledger import snapshots
from bayesdp.ledger.file import LedgerFile
from bayesdp.ledger.histograms import AuditHistograms, Slice, add_entries
from bayesdp.ledger.history import History
from bayesdp.ledger.snapshots import CostTrail, SnapshotCosts
from bayesdp.mechanisms.order_mixture import OrderMixture
from bayesdp.validation import FloatArray

_POINTS_OF_A_FOLD = 8


class Folding:
    """Folds the slices of a ledger that is being written, and takes snapshots of costs along the way."""

    def __init__(self, file: LedgerFile, history: History, audit: AuditHistograms, mixture: OrderMixture) -> None:
        self._file, self._history, self._audit = file, history, audit
        self._costs = SnapshotCosts(history.bins, mixture)
        self._trails: dict[int, CostTrail] = {}

    def fold_due(self) -> None:
        """Fold the slices that are due before the next step: none until the number of audit records is known."""
        for number in self._audit.due():
            self._fold(number, self._audit.boundary)

    def fold_all(self) -> None:
        """Fold and compress everything, because the ledger is about to be closed."""
        for number in range(len(self._audit.slices)):
            self._fold(number, self._audit.steps, tight=True)

    def _fold(self, number: int, through: int, *, tight: bool = False) -> None:
        before = self._audit.slices[number]
        entries = self._audit.entries(before.through, through)
        histogram = before.histogram()
        trail = self._trails.get(number) or CostTrail(before, histogram, self._costs)
        # Most points of a young run would soon be dropped again, so only a closed ledger gets all of them.
        points, kept = trail.snapshots(before, entries, at_most=snapshots.POINTS if tight else _POINTS_OF_A_FOLD)
        packed = add_entries(histogram, before.range, entries).pack(tight=tight)
        after = replace(before, through=through, packed=packed, points=points, snapshots=kept)
        others = [part.through for index, part in enumerate(self._audit.slices) if index != number]
        self._file.put_slice(number, after, self._history.hash_at(through), forget=min([*others, through]))
        self._audit.slices[number] = after
        self._trails[number] = trail
        self._audit.forget_folded()

    def snapshots(self) -> tuple[list[int], FloatArray]:
        """Return the steps [P] of the snapshots and the costs there, [P, m, L], without folding anything."""
        slices: list[Slice] = []
        for part in self._audit.slices:
            entries = self._audit.entries(part.through, self._audit.steps)
            if entries:
                points, kept = CostTrail(part, part.histogram(), self._costs).snapshots(part, entries)
                part = replace(part, points=points, snapshots=kept)
            slices.append(part)
        return snapshots.all_snapshots(slices, self._costs.orders)
