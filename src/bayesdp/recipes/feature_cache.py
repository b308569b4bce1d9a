"""Features on disk: computed once for the same rows, read again in a second.

A file is named after what is in it: the extractor, its version and a fingerprint of the rows. It is put in place as a
whole: a process that is killed leaves no half of a file, and two that compute the same features write the same file. It
holds features of training rows, which are as private as the rows themselves, so only its owner may read it. Its name
confirms a guess of all rows, so only the owner may list the folders that are made here.

Features that take long are computed in parts, each a file of the same form in a folder beside the place of the whole
one: a process that is killed loses at most the part it was working on. The folder goes when the whole file is there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bayesdp.progress import Progress, ended, showing
from bayesdp.recipes.datasets import fingerprint
from bayesdp.whole_file import write_whole

VARIABLE = "BAYESDP_CACHE"
Features = NDArray[np.float32]
Calls = Callable[[Callable[[NDArray[Any]], Features], Iterable[NDArray[Any]]], Iterable[Features]]
_KIND = np.dtype(np.float32)  # in which features are kept, unless they are kept in less
_ROWS_OF_A_PART = 1024


def folder() -> Path:
    """Return the folder in which features are kept: BAYESDP_CACHE, or ``bayesdp`` in the user's cache folder."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bayesdp"


def cached_in_parts(
    name: str,
    version: int,
    several: Sequence[NDArray[Any]],
    compute: Callable[[NDArray[Any]], Features],
    rows_at_once: int,
    kind: DTypeLike = np.float32,
    track: Progress = iter,
    calls_of: Calls = map,
) -> list[Features]:
    """Return the features [n, d] of each array of rows [n, ...], read from the cache if they were computed before.

    ``name`` and ``version`` say what is computed; increase the version when ``compute`` changes. Features of every
    thousand rows are kept as they are computed. A file that is damaged, or cannot be written, only costs time.
    ``compute`` is called with ``rows_at_once`` rows at a time, always the same ones together, so features do not depend
    on interruptions. Features are rounded to ``kind``, in which they are kept. ``track`` shows the progress of what is
    left to compute in all arrays together: what was kept is not in it, so the time that it predicts is right.
    ``calls_of`` makes the calls and yields what they return, in order, as ``map`` does; it may make several at once.
    """
    arrays = [_Parts(_path(name, version, rows), rows, rows_at_once, np.dtype(kind)) for rows in several]
    missing = [(parts, start) for parts in arrays for start in parts.missing]
    if missing:
        some = (parts.rows[start : start + rows_at_once] for parts, start in missing)
        with showing(track, missing) as calls, ended(calls_of(compute, some)) as computed:
            for (parts, start), features in zip(calls, computed, strict=True):
                parts.put(start, features)
    return [parts.features.astype(_KIND, copy=False) for parts in arrays]


class _Parts:
    """The features of one array of rows: read from the cache as far as they are there, then filled and kept."""

    def __init__(self, path: Path, rows: NDArray[Any], rows_at_once: int, kind: np.dtype[Any]) -> None:
        self.rows, self._path, self._kind, self._at_once = rows, path, kind, rows_at_once
        self._folder = path.with_suffix(".parts")
        self._size = rows_at_once * max(1, _ROWS_OF_A_PART // rows_at_once)
        self.features: NDArray[Any] = np.empty((len(rows), 0), kind)
        self.missing: list[int] = []
        "The first of each ``rows_at_once`` rows whose features are not there yet."
        whole = _read(path, len(rows), kind)
        if whole is not None:
            self.features = whole
            shutil.rmtree(self._folder, ignore_errors=True)  # of a process that was killed while another one finished
            return
        for first in range(0, len(rows), self._size):
            last = min(first + self._size, len(rows))
            part = _read(self._folder / f"{first}.npy", last - first, kind)
            if part is None:
                self.missing.extend(range(first, last, rows_at_once))
            else:
                self._fill(first, part)

    def put(self, start: int, features: Features) -> None:
        """Keep the features of rows from ``start`` on; a part, and the whole, is written with its last rows."""
        self._fill(start, features)
        self.missing.remove(start)
        first = start - start % self._size
        last = min(first + self._size, len(self.rows))
        if start + self._at_once >= last:
            _write(self._folder / f"{first}.npy", self.features[first:last])
        if not self.missing:
            self._finish()

    def _fill(self, start: int, features: NDArray[Any]) -> None:
        if not self.features.shape[1]:
            self.features = np.empty((len(self.rows), *features.shape[1:]), self._kind)
        self.features[start : start + len(features)] = features

    def _finish(self) -> None:
        _write(self._path, self.features)
        if self._path.exists():
            shutil.rmtree(self._folder, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                self._folder.rmdir()  # only if nothing could be kept in it


def _path(name: str, version: int, rows: NDArray[Any]) -> Path:
    kind = f"{rows.dtype.str} {rows.shape} "
    return folder() / f"{name}-{version}-{fingerprint([rows], about=kind)[:32]}.npy"


def _checksum(features: NDArray[Any]) -> bytes:
    return hashlib.sha256(features.data).digest()


def _read(path: Path, length: int, kind: np.dtype[Any] = _KIND) -> NDArray[Any] | None:
    """Return the array in a file; None without a file, or if the checksum behind the array is not that of the array."""
    try:
        with path.open("rb") as file:
            features = np.load(file, allow_pickle=False)
            checksum = file.read()
    except Exception:  # NumPy raises errors of many classes for a damaged file
        return None
    good = features.dtype == kind and len(features) == length and checksum == _checksum(features)
    return features if good else None


def _write(path: Path, features: NDArray[Any]) -> None:
    """Write an array and its checksum; a full disk, or a folder that is read only, leaves nothing behind."""

    def write(file: IO[bytes]) -> None:
        np.save(file, features, allow_pickle=False)
        file.write(_checksum(features))

    with contextlib.suppress(OSError):
        folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_whole(path, write, private=True)
