"""Features on disk: computed once for the same rows, read again in a second.

A file is named after what is in it: the extractor, its version and a fingerprint of the rows. It is put in place as a
whole: a process that is killed leaves no half of a file, and two that compute the same features write the same file. It
holds features of training rows, which are as private as the rows themselves, so only its owner may read it.
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

from bayesdp.recipes.datasets import fingerprint
from bayesdp.whole_file import write_whole

VARIABLE = "BAYESDP_CACHE"


def folder() -> Path:
    """Return the folder in which features are kept: BAYESDP_CACHE, or ``bayesdp`` in the user's cache folder."""
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
    """Return ``compute()``, read from the cache if it was computed before from the same rows.

    ``name`` and ``version`` say what is computed; increase the version when ``compute`` changes. ``length`` is the
    length of the result, by default that of ``rows``. A file that is damaged, or cannot be written, only costs time.
    """
    kind = f"{rows.dtype.str} {rows.shape} "
    path = folder() / f"{name}-{version}-{fingerprint([rows], about=kind)[:32]}.npy"
    kept = _read(path, len(rows) if length is None else length)
    if kept is not None:
        return kept
    features = np.ascontiguousarray(compute())
    with contextlib.suppress(OSError):  # a full disk, a folder that is read only
        _write(path, features)
    return features


def _checksum(features: NDArray[np.float32]) -> bytes:
    return hashlib.sha256(features.data).digest()


def _read(path: Path, length: int) -> NDArray[np.float32] | None:
    """Return the array in a file; None without a file, or if the checksum behind the array is not that of the array."""
    try:
        with path.open("rb") as file:
            features = np.load(file, allow_pickle=False)
            checksum = file.read()
    except Exception:  # NumPy raises errors of many classes for a damaged file
        return None
    good = features.dtype == np.float32 and len(features) == length and checksum == _checksum(features)
    return features if good else None


def _write(path: Path, features: NDArray[np.float32]) -> None:
    def write(file: IO[bytes]) -> None:
        np.save(file, features, allow_pickle=False)
        file.write(_checksum(features))

    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, write, private=True)
