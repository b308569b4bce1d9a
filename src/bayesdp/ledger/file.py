"""The ledger's file: one SQLite database, in which a step is on disk before its result may be used.

While it is written there are three files beside it: SQLite's write-ahead log and its index, and the head (head.py).
Closing leaves one plain file. Reading checks everything: what was changed, removed or moved is named, never skipped.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from bayesdp.ledger import chain, head
from bayesdp.ledger.chain import Step
from bayesdp.ledger.database import (
    APPLICATION,
    DURABLE,
    ECONOMY,
    FORMAT,
    MEMORY,
    SCHEMA,
    clear_errors,
    connect,
    connect_to_read,
    create_tables,
    give_name,
)
from bayesdp.ledger.errors import LedgerError
from bayesdp.ledger.histograms import Slice

_FIELDS = [field.name for field in fields(Step)]
_INSERT_STEP = f"INSERT INTO steps VALUES ({', '.join('?' * (len(_FIELDS) + 1))})"
_BESIDE = {"journal": "audit_digest", "private_batches": "batch_digest", "private_norms": "norms_digest"}
_LOG = ("-wal", "-shm", "-journal")

HashAt = Callable[[int], bytes]


@dataclass(frozen=True)
class StoredStep:
    """A step that follows from the one before, and the contents beside it that are still kept."""

    step: Step
    hash: bytes
    journal: bytes | None
    batch: bytes | None
    norms: bytes | None


class LedgerFile:
    """An open database with the rows of a ledger; all that is read from it has been checked."""

    def __init__(self, path: Path | str, *, write: bool) -> None:
        """Connect to a ledger that exists; ``write`` also locks it."""
        self.path = path
        self._real = Path(path).resolve()  # whatever the working directory will be, and past links
        self._write = write
        self._head: head.Head | None = None
        self.closed = True
        "What the database says: all that belongs to the ledger is in it, and no head is needed."
        self.is_open = True
        self._ready = False
        self._said: tuple[int, bytes] | None = None  # what the head said: steps, and the hash of the last
        self._digests: dict[int, bytes] = {}  # of the slices
        self._process = os.getpid()
        with clear_errors(path):
            if path == MEMORY:
                self._database = sqlite3.connect(MEMORY, isolation_level=None, check_same_thread=False)
            else:
                self._open(self._real)

    def _open(self, path: Path) -> None:
        if not path.is_file():
            raise LedgerError(self.path, "expected the file of a ledger, which does not exist")
        if self._write:
            self._head = head.Head(path)
        try:
            self._said = head.read(path)
            self._database = connect_to_read(path)  # what will be refused is not touched; writing comes later
        except BaseException:
            self._release(remove=False)
            raise

    @staticmethod
    def create(path: Path | str, settings: Mapping[str, str]) -> LedgerFile:
        """A new ledger without steps, locked; at ``path`` there is nothing before the whole of it is there."""
        if path == MEMORY:
            file = LedgerFile(MEMORY, write=True)
            create_tables(file._database, settings, seal_of(chain.first_hash(settings), {}))
            return file
        given, path = path, Path(path).resolve()
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        with clear_errors(path):
            for ending in (*_LOG, "-head"):
                if path.with_name(path.name + ending).exists():
                    raise LedgerError(path, f"beside it lies {path.name}{ending} of an earlier ledger; move it away")
            if path.exists():
                raise LedgerError(path, "exists already; Ledger.open continues it")
            try:
                with contextlib.closing(sqlite3.connect(draft, isolation_level=None)) as database:
                    database.execute("PRAGMA synchronous = FULL")
                    create_tables(database, settings, seal_of(chain.first_hash(settings), {}))
                give_name(draft, path)
                head.sync_folder(path.parent)
            except FileExistsError:
                raise LedgerError(path, "exists already; Ledger.open continues it") from None
            finally:
                for leftover in (draft, draft.with_name(draft.name + "-journal")):
                    leftover.unlink(missing_ok=True)
        return LedgerFile(given, write=True)

    # Reading

    @contextlib.contextmanager
    def reading(self) -> Generator[None]:
        """All that is read inside is of one moment, also while another process writes."""
        self._check_open()
        with clear_errors(self.path):
            if self.path != MEMORY:
                self._said = head.read(self._real)  # before the database, so that it is not ahead of it
            self._check_free()
            try:
                self._database.execute("BEGIN")
                yield
            finally:
                self.roll_back()

    def settings(self) -> dict[str, str]:
        """The settings of the run; first of all, that this is a ledger and which version wrote it."""
        if self._one("PRAGMA application_id") != APPLICATION:
            raise LedgerError(self.path, "expected the file of a ledger, this is another one")
        version = self._one("PRAGMA user_version")
        if version != FORMAT:
            raise LedgerError(self.path, f"has format {version}; this version of bayesdp reads format {FORMAT}")
        schema = sorted(sql for (sql,) in self._database.execute("SELECT sql FROM sqlite_master") if sql is not None)
        if schema != sorted(SCHEMA) or self._one("PRAGMA quick_check") != "ok":
            raise LedgerError(self.path, "is damaged")
        settings = dict(self._database.execute("SELECT name, value FROM settings"))
        if not all(isinstance(text, str) for item in settings.items() for text in item):
            raise LedgerError(self.path, "is damaged: a setting is not text")
        return settings

    def steps(self, first_hash: bytes) -> Iterator[StoredStep]:
        """All steps in order, with the contents beside them; ends in an error if anything is not as it was written."""
        contents = ", ".join(f"{table}.content" for table in _BESIDE)
        columns = ", ".join(f"steps.{name}" for name in _FIELDS)
        joins = " ".join(f"LEFT JOIN {table} ON {table}.step = steps.number" for table in _BESIDE)
        query = f"SELECT steps.hash, {contents}, {columns} FROM steps {joins} ORDER BY steps.number"
        expected, previous, said = 1, first_hash, self._said
        if said is not None and said[0] == 0 and said[1] != first_hash:
            raise LedgerError(self.path, "its settings were changed")
        for stored_hash, journal, batch, norms, *values in self._database.execute(query):
            step = Step(**dict(zip(_FIELDS, values, strict=True)))
            if step.number != expected:
                raise LedgerError(self.path, f"step {expected} is missing")
            previous = step.hash(previous)
            if previous != stored_hash:
                raise LedgerError(self.path, f"step {expected} was changed, or steps are not in their order")
            if journal is not None and _digest(journal) != step.audit_digest:
                raise LedgerError(self.path, f"step {expected}: the journal of its audit records was changed")
            if _digest(batch) != step.batch_digest:
                raise LedgerError(self.path, f"step {expected}: the counts of its batch were changed or removed")
            if _digest(norms) != step.norms_digest:
                raise LedgerError(self.path, f"step {expected}: its norms were changed or removed")
            if said is not None and said[0] == expected and said[1] != previous:
                said = head.read(self._real)  # it may have been recorded again since
                if said is not None and said[0] == expected and said[1] != previous:
                    raise LedgerError(self.path, f"step {expected} is not the one that was written")
            yield StoredStep(step, previous, journal, batch, norms)
            expected += 1
        for table in _BESIDE:
            stray = self._one(f"SELECT min(step) FROM {table} WHERE step NOT IN (SELECT number FROM steps)")
            if stray is not None:
                raise LedgerError(self.path, f"step {stray} is missing")
        if said is not None and said[0] >= expected:
            raise LedgerError(
                self.path, f"has {expected - 1} steps, but {said[0]} were written: its write-ahead log lost some"
            )

    def slices(self, hash_at: HashAt, steps: int) -> dict[int, Slice]:
        """The slices that were folded, by number; and that the ledger is complete, if it was closed."""
        closed, closed_steps, seal = self._row("SELECT closed, steps, seal FROM state WHERE number = 1")
        if closed and closed_steps != steps:
            raise LedgerError(self.path, f"was closed with {closed_steps} steps and has {steps}")
        found: dict[int, Slice] = {}
        digests: dict[int, bytes] = {}
        query = "SELECT number, digest, first, records, through, packed, points, snapshots FROM slices ORDER BY number"
        for number, digest, *values in self._database.execute(query):
            one = _slice(*values)
            if one is None or not one.through <= steps or slice_digest(number, one, hash_at(one.through)) != digest:
                raise LedgerError(self.path, f"the counts of audit records (row {number}) were changed")
            found[number] = one
            digests[number] = digest
        if closed and seal_of(hash_at(steps), digests) != seal:
            raise LedgerError(self.path, "is not as it was closed: counts were removed")
        self.closed, self._digests = bool(closed), digests
        if not closed and self.path != MEMORY and self._said is None and head.read(self._real) is None:
            name = head.path_of(self._real).name
            raise LedgerError(self.path, f"was not closed, and {name} is not beside it: steps may be missing")
        return found

    def content(self, table: str, step: int) -> bytes | None:
        """The content of one step in one of the tables beside the steps."""
        self._check_open()
        assert table in _BESIDE
        return self._one(f"SELECT content FROM {table} WHERE step = ?", (step,))

    def _check_free(self) -> None:
        if self._database.in_transaction:
            raise LedgerError(self.path, "is being read or written by the same program already")

    def _check_open(self) -> None:
        if not self.is_open:
            raise LedgerError(self.path, "is closed; Ledger.open opens it again")

    def _one(self, query: str, values: tuple[Any, ...] = ()) -> Any:
        row = self._database.execute(query, values).fetchone()
        return None if row is None else row[0]

    def _row(self, query: str) -> Any:
        row = self._database.execute(query).fetchone()
        if row is None:
            raise LedgerError(self.path, "is damaged: a row is missing")
        return row

    # Writing

    def append(self, stored: StoredStep) -> None:
        """One step, synced."""
        with self.transaction():
            self.insert(stored)
        self._note(stored)

    def replace_last(self, stored: StoredStep, previous: bytes) -> None:
        """Another record of the last step, synced; ``previous`` is the hash of the step before."""
        if self._head is not None:  # from here to the end it is behind, which it may be
            with clear_errors(self.path):
                self._head.write(stored.step.number - 1, previous, sync=True)
        with self.transaction():
            self._database.execute("DELETE FROM steps WHERE number = ?", (stored.step.number,))
            for table in _BESIDE:
                self._database.execute(f"DELETE FROM {table} WHERE step = ?", (stored.step.number,))
            self.insert(stored)
        self._note(stored)

    def _note(self, stored: StoredStep) -> None:
        if self._head is not None:
            with clear_errors(self.path):
                self._head.write(stored.step.number, stored.hash)

    def put_slice(self, number: int, one: Slice, chain_hash: bytes, forget: int) -> None:
        """A folded slice; the journal of steps up to ``forget`` is removed."""
        with self.transaction():
            self.put(number, one, chain_hash)
            self._database.execute("DELETE FROM journal WHERE step <= ?", (forget,))

    def seal(self, steps: int, chain_hash: bytes) -> None:
        """Mark the ledger as closed: all its steps are in slices, and there is nothing beyond."""
        self._ready = False  # before the next step the mark is taken off again
        with self.transaction():
            values = (steps, self.seal_after(chain_hash))
            self._database.execute("UPDATE state SET closed = 1, steps = ?, seal = ? WHERE number = 1", values)
        self.closed = True

    def seal_after(self, chain_hash: bytes) -> bytes:
        """The seal of the ledger as it is."""
        return seal_of(chain_hash, self._digests)

    @property
    def unfinished(self) -> bool:
        """Whether there is something to fold and to seal before closing."""
        return self._write and self.is_open and not self.closed and os.getpid() == self._process

    def close(self) -> None:
        """Give up the lock; of a ledger that is closed, leave one plain file without room to spare."""
        if os.getpid() != self._process:  # the process from which this one was forked goes on with it
            self.is_open = False
            return
        settled = False
        try:
            settled = self.closed and (self._head is None or self._settle())
            self._database.close()
        finally:
            self.is_open = False
            self._release(remove=settled)

    def abandon(self) -> None:
        """Give up the lock and leave the files as they are."""
        self.is_open = False
        self._database.close()
        self._release(remove=False)

    def discard(self) -> None:
        """Give up, and remove the files of a ledger that was never complete."""
        self.abandon()
        if self.path != MEMORY:
            for ending in ("", *_LOG, "-head"):
                self._real.with_name(self._real.name + ending).unlink(missing_ok=True)

    def _settle(self) -> bool:
        """Empty the write-ahead log and give back free pages; not if somebody reads, or the disk is full."""
        if self._one("PRAGMA journal_mode") == "delete":
            return True  # nothing was written
        try:
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            settled = self._one("PRAGMA journal_mode = DELETE") == "delete"
            if settled:
                self._database.execute("VACUUM")
            return settled
        except sqlite3.OperationalError:
            return False

    def insert(self, stored: StoredStep) -> None:
        """A step, within a transaction."""
        self._database.execute(_INSERT_STEP, (*stored.step.values(), stored.hash))
        for table, content in zip(_BESIDE, (stored.journal, stored.batch, stored.norms), strict=True):
            if content is not None:
                self._database.execute(f"INSERT INTO {table} VALUES (?, ?)", (stored.step.number, content))

    def put(self, number: int, one: Slice, chain_hash: bytes) -> None:
        """A slice, within a transaction; ``chain_hash`` is that of the step through which it goes."""
        points = " ".join(map(str, one.points))
        digest = slice_digest(number, one, chain_hash)
        values = (number, one.first, one.records, one.through, one.packed, points, one.snapshots, digest)
        self._database.execute(f"REPLACE INTO slices VALUES ({', '.join('?' * len(values))})", values)
        self._digests[number] = digest

    def begin(self, steps: int, chain_hash: bytes) -> None:
        """Prepare for writing, after so many steps: from now on the ledger is not closed."""
        self._check_open()
        if not self._write:
            raise LedgerError(self.path, "was opened to be read only")
        if os.getpid() != self._process:
            raise LedgerError(self.path, "was opened by another process; a forked one cannot write to it")
        if self._ready:
            return
        with clear_errors(self.path):
            self.closed = False
            if self._head is not None:
                self._head.write(steps, chain_hash, sync=True)
                reader, self._database = self._database, connect(self._real, "rw")
                reader.close()
                for pragma in (*DURABLE, *ECONOMY):
                    self._database.execute(f"PRAGMA {pragma}")
            with self.transaction():  # before there is a log, so that the file itself says it
                self._database.execute("UPDATE state SET closed = 0 WHERE number = 1")
            if self._head is not None and self._one("PRAGMA journal_mode = WAL") != "wal":
                raise LedgerError(self.path, "cannot be written here: the disk allows no write-ahead log")
        self._ready = True

    @contextlib.contextmanager
    def transaction(self) -> Generator[None]:
        """What is written inside is on disk at its end, all of it or nothing."""
        with clear_errors(self.path):
            self._check_free()
            try:
                self._database.execute("BEGIN IMMEDIATE")
                yield
                self._database.execute("COMMIT")
            except BaseException:
                self.roll_back()
                raise

    def roll_back(self) -> None:
        """Leave the transaction that was begun, if any."""
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")

    def _release(self, *, remove: bool) -> None:
        if self._head is not None and os.getpid() == self._process:
            self._head.release(remove=remove)
            self._head = None

    def __del__(self) -> None:
        if getattr(self, "_head", None) is not None and os.getpid() == self._process:
            self._release(remove=False)


def slice_digest(number: int, one: Slice, chain_hash: bytes) -> bytes:
    """The digest of a slice, which also names the step through which it goes."""
    name = f"{number} {one.first} {one.records} {one.through} {one.points}"
    return chain.sha256(chain_hash, name.encode(), one.packed, one.snapshots)


def seal_of(chain_hash: bytes, digests: Mapping[int, bytes]) -> bytes:
    """One hash over everything in a closed ledger: the last step, and the digests of slices by their numbers."""
    return chain.sha256(chain_hash, *(digests[number] for number in sorted(digests)))


def _digest(content: Any) -> bytes | None:
    """The digest of what stands in a row; None if that cannot be content."""
    return chain.digest(content) if content is None or isinstance(content, bytes) else None


def _slice(first: Any, records: Any, through: Any, packed: Any, points: Any, snapshots: Any) -> Slice | None:
    """A slice from what stands in its row; None if that cannot be one."""
    whole = all(isinstance(number, int) for number in (first, records, through))
    if not (whole and isinstance(packed, bytes) and isinstance(snapshots, bytes) and isinstance(points, str)):
        return None
    try:
        return Slice(first, records, through, packed, tuple(int(point) for point in points.split()), snapshots)
    except ValueError:
        return None
