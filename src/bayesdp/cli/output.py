"""What a command prints and writes, and how it shows that it goes on."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def show_result(values: dict[str, Any], words: str, as_json: bool, output: Path | None) -> None:
    """Words or JSON; the latter also into a file, if one is asked for."""
    text = json.dumps(values, indent=2, allow_nan=False)
    if output is not None:
        from bayesdp.whole_file import write_text

        with writing(output):
            write_text(output, text + "\n")
    print(text if as_json else words)


@contextmanager
def writing(path: Path) -> Generator[None]:
    """Turn what the system says about a file that is being written into one line; errors of ledgers stay theirs."""
    from bayesdp.ledger.errors import StorageError
    from bayesdp.validation import refuse

    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise refuse("output", str(path), f"a file that can be written ({error.strerror})") from None


def progress(items: Sequence[Any], what: str | Callable[[], str] = "Accounting") -> Iterable[Any]:
    """A progress bar on a terminal's stderr, for long work only; ``what`` may change as it goes on."""
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
