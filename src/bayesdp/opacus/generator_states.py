"""States of PyTorch's generators, as digests by which two of them can be told apart."""

from __future__ import annotations

from hashlib import blake2b

import torch

REMEDIES = (
    "seed before the loop only; to resume, take another seed, and restore no state behind which steps were taken; "
    "or use both SecureNoise and SecureSampler"
)
_BYTES = 8


def state_digests(generator: torch.Generator | None, devices: set[torch.device]) -> tuple[int, ...]:
    """Return a digest of 64 bits of a generator's state, or of those of PyTorch's own for ``devices`` if it is None.

    None at all for a generator whose state cannot be read. It takes about ten millionths of a second.
    """
    try:
        states = [generator.get_state()] if generator is not None else [_default_state(device) for device in devices]
    except (AttributeError, RuntimeError):
        return ()
    return tuple(map(_digest, states))


def _default_state(device: torch.device) -> torch.Tensor:
    if device.type == "cpu":
        return torch.get_rng_state()
    module = getattr(torch, device.type)
    return module.get_rng_state() if device.type == "mps" else module.get_rng_state(device)


def _digest(state: torch.Tensor) -> int:
    return int.from_bytes(blake2b(state.cpu().numpy().tobytes(), digest_size=_BYTES).digest(), "big")
