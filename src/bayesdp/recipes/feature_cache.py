"""Features on disk: computed once for the same rows, read again in a second.

A file is named after what is in it, a hash over rows, extractor and version, and is put in place whole: a process that
is killed leaves no half of one, and two that compute the same write the same. It holds features of training rows, as
private as the rows themselves, and only its owner may read it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from bayesdp.whole_file import write_whole

VARIABLE = "BAYESDP_CACHE"


def folder() -> Path:
    """Where features are kept: BAYESDP_CACHE, or the user's cache folder."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bayesdp"


def cached(
    name: str,
    version: int,
    rows: NDArray[Any],
    compute: Callable[[], NDArray[np.float32]],
    length: int | None = None,
) -> NDArray[np.float32]:
    """What is computed from these rows, an array of their length; a file that cannot be used only costs time."""
    path = folder() / f"{name}-{version}-{_fingerprint(rows)}.npy"
    kept = _read(path, len(rows) if length is None else length)
    if kept is not None:
        return kept
    features = np.ascontiguousarray(compute())
    with contextlib.suppress(OSError):  # a full disk, a folder that is read only
        _write(path, features)
    return features


def _fingerprint(rows: NDArray[Any]) -> str:
    digest = hashlib.sha256(f"{rows.dtype.str} {rows.shape} ".encode())
    digest.update(np.ascontiguousarray(rows).data)
    return digest.hexdigest()[:32]


def _checksum(features: NDArray[np.float32]) -> bytes:
    return hashlib.sha256(features.data).digest()


def _read(path: Path, rows: int) -> NDArray[np.float32] | None:
    """None if there is no such file, or one that was damaged: behind the array stands its checksum."""
    try:
        with path.open("rb") as file:
            features = np.load(file, allow_pickle=False)
            checksum = file.read()
    except Exception:  # whatever NumPy says about a file that was damaged
        return None
    good = features.dtype == np.float32 and len(features) == rows and checksum == _checksum(features)
    return features if good else None


def _write(path: Path, features: NDArray[np.float32]) -> None:
    def write(file: IO[bytes]) -> None:
        np.save(file, features, allow_pickle=False)
        file.write(_checksum(features))

    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, write, private=True)
