"""Keys from which noise was drawn: none may be used twice.

JAX draws random numbers from a key and changes nothing: whoever calls ``privatizer.update`` twice with one state gets
the same noise twice, and the difference of the two releases is that of two gradients, without any noise. That happens
to a loop that forgets to keep the state that ``update`` returns, that calls ``init`` anew in each epoch, or that goes
on from a checkpoint while steps after it were released.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bayesdp.validation import refuse

_LONGEST = 8  # words of a key, in any of JAX's generators


def keys_of(state: Any) -> jax.Array | None:
    """Return the keys in the state of a privatizer as one array of whole numbers; None if there are none."""
    parts = [_words(leaf) for leaf in jax.tree.leaves(state)]
    found = [part for part in parts if part is not None]
    return jnp.concatenate(found) if found else None


def _words(leaf: Any) -> jax.Array | None:
    if not isinstance(leaf, jax.Array):
        return None
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(leaf).ravel()
    return leaf.ravel() if leaf.dtype == jnp.uint32 and leaf.size <= _LONGEST else None


class NoiseKeys:
    """The keys of a run: ``use`` refuses one that was used before."""

    def __init__(self) -> None:
        self._used: set[bytes] = set()
        self._last: Any = None
        "The key of the state that the last step returned."
        self._waiting: Any = None
        "A key that another device was still computing."

    @contextmanager
    def use(self, key: Any, following: Any) -> Generator[None]:
        """Record a step in this block: ``key`` is that of its noise, ``following`` that of the state that it returns.

        On the CPU a key that was used before raises InvalidInputError before the block, so that nothing is recorded. If
        the block raises, nothing was released, and the key stays unused. No step waits for another device: there a key
        is looked at with the next step.
        """
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._used.add(self._unused(waiting))
        late = key is not None and next(iter(key.devices())).platform != "cpu"
        fingerprint = None if key is None or late else self._unused(key)
        yield
        if fingerprint is not None:
            self._used.add(fingerprint)
        self._waiting, self._last = key if late else None, following

    def following(self) -> str | None:
        """Return a fingerprint of the key that the next step will use; None if it is not known."""
        return None if self._last is None else _fingerprint(self._last).hex()

    def used_before(self, fingerprint: str) -> None:
        """Refuse from now on the key with this fingerprint: a step after a checkpoint has used it."""
        self._used.add(bytes.fromhex(fingerprint))

    def _unused(self, key: Any) -> bytes:
        """Return the fingerprint of a key; raise InvalidInputError if it was used before."""
        fingerprint = _fingerprint(key)
        if fingerprint in self._used:
            expected = (
                "the state that the last privatizer.update returned, and after a restart a privatizer with a new "
                "prng_key: the same noise twice hides nothing"
            )
            raise refuse("noise_state", "one that was used before", expected)
        return fingerprint


def _fingerprint(key: Any) -> bytes:
    return hashlib.sha256(np.asarray(key).tobytes()).digest()[:16]
