"""Refuse a step whose batch was drawn as that of an earlier step: the sampler's generator was in the same state.

Poisson sampling hides a record because each batch is drawn anew. If every epoch draws the same batches, whoever was in
one of them is in all the copies: at q = 0.1 and sigma = 1, ten epochs with the same batches cost an epsilon of 32 where
7 is accounted. So the state of the generator is looked at before each draw, and a digest of it stays with the draw
until a step is released, then in memory and with the step in the ledger. Only what was released counts: a batch that
was looked at, left out or drawn for an evaluation may come again.

Draws are compared with draws alone. Noise and draws may come from two generators with the same seed, which is no
repetition of either. Not looked at: sampling at rate 1, which draws nothing by chance; loaders that only shuffle, for
which each record is accounted in every epoch; ``SecureSampler``, whose generator does not repeat, or says "seeded".

What it cannot see: draws of another run, with a ledger of its own, from the same seed (``bayesdp.compose`` refuses the
two ledgers); steps of ledgers that earlier versions wrote; a stretch of random numbers that is entered at another
place.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from bayesdp.opacus.generator_states import REMEDIES, state_digests
from bayesdp.opacus.secure import SecureSampler
from bayesdp.validation import refuse

_EXPECTED = f"a state that no batch was drawn from, as equal draws are no Poisson sampling: {REMEDIES}"


def states_before_draw(sampler: Any, rate: float | None) -> tuple[int, ...]:
    """Return the digest, of 63 bits, of the state from which a sampler of Opacus is about to draw with ``rate``.

    None if nothing is drawn by chance, or if the state cannot be known.
    """
    if rate is None or rate >= 1 or isinstance(sampler, SecureSampler):
        return ()
    states = state_digests(sampler.generator, {torch.get_default_device()})
    return tuple(state >> 1 for state in states)  # ranks send them as signed integers


class DrawRepeats:
    """The states from which the batches of released steps were drawn; ``used`` are those of earlier processes."""

    def __init__(self, used: Iterable[int]) -> None:
        self._used = set(used)
        self._checked: list[int] = []

    def check(self, states: Iterable[int]) -> None:
        """Check the states from which the batches of a step were drawn, on all ranks.

        Raises InvalidInputError if two of them are equal, or if a batch of an earlier step was drawn from one of them.
        """
        self._checked = list(states)
        if len(set(self._checked)) < len(self._checked) or not self._used.isdisjoint(self._checked):
            raise refuse("batch_sampler.generator", "in the state that it had at an earlier draw", _EXPECTED)

    def released(self) -> None:
        """Note that the step that was checked last is about to be released."""
        self._used.update(self._checked)
