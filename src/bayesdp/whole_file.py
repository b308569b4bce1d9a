"""Files that are there whole or not at all: written beside their place, brought to the disk, then renamed."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from bayesdp.validation import refuse


def write_whole(path: Path, write: Callable[[IO[bytes]], Any], *, private: bool = False) -> None:
    """Let ``write`` write into a file, and put that into place; a process that is killed leaves what was there before.

    ``private``: only its owner may read it. Raises OSError, and then nothing is left behind.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def made_folder(name: str, folder: Path) -> Path:
    """The folder that the argument ``name`` asks for, made if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refuse(name, str(folder), f"a folder that can be made ({error.strerror})") from None
    return folder


def write_text(path: Path, text: str) -> None:
    """The same for text."""
    write_whole(path, lambda file: file.write(text.encode()))
