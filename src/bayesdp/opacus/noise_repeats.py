"""Refuse a step whose noise would be that of an earlier one, because its generator is back in the state of then.

Two releases with the same noise differ by gradients alone, which no epsilon covers. PyTorch's generators come back to a
state when they are seeded again (``torch.manual_seed`` at the top of an epoch, or of a script that resumes a run), when
a state is restored (a checkpoint behind which steps were released), or after ``torch.random.fork_rng``. So the state is
looked at just before noise is drawn, and a digest of it is kept: for all steps in memory, and in the ledger for its
steps, so that a run that is resumed knows the states of earlier processes. draw_repeats.py does the same for draws.

What it cannot see: noise of another run, with a ledger of its own, from the same seed (``bayesdp.compose`` refuses the
two ledgers); steps of ledgers that earlier versions wrote; a stretch of random numbers that is entered at another
place; for a shuffled loader, states of earlier processes except the first of each epoch, as only that one is a step of
the ledger. Noise that does not come from Opacus' own ``add_noise`` (``SecureNoise``, secure mode) is not looked at: a
cryptographic generator does not repeat.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bayesdp.opacus.generator_states import REMEDIES, state_digests
from bayesdp.validation import refuse

_EXPECTED = f"a state that no step has had, as two results with the same noise differ by gradients alone: {REMEDIES}"


class NoiseRepeats:
    """The states from which noise was drawn so far, as digests; ``used`` are those of earlier processes.

    ``draws``: whether this process draws noise at all.
    """

    def __init__(self, optimizer: Any, used: Iterable[int], *, draws: bool) -> None:
        self._optimizer, self._draws = optimizer, draws
        self._used = set(used)

    def states(self) -> tuple[int, ...]:
        """Return digests of the states from which noise would be drawn now; none if they cannot be known.

        Raises InvalidInputError if noise was drawn from one of them before.
        """
        if not self._draws or "add_noise" in vars(self._optimizer) or getattr(self._optimizer, "secure_mode", False):
            return ()
        devices = {parameter.device for parameter in self._optimizer.params}
        states = state_digests(self._optimizer.generator, devices)
        if not self._used.isdisjoint(states):
            raise refuse("noise_generator", "in the state that it had at an earlier step", _EXPECTED)
        return states

    def used(self, states: Iterable[int]) -> None:
        """Note that noise was drawn from these states."""
        self._used.update(states)
