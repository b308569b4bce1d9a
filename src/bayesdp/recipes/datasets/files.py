"""Reading the files of a data folder in the form in which their publishers give them."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesdp.recipes.datasets.dataset import Rows
from bayesdp.validation import InvalidInputError, refuse

_IDX = [f"{part}-{what}-ubyte.gz" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")]
FILES = {
    "mnist": _IDX,
    "fashion-mnist": _IDX,
    "cifar10": ["cifar10.npz"],
    "abalone": ["abalone.data"],
    "adult": ["adult.data", "adult.test"],
    "sst2": ["train.tsv.gz", "dev.tsv.gz"],
}
"""The files of each data set. ``cifar10.npz`` has x_train, y_train, x_test and y_test, with images [n, 32, 32, 3]."""
LONGEST_TEXT = 512
"""The number of characters of a text that are read: more than any row of SST-2 has, and the same for every file."""


def folder_of(name: str, data: Path, *, otherwise: str) -> Path:
    """Return the folder of one data set inside ``data``.

    Raises InvalidInputError that names all missing files, and ``otherwise``: where else the data may come from.
    """
    folder = data / name
    if missing := [file for file in FILES[name] if not (folder / file).is_file()]:
        files = " and ".join(f"{name}/{file}" for file in missing)
        raise InvalidInputError(f"data={str(data)!r}: expected {files} in it{otherwise}.")
    return folder


def idx_images(folder: Path) -> tuple[Rows, Rows]:
    """Return images [n, 28, 28] of bytes: MNIST, and what is published in its form."""
    train, test = [
        Rows(
            _idx(folder / f"{part}-images-idx3-ubyte.gz", (28, 28)),
            _idx(folder / f"{part}-labels-idx1-ubyte.gz").astype(np.int64),
        )
        for part in ("train", "t10k")
    ]
    return train, test


def _idx(path: Path, form: tuple[int, ...] = ()) -> NDArray[np.uint8]:
    """Read an idx file of bytes [n, *form]: 0, 0, 8 (for bytes), the axes, four bytes for each length, the values."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(path, error) from None
    axes = 1 + len(form)
    header = 4 + 4 * axes
    if content[:4] != bytes([0, 0, 8, axes]):
        raise refuse("file", str(path), f"an idx file of bytes with {axes} axes")
    shape = tuple(int.from_bytes(content[start : start + 4], "big") for start in range(4, header, 4))
    if len(content) != header + int(np.prod(shape)):
        raise refuse("file", str(path), f"{int(np.prod(shape))} values, it has {len(content) - header}")
    if shape[1:] != form:
        raise refuse("file", str(path), f"rows of the form {form}, these have {shape[1:]}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def cifar10(folder: Path) -> tuple[Rows, Rows]:
    """Return images [n, 32, 32, 3] of bytes."""
    path = folder / "cifar10.npz"
    try:
        with np.load(path, allow_pickle=False) as arrays:
            train, test = [
                Rows(np.asarray(arrays[f"x_{part}"]), np.asarray(arrays[f"y_{part}"]).ravel())
                for part in ("train", "test")
            ]
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise _damaged(path, error) from None
    for rows in (train, test):
        if rows.x.shape[1:] != (32, 32, 3) or rows.x.dtype != np.uint8:
            raise refuse("file", str(path), "images [n, 32, 32, 3] of bytes")
        if rows.y.dtype.kind not in "iu":
            raise refuse("file", str(path), f"classes that are whole numbers, these are {rows.y.dtype}")
    return Rows(train.x, train.y.astype(np.int64)), Rows(test.x, test.y.astype(np.int64))


def abalone(folder: Path) -> list[list[str]]:
    """Return lines of nine values, as text."""
    return _lines(folder / "abalone.data", 9)


def adult(folder: Path) -> tuple[list[list[str]], list[list[str]]]:
    """Return lines of fifteen values, as text: those for training and those of the test set."""
    return _lines(folder / "adult.data", 15), _lines(folder / "adult.test", 15)


def sst2(folder: Path) -> tuple[Rows, Rows]:
    """Return texts [n] and their classes, 1 for praise: the training file, and the development set of GLUE."""
    return _labelled_texts(folder / "train.tsv.gz"), _labelled_texts(folder / "dev.tsv.gz")


def _labelled_texts(path: Path) -> Rows:
    """Read two columns, divided by a tab, of which the header calls one ``label``; the other is the text."""
    try:
        lines = gzip.decompress(path.read_bytes()).decode().split("\n")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise _damaged(path, error) from None
    header, *rows = [line.rstrip("\r").split("\t") for line in lines if line.strip()] or [[]]
    if len(header) != 2 or "label" not in header:
        raise refuse("file", str(path), "a header of two names, one of them label, divided by a tab")
    label = header.index("label")
    for number, row in enumerate(rows, start=1):
        if len(row) != 2 or row[label] not in ("0", "1"):
            raise refuse("file", str(path), f"a text and a label, 0 or 1, in each row; row {number} is not such a row")
    texts = np.array([row[1 - label] for row in rows], dtype=f"<U{LONGEST_TEXT}")
    return Rows(texts, np.array([int(row[label]) for row in rows], np.int64))


def _lines(path: Path, values: int) -> list[list[str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(path, error) from None
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("|")]
    rows = [[value.strip() for value in line.split(",")] for line in lines]
    for number, row in enumerate(rows, start=1):
        if len(row) != values:
            raise refuse("file", str(path), f"{values} values in each row, row {number} has {len(row)}")
    if not rows:
        raise refuse("file", str(path), "at least one row")
    return rows


def _damaged(path: Path, error: Any) -> InvalidInputError:
    return refuse("file", str(path), f"a file that can be read ({type(error).__name__}: {error})")
