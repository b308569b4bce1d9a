"""The ledger's file: one SQLite database, in which a step is on disk before its result may be used.

While it is being written, three more files lie beside it: SQLite's write-ahead log, the index of that log, and the head
(head.py). Closing leaves one plain file. Reading checks everything: a row that was changed, removed or moved is named
in an error, never skipped.
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
    CONTENT_TABLES,
    DURABLE,
    ECONOMY,
    INSERT_STEP,
    KEEP_SEAL,
    MEMORY,
    connect,
    connect_to_read,
    create_tables,
    give_name,
    single_value,
    translated_errors,
)
from bayesdp.ledger.errors import LedgerError
from bayesdp.ledger.histograms import Slice
from bayesdp.ledger.reading import HashAt, check_head, read_settings, read_slices, read_steps, slice_digest

_LOG = ("-wal", "-shm", "-journal")


class LedgerFile:
    """The open file of a ledger: rows go in by transactions that are on disk when they end, and come out checked.

    Methods raise StorageError if the disk is full or fails, and LedgerError for everything else that is wrong with the
    file; each message is one line.
    """

    def __init__(self, path: Path | str, *, write: bool) -> None:
        """Connect to a ledger that exists; ``write`` also locks it. No row is changed before ``begin``."""
        self.path = path
        self._real = Path(path).resolve()  # links followed, and valid wherever the process changes its directory to
        self._write = write
        self._head: head.Head | None = None
        self.sealed = True
        "Whether the database is marked as closed: it contains the whole ledger, and needs no head."
        self.earlier_seals: dict[bytes, int] = {}
        "Seals of the ledger when it was closed before, and the number of steps that it had then."
        self.is_open = True
        self._ready = False  # whether ``begin`` has prepared the file for writing
        self._noted: tuple[int, bytes] | None = None  # what the head says: steps, and the hash of the last one
        self._digests: dict[int, bytes] = {}  # of the slices, by number
        self._process = os.getpid()
        with translated_errors(path):
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
            self._noted = head.read(path)
            self._database = connect_to_read(path)  # ``begin`` connects to write, once the ledger is known to be good
        except BaseException:
            self._release(remove=False)
            raise

    @staticmethod
    def create(path: Path | str, settings: Mapping[str, str]) -> LedgerFile:
        """Create a ledger without steps and lock it. The file appears at ``path`` complete, or not at all.

        Raises LedgerError if a file is there already, another process is writing it, or an earlier ledger of this name
        left files beside it.
        """
        if path == MEMORY:
            file = LedgerFile(MEMORY, write=True)
            create_tables(file._database, settings, chain.seal_of(chain.first_hash(settings), {}))
            return file
        given, path = path, Path(path).resolve()
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        with translated_errors(path):
            _check_free_name(path)
            try:
                with contextlib.closing(sqlite3.connect(draft, isolation_level=None)) as database:
                    database.execute("PRAGMA synchronous = FULL")
                    create_tables(database, settings, chain.seal_of(chain.first_hash(settings), {}))
                give_name(draft, path)
                head.sync_folder(path.parent)
            except FileExistsError:
                _check_free_name(path)
                raise
            finally:
                for leftover in (draft, draft.with_name(draft.name + "-journal")):
                    leftover.unlink(missing_ok=True)
        return LedgerFile(given, write=True)

    # Reading

    @contextlib.contextmanager
    def reading(self) -> Generator[None]:
        """Read everything inside as of one moment, even while another process writes."""
        self._check_open()
        with translated_errors(self.path):
            if self.path != MEMORY:
                self._noted = head.read(self._real)  # before the database, so that it cannot be ahead of it
            self._check_free()
            try:
                self._database.execute("BEGIN")
                yield
            finally:
                self.roll_back()

    def settings(self) -> dict[str, str]:
        """Return the settings of the run, after checking the file as a whole (see ``reading.read_settings``)."""
        return read_settings(self._database, self.path)

    def steps(self, first_hash: bytes) -> Iterator[StoredStep]:
        """Yield all steps in order, each checked against the one before (see ``reading.read_steps``)."""
        return read_steps(self._database, self.path, first_hash, self._noted, lambda: head.read(self._real))

    def slices(self, hash_at: HashAt, steps: int) -> dict[int, Slice]:
        """Return the folded slices by number, checked; a ledger that was closed must be complete."""
        stored = read_slices(self._database, self.path, hash_at, steps)
        self.sealed, self._digests, self.earlier_seals = stored.closed, stored.digests, stored.earlier_seals
        if self.path != MEMORY:
            check_head(self.path, self._real, self._noted, closed=stored.closed)
        return stored.slices

    def content(self, table: str, step: int) -> bytes | None:
        """Return the content of a step in one of ``CONTENT_TABLES``; None if it has none there."""
        self._check_open()
        assert table in CONTENT_TABLES
        return single_value(self._database, f"SELECT content FROM {table} WHERE step = ?", (step,))

    def _check_free(self) -> None:
        if self._database.in_transaction:
            raise LedgerError(self.path, "is being read or written by the same program already")

    def _check_open(self) -> None:
        if not self.is_open:
            raise LedgerError(self.path, "is closed; Ledger.open opens it again")

    # Writing

    def append(self, stored: StoredStep) -> None:
        """Add a step; it is on disk when this returns."""
        with self.transaction():
            self.insert(stored)
        self._note(stored)

    def replace_last(self, stored: StoredStep, previous: bytes, folded: Mapping[int, Slice] | None = None) -> None:
        """Replace the last step; on disk when this returns. ``previous`` is the hash of the step before it.

        ``folded`` are the slices, by number, that hold the step already: their digests follow its hash.
        """
        if self._head is not None:  # first: after a crash in between it must not name a hash that the file has lost
            with translated_errors(self.path):
                self._head.write(stored.step.number - 1, previous, sync=True)
        with self.transaction():
            self._database.execute("DELETE FROM steps WHERE number = ?", (stored.step.number,))
            for table in CONTENT_TABLES:
                self._database.execute(f"DELETE FROM {table} WHERE step = ?", (stored.step.number,))
            self.insert(stored)
            for number, part in (folded or {}).items():
                self.put(number, part, stored.hash)
        self._note(stored)

    def _note(self, stored: StoredStep) -> None:
        if self._head is not None:
            with translated_errors(self.path):
                self._head.write(stored.step.number, stored.hash)

    def put_slice(self, number: int, part: Slice, chain_hash: bytes, forget: int) -> None:
        """Store a folded slice and remove the journal of steps up to ``forget``, in one transaction."""
        with self.transaction():
            self.put(number, part, chain_hash)
            self._database.execute("DELETE FROM journal WHERE step <= ?", (forget,))

    def seal(self, steps: int, chain_hash: bytes) -> None:
        """Mark the ledger as closed with this many steps; all of them must have been folded into slices."""
        self._ready = False  # so that ``begin`` takes the mark off before the next step
        with self.transaction():
            values = (steps, self.seal_after(chain_hash))
            self._database.execute("UPDATE state SET closed = 1, steps = ?, seal = ? WHERE number = 1", values)
        self.sealed = True

    @property
    def being_written(self) -> bool:
        """Whether a process, this one or another, holds the ledger to write it."""
        return self.path != MEMORY and head.is_held(self._real)

    def seal_after(self, chain_hash: bytes) -> bytes:
        """Return the seal of the ledger as it is now; ``chain_hash`` is the hash of its last step."""
        return chain.seal_of(chain_hash, self._digests)

    @property
    def unfinished(self) -> bool:
        """Whether something must be folded and sealed before closing."""
        return self._write and self.is_open and not self.sealed and os.getpid() == self._process

    def close(self) -> None:
        """Give up the lock; if the ledger was sealed, leave one plain file without free pages."""
        if os.getpid() != self._process:  # the parent of this forked process still uses it
            self.is_open = False
            return
        settled = False
        try:
            settled = self.sealed and (self._head is None or self._settle())
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
        """Give up the lock and remove the files of a ledger that was never completed."""
        self.abandon()
        if self.path != MEMORY:
            for ending in ("", *_LOG, "-head"):
                self._real.with_name(self._real.name + ending).unlink(missing_ok=True)

    def _settle(self) -> bool:
        """Empty the log and give back free pages; return False if a reader or a full disk prevents it."""
        if single_value(self._database, "PRAGMA journal_mode") == "delete":
            return True  # nothing was written
        try:
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            settled = single_value(self._database, "PRAGMA journal_mode = DELETE") == "delete"
            if settled:
                self._database.execute("VACUUM")
            return settled
        except sqlite3.OperationalError:
            return False

    def insert(self, stored: StoredStep) -> None:
        """Insert a step; call it within a transaction."""
        self._database.execute(INSERT_STEP, (*stored.step.values(), stored.hash))
        for table, content in zip(CONTENT_TABLES, (stored.journal, stored.batch, stored.norms), strict=True):
            if content is not None:
                self._database.execute(f"INSERT INTO {table} VALUES (?, ?)", (stored.step.number, content))

    def put(self, number: int, part: Slice, chain_hash: bytes) -> None:
        """Insert or replace a slice, within a transaction; ``chain_hash`` is the hash of step ``part.through``."""
        points = " ".join(map(str, part.points))
        digest = slice_digest(number, part, chain_hash)
        values = (number, part.first, part.records, part.through, part.packed, points, part.snapshots, digest)
        self._database.execute(f"REPLACE INTO slices VALUES ({', '.join('?' * len(values))})", values)
        self._digests[number] = digest

    def begin(self, steps: int, chain_hash: bytes) -> None:
        """Prepare for writing: from now on the ledger is not closed. Does nothing if it is prepared already.

        ``steps`` and ``chain_hash`` say how far the ledger has come. Raises LedgerError if this process may not write.
        """
        self._check_open()
        if not self._write:
            raise LedgerError(self.path, "was opened for reading only")
        if os.getpid() != self._process:
            raise LedgerError(self.path, "was opened by another process; a forked one cannot write to it")
        if self._ready:
            return
        with translated_errors(self.path):
            closed_before, self.sealed = self.sealed and steps > 0, False
            if self._head is not None:
                self._head.write(steps, chain_hash, sync=True)
                reader, self._database = self._database, connect(self._real, "rw")
                reader.close()
                for pragma in (*DURABLE, *ECONOMY):
                    self._database.execute(f"PRAGMA {pragma}")
            with self.transaction():  # before there is a log, so that the file itself says so
                if closed_before:
                    self._database.execute(KEEP_SEAL, (steps, chain.joined_digests(self._digests)))
                    self.earlier_seals[self.seal_after(chain_hash)] = steps
                self._database.execute("UPDATE state SET closed = 0 WHERE number = 1")
            if self._head is not None and single_value(self._database, "PRAGMA journal_mode = WAL") != "wal":
                raise LedgerError(self.path, "cannot be written here: the disk allows no write-ahead log")
        self._ready = True

    @contextlib.contextmanager
    def transaction(self) -> Generator[None]:
        """Put everything written inside on disk at the end, or nothing of it if an error occurs."""
        with translated_errors(self.path):
            self._check_free()
            try:
                self._database.execute("BEGIN IMMEDIATE")
                yield
                self._database.execute("COMMIT")
            except BaseException:
                self.roll_back()
                raise

    def roll_back(self) -> None:
        """Undo the transaction that was begun, if any."""
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")

    def _release(self, *, remove: bool) -> None:
        if self._head is not None and os.getpid() == self._process:
            self._head.unlock(remove=remove)
            self._head = None

    def __del__(self) -> None:
        """Give up what was never closed: a ledger in memory that nobody holds any more, or one left after an error."""
        try:
            if getattr(self, "_process", None) == os.getpid():
                if (database := getattr(self, "_database", None)) is not None:
                    database.close()
                self._release(remove=False)
        except AttributeError:  # the interpreter is ending, and modules are gone: the system gives up the lock
            pass


def check_not_written(path: Path) -> None:
    """Raise LedgerError if a process is writing the ledger at ``path`` now."""
    real = path.resolve()
    if head.is_held(real):
        raise LedgerError(path, f"is being written by {head.writer_of(real)}")


def _check_free_name(path: Path) -> None:
    """Raise LedgerError unless a new ledger may have this path."""
    left = [path.name + ending for ending in (*_LOG, "-head") if path.with_name(path.name + ending).exists()]
    check_not_written(path)
    if path.exists():
        what = f"exists already{' and was not closed' if left else ''}"
        raise LedgerError(path, f"{what}; give a new run another name, or continue this one with Ledger.open")
    if left:
        raise LedgerError(
            path, f"beside it lies {left[0]} of an earlier ledger, with steps of it; move it to that ledger, or away"
        )
