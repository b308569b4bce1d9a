"""Features on disk: computed once for the same rows, read again in a second.

A file is named after what is in it: the extractor, its version and a fingerprint of the rows. It is put in place as a
whole: a process that is killed leaves no half of a file, and two that compute the same features write the same file. It
holds features of training rows, which are as private as the rows themselves, so only its owner may read it.

Features that take long are computed in parts, each a file of the same form in a folder beside the place of the whole
one: a process that is killed loses at most the part it was working on. The folder goes when the whole file is there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from bayesdp.progress import Progress, showing
from bayesdp.recipes.datasets import fingerprint
from bayesdp.whole_file import write_whole

VARIABLE = "BAYESDP_CACHE"
Features = NDArray[np.float32]
_KIND = np.dtype(np.float32)  # in which features are kept
_ROWS_OF_A_PART = 1024


def folder() -> Path:
    """Return the folder in which features are kept: BAYESDP_CACHE, or ``bayesdp`` in the user's cache folder."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bayesdp"


def cached(
    name: str,
    version: int,
    rows: NDArray[Any],
    compute: Callable[[], Features],
    length: int | None = None,
) -> Features:
    """Return ``compute()``, read from the cache if it was computed before from the same rows.

    ``name`` and ``version`` say what is computed; increase the version when ``compute`` changes. ``length`` is the
    length of the result, by default that of ``rows``. A file that is damaged, or cannot be written, only costs time.
    """
    path = _path(name, version, rows)
    kept = _read(path, len(rows) if length is None else length)
    if kept is not None:
        return kept
    features = np.ascontiguousarray(compute())
    _write(path, features)
    return features


def cached_in_parts(
    name: str,
    version: int,
    rows: NDArray[Any],
    compute: Callable[[NDArray[Any]], Features],
    rows_at_once: int,
    track: Progress = iter,
) -> Features:
    """Return the features [n, d] of rows [n, ...], as ``cached`` does, and keep those of every thousand rows.

    ``compute`` is called with ``rows_at_once`` rows at a time, always the same ones together, so features do not depend
    on interruptions. ``track`` shows the progress, in which rows whose features were kept count too.
    """
    path = _path(name, version, rows)
    kept = _read(path, len(rows))
    if kept is not None:
        return kept
    parts = path.with_suffix(".parts")
    size = rows_at_once * max(1, _ROWS_OF_A_PART // rows_at_once)
    whole = _Whole(len(rows))
    with showing(track, range(0, len(rows), rows_at_once)) as starts:
        for start in starts:
            first = start - start % size
            last, part = min(first + size, len(rows)), parts / f"{first}.npy"
            if start == first and (read := _read(part, last - first)) is not None:
                whole.put(first, read)
            if start < whole.filled:
                continue
            whole.put(start, compute(rows[start : start + rows_at_once]))
            if whole.filled == last:
                _write(part, whole.features[first:last])
    _write(path, whole.features)
    if path.exists():
        shutil.rmtree(parts, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            parts.rmdir()  # only if nothing could be kept in it
    return whole.features


class _Whole:
    """The features of all rows, filled from the first row on, without a second copy in memory."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.features: Features = np.empty((rows, 0), _KIND)
        self.filled = 0

    def put(self, start: int, features: Features) -> None:
        """Put the features of rows from ``start`` on in their place: all rows before it have theirs already."""
        if not self.filled:
            self.features = np.empty((self._rows, *features.shape[1:]), _KIND)
        self.features[start : start + len(features)] = features
        self.filled = start + len(features)


def _path(name: str, version: int, rows: NDArray[Any]) -> Path:
    kind = f"{rows.dtype.str} {rows.shape} "
    return folder() / f"{name}-{version}-{fingerprint([rows], about=kind)[:32]}.npy"


def _checksum(features: Features) -> bytes:
    return hashlib.sha256(features.data).digest()


def _read(path: Path, length: int) -> Features | None:
    """Return the array in a file; None without a file, or if the checksum behind the array is not that of the array."""
    try:
        with path.open("rb") as file:
            features = np.load(file, allow_pickle=False)
            checksum = file.read()
    except Exception:  # NumPy raises errors of many classes for a damaged file
        return None
    good = features.dtype == _KIND and len(features) == length and checksum == _checksum(features)
    return features if good else None


def _write(path: Path, features: Features) -> None:
    """Write an array and its checksum; a full disk, or a folder that is read only, leaves nothing behind."""

    def write(file: IO[bytes]) -> None:
        np.save(file, features, allow_pickle=False)
        file.write(_checksum(features))

    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, write, private=True)
