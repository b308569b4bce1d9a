"""Refuse a step whose noise would be that of an earlier one, because its generator is back in the state of then.

Two releases with the same noise differ by gradients alone, which no epsilon covers. PyTorch's generators come back to a
state when they are seeded again (``torch.manual_seed`` at the top of an epoch, or of a script that resumes a run), when
a state is restored (a checkpoint behind which steps were released), or after ``torch.random.fork_rng``. So the state is
looked at just before noise is drawn, and a digest of it is kept: for all steps in memory, and in the ledger for its
steps, so that a run that is resumed knows the states of earlier processes. It takes a few millionths of a second.

What it cannot see: noise of another run, with a ledger of its own, from the same seed; steps of ledgers that earlier
versions wrote; a stretch of random numbers that is entered at another place; for a shuffled loader, states of earlier
processes except the first of each epoch, as only that one is a step of the ledger. Noise that does not come from
Opacus' own ``add_noise`` (``SecureNoise``, secure mode) is not looked at: a cryptographic generator does not repeat.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import torch

from bayesdp.ledger import states_of
from bayesdp.run_ledger import Ledger
from bayesdp.validation import refuse

_BYTES = 8
_EXPECTED = (
    "a state that no step has had, as noise would repeat itself and two results differ by gradients without noise: do "
    "not call torch.manual_seed inside the loop; to resume, seed with another number and do not restore the generator "
    "from a checkpoint (torch.set_rng_state) behind which steps were taken; or draw noise by SecureNoise"
)


class NoiseRepeats:
    """The states from which noise was drawn so far, as digests of 64 bits.

    ``ledger`` is read for the states of its steps. ``draws``: whether this process draws noise at all.
    """

    def __init__(self, optimizer: Any, ledger: Any, *, draws: bool) -> None:
        self._optimizer, self._draws = optimizer, draws
        self._used: set[int] = set()
        if draws and isinstance(ledger, Ledger) and ledger.steps:
            for stored in ledger.stored_steps():
                self._used.update(states_of(stored.step.source))

    def states(self) -> tuple[int, ...]:
        """Return digests of the states from which noise would be drawn now; none if they cannot be known.

        Raises InvalidInputError if noise was drawn from one of them before.
        """
        if not self._draws or "add_noise" in vars(self._optimizer) or getattr(self._optimizer, "secure_mode", False):
            return ()
        states = tuple(map(_digest, _states(self._optimizer)))
        if not self._used.isdisjoint(states):
            raise refuse("noise_generator", "in the state that it had at an earlier step", _EXPECTED)
        return states

    def used(self, states: Iterable[int]) -> None:
        """Note that noise was drawn from these states."""
        self._used.update(states)


def _states(optimizer: Any) -> list[torch.Tensor]:
    """Return the states of the generators that ``add_noise`` of Opacus draws from: its own, or PyTorch's by device."""
    generator = optimizer.generator
    try:
        if generator is not None:
            return [generator.get_state()]
        devices = dict.fromkeys(parameter.device for parameter in optimizer.params)
        return [_default_state(device) for device in devices]
    except (AttributeError, RuntimeError):  # a generator without a state that can be read
        return []


def _default_state(device: torch.device) -> torch.Tensor:
    if device.type == "cpu":
        return torch.get_rng_state()
    module = getattr(torch, device.type)
    return module.get_rng_state() if device.type == "mps" else module.get_rng_state(device)


def _digest(state: torch.Tensor) -> int:
    return int.from_bytes(blake2b(state.cpu().numpy().tobytes(), digest_size=_BYTES).digest(), "big")
