"""The small file beside a ledger that is being written: a lock, and how far the ledger had come.

SQLite's write-ahead log may lose its end without a trace: the database then looks like an earlier, shorter one. So
after every step the number of steps and the head of the hash chain are also written here. This is not synced (the log
is), so it may fall behind after a power failure, but never ahead: a ledger with fewer steps than its head lost some.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from pathlib import Path

from bayesdp.ledger.errors import LedgerError

_FORMAT = struct.Struct("<8sQ32s")
_MAGIC = b"bdphead1"


def path_of(ledger: Path) -> Path:
    """Where the head of a ledger is."""
    return ledger.with_name(ledger.name + "-head")


def read(ledger: Path) -> tuple[int, bytes] | None:
    """Steps and hash, or None where there is no head (the ledger is closed)."""
    for _ in range(3):  # it may be read while it is written
        try:
            data = path_of(ledger).read_bytes()
        except FileNotFoundError:
            return None
        if not data:
            return None  # locked by a process that has not written a step yet
        body, check = data[: _FORMAT.size], data[_FORMAT.size :]
        if len(body) == _FORMAT.size and zlib.crc32(body).to_bytes(4, "little") == check and body[:8] == _MAGIC:
            _, steps, head = _FORMAT.unpack(body)
            return steps, head
    raise LedgerError(ledger, f"the file {path_of(ledger).name} beside it is damaged, so steps may be missing")


class Head:
    """The head of a ledger that this process writes; nobody else can while it is held."""

    def __init__(self, ledger: Path) -> None:
        self._path = path_of(ledger)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise LedgerError(ledger, "is being written by another process") from None
        self._empty = os.fstat(self._file).st_size == 0
        if not self._path.exists() or os.fstat(self._file).st_ino != self._path.stat().st_ino:
            os.close(self._file)  # the other process removed it just now
            raise LedgerError(ledger, "was being closed by another process just now; try again")

    def write(self, steps: int, head: bytes, *, sync: bool = False) -> None:
        """Say how far the ledger has come."""
        self._empty = False
        body = _FORMAT.pack(_MAGIC, steps, head)
        os.pwrite(self._file, body + zlib.crc32(body).to_bytes(4, "little"), 0)
        if sync:
            os.fsync(self._file)
            sync_folder(self._path.parent)

    def release(self, *, remove: bool) -> None:
        """Give up the lock; a closed ledger needs no head, and an empty one says nothing."""
        if remove or self._empty:
            self._path.unlink(missing_ok=True)
        fcntl.flock(self._file, fcntl.LOCK_UN)  # forked processes may still have the file open
        os.close(self._file)


def sync_folder(folder: Path) -> None:
    """Make names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
