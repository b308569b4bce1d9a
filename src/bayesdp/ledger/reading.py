"""Reading a ledger's database: a row that was changed, removed or moved is named in an error, never skipped."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesdp.ledger import chain, head
from bayesdp.ledger.chain import Step, StoredStep
from bayesdp.ledger.database import APPLICATION, CONTENT_TABLES, FORMAT, SCHEMA, STEP_FIELDS, single_value
from bayesdp.ledger.errors import LedgerError
from bayesdp.ledger.histograms import Slice

HashAt = Callable[[int], bytes]
"""A function from the number of a step to its hash; step 0 stands for the settings."""
Noted = tuple[int, bytes]
"""What the head beside the ledger says: the number of steps, and the hash of the last one."""


def read_settings(database: sqlite3.Connection, path: Path | str) -> dict[str, str]:
    """Return the settings of the run, after checking that the file is a ledger, intact and of a known format.

    Raises LedgerError if it is not.
    """
    if single_value(database, "PRAGMA application_id") != APPLICATION:
        raise LedgerError(path, "expected the file of a ledger, this is a different file")
    version = single_value(database, "PRAGMA user_version")
    if version != FORMAT:
        raise LedgerError(path, f"has format {version}; this version of bayesdp reads format {FORMAT}")
    schema = Counter(sql for (sql,) in database.execute("SELECT sql FROM sqlite_master") if sql is not None)
    if schema != Counter(SCHEMA) or single_value(database, "PRAGMA quick_check") != "ok":
        raise LedgerError(path, "is damaged")
    settings = dict(database.execute("SELECT name, value FROM settings"))
    if not all(isinstance(text, str) for item in settings.items() for text in item):
        raise LedgerError(path, "is damaged: a setting is not text")
    return settings


def read_steps(
    database: sqlite3.Connection,
    path: Path | str,
    first_hash: bytes,
    noted: Noted | None,
    reread: Callable[[], Noted | None],
) -> Iterator[StoredStep]:
    """Yield all steps in order, with their content from other tables.

    ``noted`` is what the head said before the database was read; ``reread`` reads the head again, because the last step
    may have been amended since. Raises LedgerError at the first step that is missing or not as it was written, and at
    the end if there are fewer steps than the head says.
    """
    contents = ", ".join(f"{table}.content" for table in CONTENT_TABLES)
    columns = ", ".join(f"steps.{name}" for name in STEP_FIELDS)
    joins = " ".join(f"LEFT JOIN {table} ON {table}.step = steps.number" for table in CONTENT_TABLES)
    query = f"SELECT steps.hash, {contents}, {columns} FROM steps {joins} ORDER BY steps.number"
    expected, previous = 1, first_hash
    if noted is not None and noted[0] == 0 and noted[1] != first_hash:
        raise LedgerError(path, "its settings were changed")
    for stored_hash, journal, batch, norms, *values in database.execute(query):
        step = Step(**dict(zip(STEP_FIELDS, values, strict=True)))
        if step.number != expected:
            raise LedgerError(path, f"step {expected} is missing")
        previous = step.hash(previous)
        if previous != stored_hash:
            raise LedgerError(path, f"step {expected} was changed, or steps are not in their order")
        if journal is not None and _digest(journal) != step.audit_digest:
            raise LedgerError(path, f"step {expected}: the journal of its audit records was changed")
        if _digest(batch) != step.batch_digest:
            raise LedgerError(path, f"step {expected}: the counts of its batch were changed or removed")
        if _digest(norms) != step.norms_digest:
            raise LedgerError(path, f"step {expected}: its norms were changed or removed")
        if noted is not None and noted[0] == expected and noted[1] != previous:
            noted = reread()
            if noted is not None and noted[0] == expected and noted[1] != previous:
                raise LedgerError(path, f"step {expected} is not the one that was written")
        yield StoredStep(step, previous, journal, batch, norms)
        expected += 1
    for table in CONTENT_TABLES:
        stray = single_value(database, f"SELECT min(step) FROM {table} WHERE step NOT IN (SELECT number FROM steps)")
        if stray is not None:
            raise LedgerError(path, f"step {stray} is missing")
    if noted is not None and noted[0] >= expected:
        raise LedgerError(path, f"has {expected - 1} steps, but {noted[0]} were written: its write-ahead log lost some")


@dataclass(frozen=True)
class StoredSlices:
    """The folded slices and their digests, by number, and whether the ledger was closed."""

    slices: dict[int, Slice]
    digests: dict[int, bytes]
    closed: bool
    earlier_seals: dict[bytes, int]
    "Seals of the ledger when it was closed before, and how many steps it had then."


def read_slices(database: sqlite3.Connection, path: Path | str, hash_at: HashAt, steps: int) -> StoredSlices:
    """Return the folded slices, each checked against its digest; a ledger that was closed must be complete.

    Raises LedgerError if a slice was changed or removed.
    """
    state = database.execute("SELECT closed, steps, seal FROM state WHERE number = 1").fetchone()
    if state is None:
        raise LedgerError(path, "is damaged: a row is missing")
    closed, closed_steps, seal = state
    if closed and closed_steps != steps:
        raise LedgerError(path, f"was closed with {closed_steps} steps and has {steps}")
    stored = StoredSlices({}, {}, bool(closed), _earlier_seals(database, hash_at, steps))
    query = "SELECT number, digest, first, records, through, packed, points, snapshots FROM slices ORDER BY number"
    for number, digest, *values in database.execute(query):
        part = _slice(*values)
        if part is None or not part.through <= steps or slice_digest(number, part, hash_at(part.through)) != digest:
            raise LedgerError(path, f"the counts of audit records (row {number}) were changed")
        stored.slices[number] = part
        stored.digests[number] = digest
    if closed and chain.seal_of(hash_at(steps), stored.digests) != seal:
        raise LedgerError(path, "is not as it was closed: counts were removed")
    return stored


def _earlier_seals(database: sqlite3.Connection, hash_at: HashAt, steps: int) -> dict[bytes, int]:
    """Return the seals of the ledger when it was closed before, each computed from the chain as it is now.

    What the file notes beside the chain, digests of slices that are gone, can be made up; but no seal of other steps
    follows from it.
    """
    noted = database.execute("SELECT steps, seal FROM state WHERE number > 1")
    known = [(0, b""), *((at, digests) for at, digests in noted if isinstance(at, int) and isinstance(digests, bytes))]
    return {chain.seal_from_joined(hash_at(at), digests): at for at, digests in known if 0 <= at <= steps}


def check_head(path: Path | str, real: Path, noted: Noted | None, *, closed: bool) -> None:
    """Raise LedgerError for a ledger that was not closed and has lost its head: steps may be missing unnoticed."""
    if not closed and noted is None and head.read(real) is None:
        raise LedgerError(path, f"was not closed, and {head.path_of(real).name} is not beside it: steps may be missing")


def slice_digest(number: int, part: Slice, chain_hash: bytes) -> bytes:
    """Return the digest of a slice; ``chain_hash`` is the hash of the last step in it."""
    name = f"{number} {part.first} {part.records} {part.through} {part.points}"
    return chain.sha256(chain_hash, name.encode(), part.packed, part.snapshots)


def _digest(content: Any) -> bytes | None:
    """Return the digest of a value from a row; None if the value has the wrong type."""
    return chain.digest(content) if content is None or isinstance(content, bytes) else None


def _slice(first: Any, records: Any, through: Any, packed: Any, points: Any, snapshots: Any) -> Slice | None:
    """Return the slice in a row; None if a value has the wrong type or form."""
    whole = all(isinstance(number, int) for number in (first, records, through))
    if not (whole and isinstance(packed, bytes) and isinstance(snapshots, bytes) and isinstance(points, str)):
        return None
    try:
        return Slice(first, records, through, packed, tuple(int(point) for point in points.split()), snapshots)
    except ValueError:
        return None
