"""Folding: the journal of the last steps is added to the histograms of audit records, a slice of records at a time.

A slice is folded long after its steps were recorded. Until then the journal has them, on disk as well, so that a crash
between two slices loses nothing.
"""

from __future__ import annotations

from dataclasses import replace

from bayesdp.ledger import snapshots
from bayesdp.ledger.file import LedgerFile
from bayesdp.ledger.histograms import AuditHistograms, Slice, add_entries
from bayesdp.ledger.history import History
from bayesdp.ledger.snapshots import CostTrail, SnapshotCosts
from bayesdp.validation import FloatArray

_POINTS_OF_A_FOLD = 8


class Folding:
    """Folds the slices of a ledger that is being written, and takes snapshots of costs on the way."""

    def __init__(self, file: LedgerFile, history: History, audit: AuditHistograms) -> None:
        self._file, self._history, self._audit = file, history, audit
        self._costs = SnapshotCosts(history.bins)
        self._trails: dict[int, CostTrail] = {}

    def fold_due(self) -> None:
        """Fold the slices whose turn it is before the next step; none before it is known how many records there are."""
        for number in self._audit.due():
            self._fold(number, self._audit.boundary)

    def fold_all(self) -> None:
        """Fold everything, compressed: the ledger is about to be closed."""
        for number in range(len(self._audit.slices)):
            self._fold(number, self._audit.steps, tight=True)

    def _fold(self, number: int, through: int, *, tight: bool = False) -> None:
        before = self._audit.slices[number]
        entries = self._audit.entries(before.through, through)
        histogram = before.histogram()
        trail = self._trails.get(number) or CostTrail(before, histogram, self._costs)
        # Most points of a young run would soon be dropped again; on closing, all that are wanted are made.
        points, kept = trail.snapshots(before, entries, at_most=snapshots.POINTS if tight else _POINTS_OF_A_FOLD)
        packed = add_entries(histogram, before.range, entries).pack(tight=tight)
        after = replace(before, through=through, packed=packed, points=points, snapshots=kept)
        others = [part.through for other, part in enumerate(self._audit.slices) if other != number]
        self._file.put_slice(number, after, self._history.hash_at(through), forget=min([*others, through]))
        self._audit.slices[number] = after
        self._trails[number] = trail
        self._audit.forget_folded()

    def snapshots(self) -> tuple[list[int], FloatArray]:
        """Return the steps [P] at which costs were kept, and costs [P, m, 8] of audit records; nothing is folded."""
        slices: list[Slice] = []
        for part in self._audit.slices:
            entries = self._audit.entries(part.through, self._audit.steps)
            if entries:
                points, kept = CostTrail(part, part.histogram(), self._costs).snapshots(part, entries)
                part = replace(part, points=points, snapshots=kept)
            slices.append(part)
        return snapshots.of_all(slices)
