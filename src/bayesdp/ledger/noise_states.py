"""Where the noise of a step came from: digests of the states of its generators, kept behind the name of the program.

Two steps with the same noise are no Gaussian mechanism: what they release differs by gradients without noise. Whoever
draws noise from a generator that can be seeded or restored therefore keeps a digest of its state with each step, so
that a run which goes on in another process can tell that a state comes back. The digests stand in ``Step.source`` and
under the hash chain, like all of a step; ``Stretch.source`` has the program alone. A digest says nothing about the
noise, but whoever guesses a seed can check the guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_DIGITS = 16
_MARK = " noise="
_FORM = re.compile(f"(.*){_MARK}((?:[0-9a-f]{{{_DIGITS}}},?)+)", re.DOTALL)


def source_text(program: str, states: Iterable[int]) -> str:
    """Return the source of a step that ``program`` recorded; ``states`` are digests below 2^64, perhaps none."""
    digests = ",".join(f"{state:0{_DIGITS}x}" for state in states)
    return f"{program}{_MARK}{digests}" if digests else program


def program_of(source: str) -> str:
    """Return the program in the source of a step."""
    found = _FORM.fullmatch(source) if _MARK in source else None
    return source if found is None else found[1]


def states_of(source: str) -> list[int]:
    """Return the digests in the source of a step; none if it has none."""
    found = _FORM.fullmatch(source) if _MARK in source else None
    return [] if found is None else [int(digest, 16) for digest in found[2].split(",") if digest]
