"""The SQLite database of a ledger: its tables, how it is opened, and its errors in plain words."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Generator, Mapping
from dataclasses import fields
from pathlib import Path
from textwrap import shorten
from typing import Any
from urllib.parse import quote

from bayesdp.ledger.chain import Step
from bayesdp.ledger.errors import LedgerError, StorageError

FORMAT = 2
MEMORY = ":memory:"
APPLICATION = 0x62647031
SCHEMA = (
    "CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE state (number INTEGER PRIMARY KEY, closed INTEGER NOT NULL, steps INTEGER NOT NULL,"
    " seal BLOB NOT NULL)",
    "CREATE TABLE steps (number INTEGER PRIMARY KEY, noise_std REAL NOT NULL, sample_rate REAL NOT NULL, clip REAL,"
    " planned_batch REAL, time REAL NOT NULL, source TEXT NOT NULL, caveats TEXT NOT NULL, audited INTEGER NOT NULL,"
    " audit_clipped INTEGER NOT NULL, audit_digest BLOB NOT NULL, batch_digest BLOB NOT NULL,"
    " norms_digest BLOB NOT NULL, hash BLOB NOT NULL)",
    "CREATE TABLE journal (step INTEGER PRIMARY KEY, content BLOB NOT NULL)",
    "CREATE TABLE private_batches (step INTEGER PRIMARY KEY, content BLOB NOT NULL)",
    "CREATE TABLE private_norms (step INTEGER PRIMARY KEY, content BLOB NOT NULL)",
    "CREATE TABLE slices (number INTEGER PRIMARY KEY, first INTEGER NOT NULL, records INTEGER NOT NULL,"
    " through INTEGER NOT NULL, packed BLOB NOT NULL, points TEXT NOT NULL, snapshots BLOB NOT NULL,"
    " digest BLOB NOT NULL)",
)
STEP_FIELDS = [field.name for field in fields(Step)]
INSERT_STEP = f"INSERT INTO steps VALUES ({', '.join('?' * (len(STEP_FIELDS) + 1))})"
KEEP_SEAL = "INSERT INTO state SELECT max(number) + 1, 0, ?, ? FROM state"
"""Notes, when a closed ledger is continued, its steps and the digests of its slices: with them its seal is known."""
CONTENT_TABLES = {"journal": "audit_digest", "private_batches": "batch_digest", "private_norms": "norms_digest"}
"""Tables with the larger content of steps; for each, the field of a step that keeps the digest of its content."""
DURABLE = ("synchronous = FULL", "fullfsync = ON", "checkpoint_fullfsync = ON")
# Deleted rows need not be overwritten: closing gives all free pages back. A short log keeps the files small.
ECONOMY = ("secure_delete = OFF", "wal_autocheckpoint = 500")

_LONGEST = 200  # characters of SQLite's message that an error quotes, all on one line


@contextlib.contextmanager
def translated_errors(path: Path | str) -> Generator[None]:
    """Turn errors of the disk and of SQLite into StorageError or LedgerError with a message of one line."""
    try:
        yield
    except sqlite3.Error as error:
        raise _in_plain_words(path, str(error)) from error
    except UnicodeDecodeError as error:
        raise LedgerError(path, "is damaged: text in it cannot be read") from error
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(path, f"cannot be used ({error.strerror or error})", error.errno) from error


def _in_plain_words(path: Path | str, text: str) -> LedgerError | StorageError:
    """Return the error that says in plain words what SQLite's message means, which may quote a damaged file."""
    if text.startswith("Could not decode"):  # and all of the bytes that it could not decode
        return LedgerError(path, "is damaged: text in it cannot be read")
    text = shorten(text, _LONGEST)
    unused = "nothing was recorded, so the result of this step must not be used"
    if "full" in text:
        return StorageError(path, f"the disk is full; {unused}", errno.ENOSPC)
    if "I/O" in text:
        return StorageError(path, f"the disk failed ({text}); {unused}", errno.EIO)
    if "readonly" in text or "unable to open" in text:
        what = f"cannot be opened here ({text}); a ledger that was not closed needs a folder that can be written"
        return StorageError(path, what, errno.EACCES)
    if "locked" in text:
        return LedgerError(path, "is being used by another process")
    return LedgerError(path, f"is damaged, or not a ledger ({text})")


def give_name(draft: Path, path: Path) -> None:
    """Give the finished draft its name in one atomic act; raise FileExistsError if that name is taken."""
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:  # a disk without hard links: claim the name, then replace what claimed it
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o666))
        os.replace(draft, path)


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Connect to a file that exists, in mode "ro" or "rw"; functions in its schema are never run."""
    address = f"file:{quote(str(path.absolute()))}?mode={mode}"
    database = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False, timeout=1)
    try:
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("PRAGMA cell_size_check = ON")
        database.execute("SELECT count(*) FROM sqlite_master").fetchone()  # SQLite opens the file here
    except BaseException:
        database.close()
        raise
    return database


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Connect without the right to write, unless a log that a crash left behind requires it."""
    try:
        return connect(path, "ro")
    except sqlite3.OperationalError:
        return connect(path, "rw")


def single_value(database: sqlite3.Connection, query: str, values: tuple[Any, ...] = ()) -> Any:
    """Return the first value of the first row of a query's result; None if the result is empty."""
    row = database.execute(query, values).fetchone()
    return None if row is None else row[0]


def create_tables(database: sqlite3.Connection, settings: Mapping[str, str], seal: bytes) -> None:
    """Create the tables of a ledger without steps, closed with this seal, in one transaction."""
    database.execute("BEGIN")
    database.execute(f"PRAGMA application_id = {APPLICATION}")
    database.execute(f"PRAGMA user_version = {FORMAT}")
    for statement in SCHEMA:
        database.execute(statement)
    database.executemany("INSERT INTO settings VALUES (?, ?)", sorted(settings.items()))
    database.execute("INSERT INTO state VALUES (1, 1, 0, ?)", (seal,))
    database.execute("COMMIT")
