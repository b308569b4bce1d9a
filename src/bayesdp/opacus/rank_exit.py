"""The end of a rank: wait a moment until PyTorch has let go of the last messages.

Why a rank that has done everything could still abort
    A collective returns when its message has arrived. A thread of gloo lets go of the tensor only then, and needs
    Python's lock for it. If Python begins to shut down while that thread waits for the lock, the thread is unwound
    through C++ that does not allow it, and the process ends with "terminate called without an active exception"
    (https://github.com/pytorch/pytorch/issues/190489). torchrun then stops the other ranks, and what rank 0 has not
    yet printed or written is lost. ``destroy_process_group`` ends these threads only if nothing else keeps the group,
    and FSDP2 keeps it.

The last collective of a training run is a message of ``watch``, and a rank other than 0 has nothing to do after it. So
the end of the program, which comes with or without a ``with`` block, waits until no message is held any more. It
exchanges nothing: no rank waits for another, also if one has failed or died. Messages of collectives that failed are
not waited for: the error that is then on its way up keeps them.

What would break this: a version of PyTorch in which a tensor that C++ still holds is no longer seen by ``weakref``.
Nothing is then waited for.
"""

from __future__ import annotations

import atexit
import time
import weakref

import torch

_LONGEST = 5.0
"Seconds. The threads need far less than a millisecond once they run; the limit is for a tensor that is never freed."
_held: list[weakref.ref[torch.Tensor]] = []


def release_before_exit(*messages: torch.Tensor) -> None:
    """Note tensors of a collective that has succeeded; the caller must not keep them."""
    _held[:] = [*_still_held(), *map(weakref.ref, messages)]


@atexit.register
def wait_until_released(longest: float = _LONGEST) -> None:
    """Wait until nothing holds the noted tensors, for at most so many seconds."""
    end = time.monotonic() + longest
    while _still_held() and time.monotonic() < end:
        time.sleep(0.001)  # other threads get Python's lock meanwhile


def _still_held() -> list[weakref.ref[torch.Tensor]]:
    return [message for message in _held if message() is not None]
