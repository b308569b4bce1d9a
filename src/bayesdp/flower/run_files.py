"""The files of a run: the ledger, and the model as the last recorded round left it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from flwr.app import Array, ArrayRecord

from bayesdp.ledger import check_continues, position_of
from bayesdp.run_ledger import Ledger
from bayesdp.validation import InvalidInputError
from bayesdp.whole_file import write_whole

_POSITION = "bayesdp position"


def save_model(path: Path, arrays: ArrayRecord, ledger: Ledger) -> None:
    """Write the model and the position of the ledger to ``path``, whole or not at all.

    Call it when the ledger has the step that led to this model. Raises OSError if the file cannot be written.
    """
    values: dict[str, Any] = {name: array.numpy() for name, array in arrays.items()}
    values[_POSITION] = np.frombuffer(json.dumps(position_of(ledger)).encode(), dtype=np.uint8)

    def write(file: IO[bytes]) -> None:
        np.savez(file, **values)

    write_whole(path, write)


def load_model(path: Path, ledger: Ledger) -> ArrayRecord:
    """Return the model that ``save_model`` wrote.

    Raises InvalidInputError if the file is not such a model, LedgerError if the ledger is that of another run, or lacks
    steps that led to this model.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            values = {name: file[name] for name in file.files}
        position: Mapping[str, Any] = json.loads(values.pop(_POSITION).tobytes())
    except (OSError, ValueError, KeyError, EOFError):
        raise InvalidInputError(f"checkpoint={str(path)!r}: expected a model that PrivateFedAvg wrote.") from None
    check_continues(ledger, position)
    return ArrayRecord({name: Array(value) for name, value in values.items()})
