"""How a command prints and writes its result, and shows its progress."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bayesdp.progress import LiveText


def show_result(
    values: dict[str, Any], words: str, as_json: bool, output: Path | None, *, words_to_file: bool = False
) -> None:
    """Print ``words``, or ``values`` as JSON; also write the JSON, or the words, to ``output``, if given."""
    text = json.dumps(values, indent=2, allow_nan=False)
    if output is not None:
        from bayesdp.whole_file import write_text

        with writing(output):
            write_text(output, (words if words_to_file else text) + "\n")
    print(text if as_json else words)


def caution(sentences: Iterable[str]) -> None:
    """Print each sentence as a caution on stderr: what was asked for is computed, and the exit code stays 0."""
    for sentence in sentences:
        print(f"bayesdp: caution: {sentence}", file=sys.stderr)


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


def progress(items: Sequence[Any], what: str | LiveText = "Accounting") -> Iterable[Any]:
    """Return the items inside a progress bar on stderr, or as they are for short work and where no terminal listens.

    ``what`` is the text beside the bar. The bar vanishes at the end; the last line of a live text stays.
    """
    if (what == "Accounting" and len(items) < 500) or not sys.stderr.isatty():
        return items
    return _with_bar(items, what)


def _with_bar(items: Sequence[Any], what: str | LiveText) -> Iterable[Any]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import Progress
    from rich.text import Text

    bar = Progress(console=Console(stderr=True))
    task = bar.add_task(what if isinstance(what, str) else "Training", total=len(items))
    live = None if isinstance(what, str) else what
    try:
        with Live(bar, console=bar.console, transient=True) as display:
            for item in items:
                yield item
                bar.update(task, advance=1)
                if live is not None:  # in a row of its own, which is not broken within words
                    rows = [Text(live.line(), no_wrap=True, overflow="ellipsis")]
                    rows += [Text(live.advice())] if live.advice() else []
                    display.update(Group(bar, *reversed(rows)))
    finally:
        if live is not None:
            print(live.line(last=True), file=sys.stderr, flush=True)
