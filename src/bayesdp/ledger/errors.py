"""What can go wrong with a ledger's file, in one line each."""

from __future__ import annotations

from pathlib import Path

from bayesdp.validation import InvalidInputError


def _line(path: Path | str, what: str) -> str:
    return f"ledger={str(path)!r}: {what}."


class LedgerError(InvalidInputError):
    """A ledger that cannot be read, continued or trusted; the message names the file and what is wrong with it."""

    def __init__(self, path: Path | str, what: str) -> None:
        """``what`` continues the sentence that begins with the ledger's name."""
        super().__init__(_line(path, what))


class StorageError(OSError):
    """A disk that is full, fails or does not permit writing; the message names the ledger.

    Raised by ``Ledger.step``, nothing was recorded: the result of that step must not be used. The ledger goes on when
    there is room again. ``filename`` is the ledger, ``errno`` what the system said, if it said anything.
    """

    def __init__(self, path: Path | str, what: str, errno: int | None = None) -> None:
        """``what`` continues the sentence that begins with the ledger's name."""
        self._message = _line(path, what)
        super().__init__(self._message)
        self.errno, self.filename = errno, str(path)

    def __str__(self) -> str:
        return self._message
