"""Loading: reading the state of a ledger from its file, with every step and every count checked."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from bayesdp.ledger import chain
from bayesdp.ledger import exposure_grid as grid
from bayesdp.ledger.bins import Bins, Place
from bayesdp.ledger.caveats import CAVEATS
from bayesdp.ledger.errors import LedgerError
from bayesdp.ledger.file import LedgerFile, StoredStep
from bayesdp.ledger.histograms import AuditHistograms, Entry
from bayesdp.ledger.history import History
from bayesdp.ledger.settings import audit_size


@dataclass(frozen=True)
class LedgerState:
    """What a ledger keeps in memory: settings, the history of steps, and the counts of audit records."""

    settings: dict[str, str]
    history: History
    audit: AuditHistograms


def load(file: LedgerFile) -> LedgerState:
    """Read the whole ledger as of one moment.

    Raises LedgerError if anything in it is missing, was changed, or is unknown to this version.
    """
    with file.reading():
        settings = file.settings()
        version = settings.get("grid")
        if version not in [str(known) for known in grid.KNOWN_VERSIONS]:
            raise LedgerError(file.path, f"uses exposure grid {version}, unknown to this version")
        first_hash = chain.first_hash(settings)
        bins = Bins(*json.loads(settings.get("bins", "[[], []]")), ratios=version != "1")
        history = History(first_hash, bins)
        audit = AuditHistograms()
        if (records := audit_size(settings)) is not None:
            audit.set_records(records)
        for stored in file.steps(first_hash):
            step = stored.step
            if step.audited and audit.records is None:
                audit.set_records(step.audited)
            audit.append(_entry(history.bins.place(step.noise_std, step.sample_rate, step.clip), stored))
            history.add(step, stored.hash)
        for number, part in file.slices(history.hash_at, history.steps).items():
            expected = audit.slices[number] if number < len(audit.slices) else None
            if expected is None or (part.first, part.records) != (expected.first, expected.records):
                raise LedgerError(file.path, f"the counts of audit records (row {number}) belong to no record")
            audit.slices[number] = part.loosened()
    for name in history.caveats:
        if name not in CAVEATS:
            raise LedgerError(file.path, f"rests on {name!r}, unknown to this version")
    audit.forget_folded()
    for number, entry in enumerate(audit.journal, start=audit.steps - len(audit.journal) + 1):
        if entry.keys is None:
            raise LedgerError(file.path, f"step {number}: what it did to audit records is missing")
    return LedgerState(settings, history, audit)


def _entry(place: Place, stored: StoredStep) -> Entry:
    if not stored.step.audited:
        return Entry(place.rate_number, place.clip_key)
    return Entry(place.rate_number, None if stored.journal is None else np.frombuffer(stored.journal, "<u2"))
