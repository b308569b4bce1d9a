"""Reading recorded norms: one row per step, one column per record, from .npy, .csv or .parquet."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, cast

import numpy as np

from bayesdp import validation
from bayesdp.optional import needs
from bayesdp.validation import FloatArray, InvalidInputError, refuse


def read_norms(path: str | Path) -> FloatArray:
    """Norms [steps, records], checked: finite, at least 0, at least one step and one record."""
    path = Path(path)
    if not path.is_file():
        raise refuse("NORMS", str(path), "a file .npy, .csv or .parquet that exists")
    readers = {".npy": _read_npy, ".csv": _read_csv, ".parquet": _read_parquet}
    if path.suffix.lower() not in readers:
        raise refuse("NORMS", str(path), "a file .npy, .csv or .parquet")
    try:
        values = readers[path.suffix.lower()](path)
    except InvalidInputError:
        raise
    except (OSError, ValueError, EOFError, MemoryError, csv.Error) as error:
        detail = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidInputError(f"NORMS={str(path)!r}: cannot be read ({detail}).") from None
    return check_norms(values, name=path.name)


def read_groups(path: str | Path) -> list[str]:
    """The group of each record, one a line."""
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
    """``values`` as norms [steps, records]."""
    array = validation.as_floats(name, values)
    if array.ndim != 2 or array.size == 0:
        raise refuse(f"{name}.shape", array.shape, "[steps, records], at least one of each")
    return validation.non_negative_array(name, array)


def _read_npy(path: Path) -> Any:
    return np.load(path, allow_pickle=False)


def _read_csv(path: Path) -> Any:
    """Numbers, with or without a header line of names."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = [row for row in csv.reader(file) if row]
    if rows and (not any(map(_is_number, rows[0])) or rows[0] == [str(i) for i in range(len(rows[0]))]):
        rows = rows[1:]  # names, or the numbers 0, 1, 2, ... that data frames write in their place
    if not rows:
        raise refuse("NORMS", str(path), "at least one row of numbers")
    width = len(rows[0])
    for number, row in enumerate(rows, start=1):
        if len(row) != width:
            raise refuse(f"NORMS row {number}", len(row), f"{width} columns, as in the first row")
        for cell in row:
            if not _is_number(cell):
                raise refuse(f"NORMS row {number}", cell, "numbers")
    return [[float(cell) for cell in row] for row in rows]


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
