"""The ledger's file: one SQLite database, in which a step is on disk before its result may be used.

While it is written there are three files beside it: SQLite's write-ahead log and its index, and the head (head.py).
Closing leaves one plain file. Reading checks everything: what was changed, removed or moved is named, never skipped.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path

from bayesdp.ledger import chain, head
from bayesdp.ledger.chain import StoredStep
from bayesdp.ledger.database import (
    BESIDE,
    DURABLE,
    ECONOMY,
    INSERT_STEP,
    MEMORY,
    clear_errors,
    connect,
    connect_to_read,
    create_tables,
    give_name,
    one_value,
)
from bayesdp.ledger.errors import LedgerError
from bayesdp.ledger.histograms import Slice
from bayesdp.ledger.reading import HashAt, check_head, read_settings, read_slices, read_steps, slice_digest

_LOG = ("-wal", "-shm", "-journal")


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
            create_tables(file._database, settings, chain.seal_of(chain.first_hash(settings), {}))
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
                    create_tables(database, settings, chain.seal_of(chain.first_hash(settings), {}))
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
        """Return the settings of the run, checked (see ``reading.read_settings``)."""
        return read_settings(self._database, self.path)

    def steps(self, first_hash: bytes) -> Iterator[StoredStep]:
        """Yield all steps in order, checked (see ``reading.read_steps``)."""
        return read_steps(self._database, self.path, first_hash, self._said, lambda: head.read(self._real))

    def slices(self, hash_at: HashAt, steps: int) -> dict[int, Slice]:
        """Return the slices that were folded, by number; a ledger that was closed must be complete."""
        found = read_slices(self._database, self.path, hash_at, steps)
        self.closed, self._digests = found.closed, found.digests
        if self.path != MEMORY:
            check_head(self.path, self._real, self._said, closed=found.closed)
        return found.slices

    def content(self, table: str, step: int) -> bytes | None:
        """The content of one step in one of the tables beside the steps."""
        self._check_open()
        assert table in BESIDE
        return one_value(self._database, f"SELECT content FROM {table} WHERE step = ?", (step,))

    def _check_free(self) -> None:
        if self._database.in_transaction:
            raise LedgerError(self.path, "is being read or written by the same program already")

    def _check_open(self) -> None:
        if not self.is_open:
            raise LedgerError(self.path, "is closed; Ledger.open opens it again")

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
            for table in BESIDE:
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
        return chain.seal_of(chain_hash, self._digests)

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
        if one_value(self._database, "PRAGMA journal_mode") == "delete":
            return True  # nothing was written
        try:
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            settled = one_value(self._database, "PRAGMA journal_mode = DELETE") == "delete"
            if settled:
                self._database.execute("VACUUM")
            return settled
        except sqlite3.OperationalError:
            return False

    def insert(self, stored: StoredStep) -> None:
        """A step, within a transaction."""
        self._database.execute(INSERT_STEP, (*stored.step.values(), stored.hash))
        for table, content in zip(BESIDE, (stored.journal, stored.batch, stored.norms), strict=True):
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
            if self._head is not None and one_value(self._database, "PRAGMA journal_mode = WAL") != "wal":
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
