"""What can go wrong with a ledger's file, in one line each."""

from __future__ import annotations

from pathlib import Path

from bayesdp.validation import InvalidInputError


class LedgerError(InvalidInputError):
    """A ledger that cannot be read, written or trusted; the message names the file and what is wrong with it."""

    def __init__(self, path: Path | str, what: str) -> None:
        """``what`` continues the sentence that begins with the ledger's name."""
        super().__init__(f"ledger={str(path)!r}: {what}.")
