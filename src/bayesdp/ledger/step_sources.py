"""Where the noise and the draws of a step came from: digests of generators' states, behind the name of the program.

Two steps with the same noise are no Gaussian mechanism: what they release differs by gradients without noise. Two steps
with the same draw are no Poisson samples: whoever was in the one is in the other. Whoever takes random numbers from a
generator that can be seeded or restored therefore keeps a digest of its state with each step, so that a run which goes
on in another process can tell that a state comes back; runs that are composed must not share a state either. The
digests stand in ``Step.source`` and under the hash chain, like all of a step; ``Stretch.source`` has the program alone.
A digest says nothing about noise or draws, but whoever guesses a seed can check the guess. A third digest is of the
rows that the audit records are of their data set, so that a run does not go on with others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_DIGITS = 16
_LIST = f"[0-9a-f]{{{_DIGITS}}}(?:,[0-9a-f]{{{_DIGITS}}})*"
_FORM = re.compile(f"(.*?)(?: audit=({_LIST}))?(?: noise=({_LIST}))?(?: draws=({_LIST}))?", re.DOTALL)


def source_text(program: str, noise: Iterable[int], draws: Iterable[int] = (), audit: Iterable[int] = ()) -> str:
    """Return the source of a step that ``program`` recorded.

    ``noise`` and ``draws`` are digests below 2^64 of the states that its noise and its draws came from, perhaps none,
    and ``audit`` that of the rows of the audit records.
    """
    return program + _part("audit", audit) + _part("noise", noise) + _part("draws", draws)


def program_of(source: str) -> str:
    """Return the program in the source of a step."""
    return _parts(source)[0]


def noise_states(source: str) -> list[int]:
    """Return the digests of the states of noise in the source of a step; none if it has none."""
    return _digests(_parts(source)[2])


def draw_states(source: str) -> list[int]:
    """Return the digests of the states of draws in the source of a step; none if it has none."""
    return _digests(_parts(source)[3])


def audit_rows(source: str) -> list[int]:
    """Return the digest of the rows of audit records in the source of a step; none if it has none."""
    return _digests(_parts(source)[1])


class SharedStates:
    """The states that steps of several runs came from, to see whether two runs have one in common."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, int], int] = {}

    def shared(self, run: int, source: str) -> tuple[str, int] | None:
        """Note the states of a step; return what it shares, "noise" or "draws", with another run, and its number."""
        states = [("noise", state) for state in noise_states(source)]
        states += [("draws", state) for state in draw_states(source)]
        for state in states:
            other = self._runs.setdefault(state, run)
            if other != run:
                return state[0], other
        return None


def _part(name: str, states: Iterable[int]) -> str:
    digests = ",".join(f"{state:0{_DIGITS}x}" for state in states)
    return f" {name}={digests}" if digests else ""


def _parts(source: str) -> tuple[str, str | None, str | None, str | None]:
    known = any(f" {name}=" in source for name in ("audit", "noise", "draws"))
    found = _FORM.fullmatch(source) if known else None
    return (source, None, None, None) if found is None else (found[1], found[2], found[3], found[4])


def _digests(text: str | None) -> list[int]:
    return [] if text is None else [int(digest, 16) for digest in text.split(",")]
