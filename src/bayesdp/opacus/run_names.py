"""Names of new ledgers: a script that is run again needs another name, which may be a number."""

from __future__ import annotations

import re
from pathlib import Path

from bayesdp.ledger import LedgerError
from bayesdp.run_ledger import Ledger

NUMBER = "{n}"


def new_ledger_path(given: str | Path) -> Path:
    """Return the path of a new ledger: as given, or with ``{n}`` in its name replaced by the next number.

    The number is one more than the largest in a name of this form in the folder, whatever was left of such a ledger, so
    that no name is used twice. Raises LedgerError if the path is taken; the message says how to go on.
    """
    path = Path(given)
    if NUMBER not in path.name:
        if path.exists():
            numbered = f"{path.stem}-{NUMBER}{path.suffix}"
            raise LedgerError(
                path,
                "exists already; give a new run another name, let watch number its runs "
                f"(ledger={str(path.with_name(numbered))!r}), or continue this one with Ledger.open",
            )
        return path
    return _numbered(path, max(_numbers(path), default=0) + 1)


def path_of_run(given: str | Path, run: str) -> Path:
    """Return the path of the ledger of a run that goes on: as given, or that of the numbered one whose run it is.

    Raises LedgerError if there is none.
    """
    path = Path(given)
    if NUMBER in path.name:
        for number in sorted(set(_numbers(path)), reverse=True):
            numbered = _numbered(path, number)
            if numbered.exists() and _run_of(numbered) == run:
                return numbered
    elif path.exists():
        return path
    raise LedgerError(path, f"does not exist; expected the ledger of run {run}, to which the checkpoint belongs")


def _run_of(path: Path) -> str | None:
    try:
        with Ledger.open(path, write=False) as ledger:
            return ledger.run
    except LedgerError:
        return None


def _numbers(path: Path) -> list[int]:
    """Return the numbers in names of this form in the folder, whatever such a file is."""
    before, after = map(re.escape, path.name.split(NUMBER, 1))
    names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    return [int(found[1]) for name in names if (found := re.match(rf"{before}(\d+){after}", name))]


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(path.name.replace(NUMBER, str(number), 1))
