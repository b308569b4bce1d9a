"""Checkpoints: the arrays of a run and what they belong to, in one safetensors file that is replaced as a whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesdp.ledger import check_continues, position_of
from bayesdp.optional import needs
from bayesdp.run_ledger import Ledger
from bayesdp.validation import InvalidInputError, refuse
from bayesdp.whole_file import write_bytes

with needs("recipes", "bayesdp.recipes"):  # here and not where a file is written: that would be after the training
    from safetensors import SafetensorError, safe_open
    from safetensors.numpy import save

Arrays = dict[str, NDArray[Any]]
CHECKPOINT, WHITENING = "checkpoint.safetensors", "whitening.safetensors"
"""The files that a run keeps in its folder until it has ended."""


@dataclass(frozen=True)
class Checkpoint:
    """The file in which the state of a run is kept, and the settings that the state belongs to."""

    path: Path
    settings: Mapping[str, Any]

    def save(self, state: Arrays, ledger: Ledger) -> None:
        """Keep the state after the last step of the ledger.

        It is on disk when this returns. A process that is killed on the way leaves the checkpoint before it. Raises
        OSError if the file cannot be written.
        """
        write_arrays(self.path, state, {"settings": self._settings(), "position": position_of(ledger)})

    def load(self, ledger: Ledger) -> Arrays | None:
        """Return the state that was kept, or None if there is no file.

        The ledger may have steps beyond the checkpoint, from before a crash. They were released, so they are not
        repeated: the run ends with that many fewer updates. Raises InvalidInputError if the file is damaged, or belongs
        to other settings or another ledger.
        """
        if not self.path.exists():
            return None
        arrays, about = read_arrays(self.path)
        if about.get("settings") != self._settings():
            raise refuse("checkpoint", str(self.path), "the checkpoint of a run with the same settings")
        check_continues(ledger, about.get("position") or {})
        return arrays

    def _settings(self) -> Any:
        return json.loads(json.dumps(self.settings))  # as they come back from a file: tuples are lists


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any]) -> None:
    """Write a safetensors file whose metadata is ``about``, as JSON; it is on disk when this returns."""
    write_bytes(path, array_bytes(arrays, about))


def array_bytes(arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any]) -> bytes:
    """Return the content of a safetensors file whose metadata is ``about``, as JSON."""
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return save(contiguous, {"bayesdp": json.dumps(dict(about))})


def read_arrays(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """Return the arrays and the metadata that ``write_arrays`` wrote. Raises InvalidInputError for any other file."""
    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {})["bayesdp"])
            return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise InvalidInputError(f"file={str(path)!r}: expected a whole safetensors file ({error}).") from None
