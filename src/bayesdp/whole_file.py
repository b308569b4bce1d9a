"""Files that are written whole or not at all: into a file beside their place, synced to the disk, then renamed."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from bayesdp.validation import refuse


def write_whole(path: Path, write: Callable[[IO[bytes]], Any], *, private: bool = False) -> None:
    """Call ``write`` with a new file, and put that file at ``path`` once it is complete and on disk.

    A process that is killed on the way leaves at ``path`` what was there before. With ``private`` only the owner may
    read the file. Raises OSError if the disk is full or the folder cannot be written; then nothing is left behind.
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
    """Make a folder and its parents, unless they exist, and return it.

    Raises InvalidInputError that quotes ``name=folder``, the argument in which the folder was given.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refuse(name, str(folder), f"a folder that can be made ({error.strerror})") from None
    return folder


def checked_place(name: str, path: str | Path) -> Path:
    """Return the path of a file that will be written when a long computation ends.

    Raises InvalidInputError that quotes ``name=path`` if a file could not be written there now: its folder does not
    exist or is not writable, or the path is that of a folder.
    """
    try:
        place = Path(path)
        writable = os.access(place.parent, os.W_OK | os.X_OK) and place.parent.is_dir() and not place.is_dir()
    except (TypeError, ValueError):
        raise refuse(name, path, "the path of a file") from None
    if not writable:
        raise refuse(name, str(path), "the path of a file in a folder that exists and can be written")
    return place


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes as ``write_whole`` does. Raises OSError if the file cannot be written."""
    write_whole(path, lambda file: file.write(content))


def write_text(path: Path, text: str) -> None:
    """Write text in UTF-8 as ``write_whole`` does. Raises OSError if the file cannot be written."""
    write_bytes(path, text.encode())
