"""Checkpoints: arrays and what they belong to, in one safetensors file that is replaced whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesdp.ledger.position import check_continues, position
from bayesdp.run_ledger import Ledger
from bayesdp.validation import InvalidInputError, refuse
from bayesdp.whole_file import write_whole

Arrays = dict[str, NDArray[Any]]
CHECKPOINT, WHITENING = "checkpoint.safetensors", "whitening.safetensors"
"""What a run keeps in its folder until it has ended."""


@dataclass(frozen=True)
class Checkpoint:
    """Where the state of a run is kept, and the settings to which it belongs."""

    path: Path
    settings: Mapping[str, Any]

    def save(self, state: Arrays, ledger: Ledger) -> None:
        """Keep the state after the last step of the ledger; a process that is killed leaves the one before."""
        write_arrays(self.path, state, {"settings": self._settings(), "position": position(ledger)})

    def load(self, ledger: Ledger) -> Arrays | None:
        """The state that was kept, None if there is none; refused if it is of other settings or another ledger.

        The ledger may have steps beyond it, from before a crash. They were released, so they are not repeated: a run
        goes on with as many steps less.
        """
        if not self.path.exists():
            return None
        arrays, about = read_arrays(self.path)
        if about.get("settings") != self._settings():
            raise refuse("checkpoint", str(self.path), "the checkpoint of a run with the same settings")
        check_continues(ledger, about.get("position") or {})
        return arrays

    def _settings(self) -> Any:
        return json.loads(json.dumps(self.settings))


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any]) -> None:
    """A safetensors file with ``about`` as its metadata; on disk when this returns."""
    from safetensors.numpy import save

    content = save(
        {name: np.ascontiguousarray(one) for name, one in arrays.items()}, {"bayesdp": json.dumps(dict(about))}
    )
    write_whole(path, lambda file: file.write(content))


def read_arrays(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """What ``write_arrays`` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {})["bayesdp"])
            return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise InvalidInputError(f"file={str(path)!r}: expected a whole safetensors file ({error}).") from None
