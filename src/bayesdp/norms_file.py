"""Reading recorded norms from .npy, .csv or .parquet: one line per step, one column per record."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, cast

import numpy as np

from bayesdp import validation
from bayesdp.optional import needs
from bayesdp.validation import FloatArray, InvalidInputError, refuse


def read_norms(path: str | Path) -> FloatArray:
    """Return the norms [steps, records] that a file .npy, .csv or .parquet holds.

    A .csv may start with a line of column names, or with the numbers 0, 1, 2, ... that data frames write in their
    place. Raises InvalidInputError, in one line that names the file, if it does not exist, cannot be read, or holds
    anything but a table of finite numbers of at least 0; MissingLibraryError if .parquet is read without pyarrow.
    """
    path = Path(path)
    if not path.is_file():
        raise refuse("NORMS", str(path), "an existing .npy, .csv or .parquet file")
    readers = {".npy": _read_npy, ".csv": _read_csv, ".parquet": _read_parquet}
    if path.suffix.lower() not in readers:
        raise refuse("NORMS", str(path), "a .npy, .csv or .parquet file")
    try:
        values = readers[path.suffix.lower()](path)
    except InvalidInputError:
        raise
    except (OSError, ValueError, EOFError, MemoryError, csv.Error) as error:
        detail = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidInputError(f"NORMS={str(path)!r}: cannot be read ({detail}).") from None
    return check_norms(values, name=path.name)


def read_groups(path: str | Path) -> list[str]:
    """Return the group of each record from a text file with one name per line; empty lines are skipped.

    Raises InvalidInputError if the file cannot be read or names no group.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        detail = str(error).splitlines()[0]
        raise InvalidInputError(f"groups={str(path)!r}: cannot be read ({detail}).") from None
    groups = [line.strip() for line in lines if line.strip()]
    if not groups:
        raise refuse("groups", str(path), "the group of each record, one a line")
    return groups


def check_norms(values: Any, *, name: str = "norms") -> FloatArray:
    """Return ``values`` as float64 norms [steps, records]; ``name`` is what messages call them.

    Raises InvalidInputError unless they are finite, at least 0, and of at least one step and one record.
    """
    array = validation.as_floats(name, values)
    if array.ndim != 2 or array.size == 0:
        raise refuse(f"{name}.shape", array.shape, "[steps, records], at least one of each")
    return validation.non_negative_array(name, array)


def _read_npy(path: Path) -> Any:
    return np.load(path, allow_pickle=False)


def _read_csv(path: Path) -> Any:
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = [line for line in csv.reader(file) if line]
    if lines and (not any(map(_is_number, lines[0])) or lines[0] == [str(i) for i in range(len(lines[0]))]):
        lines = lines[1:]  # names, or the numbers 0, 1, 2, ... that data frames write in their place
    if not lines:
        raise refuse("NORMS", str(path), "at least one row of numbers")
    width = len(lines[0])
    for number, line in enumerate(lines, start=1):
        if len(line) != width:
            raise refuse(f"NORMS row {number}", len(line), f"{width} columns, as in the first row")
        for cell in line:
            if not _is_number(cell):
                raise refuse(f"NORMS row {number}", cell, "numbers")
    return [[float(cell) for cell in line] for line in lines]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _read_parquet(path: Path) -> Any:
    with needs("arrow", "reading .parquet"):
        from pyarrow import parquet
    table: Any = cast(Any, parquet).read_table(path)
    return np.column_stack([table.column(i).to_numpy() for i in range(table.num_columns)])
