"""Where a step came from: the program that recorded it, and digests of what must not come again, or must stay.

Two steps with the same noise are no Gaussian mechanism: what they release differs by gradients without noise. Two steps
with the same draw are no Poisson samples: whoever was in the one is in the other. Whoever takes random numbers from a
generator that can be seeded or restored therefore keeps a digest of its state with each step, so that a run which goes
on in another process can tell that a state comes back; runs that are composed must not share a state either. A digest
says nothing about noise or draws, but whoever guesses a seed can check the guess. A further digest is of the rows that
the audit records are of their data set, so that a run does not go on with others; and there is the number of processes
that trained together.

All of it stands in ``Step.source``, as text, and under the hash chain; ``Stretch.source`` has the program alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

OPACUS, JAX_PRIVACY, FLOWER = "opacus", "jax_privacy", "flower"
"""The names of the programs that record steps for a library."""
_DIGITS = 16
_LIST = f"[0-9a-f]{{{_DIGITS}}}(?:,[0-9a-f]{{{_DIGITS}}})*"
_FORM = re.compile(
    f"(.*?)(?: ranks=([1-9][0-9]*))?(?: audit=({_LIST}))?(?: noise=({_LIST}))?(?: draws=({_LIST}))?", re.DOTALL
)
_NAMES = (" ranks=", " audit=", " noise=", " draws=")


@dataclass(frozen=True)
class StepSource:
    """Where a step came from. Digests are below 2^64."""

    program: str
    noise: tuple[int, ...] = ()
    "Digests of the states that its noise came from, as far as they are known."
    draws: tuple[int, ...] = ()
    "Digests of the states that its batch was drawn from, as far as they are known."
    audit: tuple[int, ...] = ()
    "A digest of the rows of the audit records, if that is known."
    ranks: int = 1
    "How many processes trained together."

    def text(self) -> str:
        """Return what stands in ``Step.source``."""
        ranks = f" ranks={self.ranks}" if self.ranks > 1 else ""
        return (
            self.program + ranks + _part("audit", self.audit) + _part("noise", self.noise) + _part("draws", self.draws)
        )

    @staticmethod
    def read(text: str) -> StepSource:
        """Return what a text says; of a text in another form, it is all the name of a program."""
        found = _found(text)
        if found is None:
            return StepSource(text)
        program, ranks, audit, noise, draws = found.groups()
        return StepSource(program, _digests(noise), _digests(draws), _digests(audit), int(ranks or 1))


def program_of(text: str) -> str:
    """Return the program that a text names, as ``StepSource.read`` does, without reading the digests."""
    found = _found(text)
    return text if found is None else found[1]


class SharedStates:
    """The states that steps of several runs came from, to see whether two runs have one in common."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, int], int] = {}

    def shared(self, run: int, source: str) -> tuple[str, int] | None:
        """Note the states of a step; return what it shares, "noise" or "draws", with another run, and its number."""
        read = StepSource.read(source)
        states = [("noise", state) for state in read.noise]
        states += [("draws", state) for state in read.draws]
        for state in states:
            other = self._runs.setdefault(state, run)
            if other != run:
                return state[0], other
        return None


def _found(text: str) -> re.Match[str] | None:
    return _FORM.fullmatch(text) if any(name in text for name in _NAMES) else None


def _part(name: str, digests: Iterable[int]) -> str:
    listed = ",".join(f"{digest:0{_DIGITS}x}" for digest in digests)
    return f" {name}={listed}" if listed else ""


def _digests(text: str | None) -> tuple[int, ...]:
    return () if text is None else tuple(int(digest, 16) for digest in text.split(","))
