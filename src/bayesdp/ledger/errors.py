"""What can go wrong with a ledger's file, in one line each."""

from __future__ import annotations

from pathlib import Path

from bayesdp.validation import InvalidInputError


def _line(path: Path | str, what: str) -> str:
    return f"ledger={str(path)!r}: {what}."


class LedgerError(InvalidInputError):
    """A ledger that cannot be read, continued or trusted.

    Raised for a file that is damaged, was changed, is no ledger or was written by a newer version, and for calls that
    the state of the ledger forbids: it is closed, open for reading only, or held by another process. The message is one
    line that names the file and what is wrong with it. Nothing was recorded, and no file was changed.
    """

    def __init__(self, path: Path | str, what: str) -> None:
        """``what`` completes the sentence that begins with the ledger's name; the full stop is added."""
        super().__init__(_line(path, what))
        self._given = (str(path), what)

    def __reduce__(self) -> tuple[type[LedgerError], tuple[str, str]]:
        return type(self), self._given  # so that it can be pickled, as processes that work together do


class StorageError(OSError):
    """A disk that is full, fails or does not permit writing.

    If ``Ledger.step`` raises it, the result of that step must not be used. The ledger stays usable: once there is room,
    the step can be taken again. ``filename`` is the ledger's path, ``errno`` the code of the system's error (None if
    there is none); the message is one line that names the ledger.
    """

    def __init__(self, path: Path | str, what: str, errno: int | None = None) -> None:
        """``what`` completes the sentence that begins with the ledger's name; the full stop is added."""
        self._given = (str(path), what, errno)
        super().__init__(str(self))
        self.errno, self.filename = errno, str(path)

    def __str__(self) -> str:
        return _line(self._given[0], self._given[1])

    def __reduce__(self) -> tuple[type[StorageError], tuple[str, str, int | None]]:
        return type(self), self._given
