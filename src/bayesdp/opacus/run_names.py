"""Names of new ledgers: a script that is run again needs another name, which may be a number."""

from __future__ import annotations

import re
from pathlib import Path

from bayesdp.ledger import LedgerError

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
    before, after = map(re.escape, path.name.split(NUMBER, 1))
    names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    numbers = [int(found[1]) for name in names if (found := re.match(rf"{before}(\d+){after}", name))]
    return path.with_name(path.name.replace(NUMBER, str(max(numbers, default=0) + 1), 1))
