"""How a command prints and writes its result, and shows its progress."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def show_result(values: dict[str, Any], words: str, as_json: bool, output: Path | None) -> None:
    """Print ``words``, or ``values`` as JSON; write the JSON to ``output`` as well, if given."""
    text = json.dumps(values, indent=2, allow_nan=False)
    if output is not None:
        from bayesdp.whole_file import write_text

        with writing(output):
            write_text(output, text + "\n")
    print(text if as_json else words)


@contextmanager
def writing(path: Path) -> Generator[None]:
    """Turn an OSError about the file being written into one line; errors about a ledger stay as they are."""
    from bayesdp.ledger import StorageError
    from bayesdp.validation import refuse

    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise refuse("output", str(path), f"a file that can be written ({error.strerror})") from None


def progress(items: Sequence[Any], what: str | Callable[[], str] = "Accounting") -> Iterable[Any]:
    """Return the items inside a progress bar on stderr, or as they are for short work and where no terminal listens.

    ``what`` is the text beside the bar, or a function that returns the current text.
    """
    if (what == "Accounting" and len(items) < 500) or not sys.stderr.isatty():
        return items
    return _with_bar(items, what)


def _with_bar(items: Sequence[Any], what: str | Callable[[], str]) -> Iterable[Any]:
    from rich.console import Console
    from rich.progress import Progress

    def text() -> str:
        return what if isinstance(what, str) else what()

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text(), total=len(items))
        for item in items:
            yield item
            bar.update(task, advance=1, description=text())
