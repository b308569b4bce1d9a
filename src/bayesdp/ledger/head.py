"""The head: a small file beside a ledger that is being written. It is the lock, and says how far the ledger had come.

SQLite's write-ahead log may lose its end without a trace: the database then looks like an earlier, shorter one. So
after every step the number of steps and the hash of the last one are also written here. This file is not synced (the
log is), so after a power failure it may be behind the database but never ahead: a ledger with fewer steps than its head
says has lost some.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
import zlib
from pathlib import Path

from bayesdp.ledger.errors import LedgerError

_FORMAT = struct.Struct("<8sQ32s")
_MAGIC = b"bdphead1"
_TRIES, _PAUSE = 5, 0.01  # how often the lock is tried, because ``is_held`` takes it for an instant; seconds between
_held: dict[Path, int] = {}  # the heads that are held here, and by which process: a forked one does not hold them


def path_of(ledger: Path) -> Path:
    """Return the path of a ledger's head."""
    return ledger.with_name(ledger.name + "-head")


def read(ledger: Path) -> tuple[int, bytes] | None:
    """Return the number of steps and the hash of the last one; None if there is no head, as beside a closed ledger.

    Raises LedgerError if the head is damaged.
    """
    for _ in range(3):  # another process may be writing it
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


def is_held(ledger: Path) -> bool:
    """Return whether a process is writing the ledger now, this one or another; False if that cannot be found out."""
    try:
        file = os.open(path_of(ledger), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def writer_of(ledger: Path) -> str:
    """Return in words which process holds a ledger that is held, and what to do if it is this one."""
    if _held.get(path_of(ledger)) != os.getpid():
        return "another process"
    return "this process: close what writes it, or read it with Ledger.open(path, write=False)"


class Head:
    """The head of a ledger that this process writes. No other process can write the ledger until it is released."""

    def __init__(self, ledger: Path) -> None:
        """Create the file if needed and lock it; raise LedgerError if another process holds it."""
        self._path = path_of(ledger)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        if not self._lock():
            os.close(self._file)
            raise LedgerError(ledger, f"is being written by {writer_of(ledger)}")
        self._empty = os.fstat(self._file).st_size == 0
        if not self._path.exists() or os.fstat(self._file).st_ino != self._path.stat().st_ino:
            os.close(self._file)  # the other process removed it just now
            raise LedgerError(ledger, "was being closed by another process just now; try again")
        _held[self._path] = os.getpid()

    def _lock(self) -> bool:
        for left in reversed(range(_TRIES)):
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if left:
                    time.sleep(_PAUSE)
        return False

    def write(self, steps: int, head: bytes, *, sync: bool = False) -> None:
        """Note how far the ledger has come; ``sync`` waits until that is on disk."""
        self._empty = False
        body = _FORMAT.pack(_MAGIC, steps, head)
        os.pwrite(self._file, body + zlib.crc32(body).to_bytes(4, "little"), 0)
        if sync:
            os.fsync(self._file)
            sync_folder(self._path.parent)

    def unlock(self, *, remove: bool) -> None:
        """Give up the lock; ``remove`` also removes the file, as does a head that was never written."""
        if remove or self._empty:
            self._path.unlink(missing_ok=True)
        _held.pop(self._path, None)
        fcntl.flock(self._file, fcntl.LOCK_UN)  # forked processes may still have the file open
        os.close(self._file)


def sync_folder(folder: Path) -> None:
    """Wait until the names of files in a folder are on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
