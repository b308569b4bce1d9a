"""The processes that train one model together: what they tell each other, and how all of them learn that one failed.

Rank 0 alone has the ledger. Every decision about it (may this step be taken, is it on disk) is rank 0's, and reaches
the others in a message before they act on it. Messages are tensors of fixed form on the device of the model, so that
NCCL carries them as well as gloo; nothing is pickled.

Why failures are part of the protocol
    A rank that raises and leaves its loop makes the others wait for it in the next collective, until the time limit of
    the process group. So a rank that fails while others count on its message sends a message that says so, and then
    raises what it had to say; the others raise RanksError. A rank that was killed, or hangs, cannot say anything: the
    process group then reports a lost connection or the end of its time limit, which becomes RanksError too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import torch
from opacus.optimizers import (
    DistributedDPOptimizer,
    DistributedDPOptimizerFastGradientClipping,
    FSDPOptimizerFastGradientClipping,
    SimpleDistributedPerLayerOptimizer,
)
from torch import distributed

from bayesdp.opacus.rank_exit import release_before_exit
from bayesdp.validation import refuse

DISTRIBUTED = (
    DistributedDPOptimizer,
    DistributedDPOptimizerFastGradientClipping,
    FSDPOptimizerFastGradientClipping,
    SimpleDistributedPerLayerOptimizer,
)
"""The optimizers of Opacus that add up gradients over processes."""
_DONE, _FAILED, _YES = 1, 2, 3
Given = ParamSpec("Given")
Result = TypeVar("Result")


class RanksError(RuntimeError):
    """Another process of the run failed, ended or hangs: this one cannot go on. What is in the ledger stays there."""


class Ranks:
    """The processes of a run as this one sees them; a run of one process has ``size`` 1, and sends no messages."""

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        self.rank, self.size, self.device = rank, size, device
        self._awaited = 0
        "Messages of rank 0 about the present step that are still to come."

    @staticmethod
    def of(optimizer: Any) -> Ranks:
        """Return the processes that an optimizer of Opacus works with: all of them, or this one alone."""
        if not isinstance(optimizer, DISTRIBUTED):
            return Ranks(0, 1, torch.device("cpu"))
        device = optimizer.param_groups[0]["params"][0].device
        return Ranks(distributed.get_rank(), distributed.get_world_size(), device)

    @property
    def has_ledger(self) -> bool:
        """Whether this process is the one that has the ledger."""
        return self.rank == 0

    # All ranks at once

    def gather(self, row: torch.Tensor) -> torch.Tensor:
        """Return the rows [n] of all ranks as [ranks, n], on the CPU. All ranks must give rows of the same length.

        Raises RanksError if a rank is lost.
        """
        rows = torch.empty((self.size, len(row)), dtype=row.dtype, device=self.device)
        parts = list(rows.unbind())
        with _lost_ranks_named():
            distributed.all_gather(parts, row.to(self.device))
            gathered = rows.cpu()
        release_before_exit(*parts)
        return gathered

    def agree(self, value: int = 0) -> list[int]:
        """Wait until all ranks have come to this point without an error; return the values of all.

        Raises RanksError if a rank failed on its way here, in a function that ``heard_by_all_ranks`` looks after.
        """
        if self.size == 1:
            return [value]
        states, values = self.gather(torch.tensor([_DONE, value])).T.tolist()
        if _FAILED in states:
            raise RanksError(f"rank={states.index(_FAILED)} has refused to go on; it says why. Nothing has begun.")
        return values

    def agree_on(self, name: str, value: int, expected: str) -> None:
        """Raise InvalidInputError on all ranks if they do not give the same ``value``, an integer below 2^63."""
        if len(set(self.agree(value))) > 1:
            raise refuse(name, "another on every rank", expected)

    def share(self, values: list[int]) -> list[int]:
        """Return on all ranks what rank 0 gives, integers below 2^63; the others give nothing."""
        longest = max(self.agree(len(values)))
        if self.size == 1 or not longest:
            return values
        return self.gather(torch.tensor(values or [0] * longest))[0].tolist()

    # Rank 0 decides

    def await_messages(self, number: int) -> None:
        """Note how many messages of rank 0 belong to the step that begins."""
        self._awaited = number if self.size > 1 else 0

    def do(self, action: Callable[[], Any], failure: str) -> None:
        """Do something on rank 0, and return on every rank only when it is done.

        If it fails, rank 0 raises its error, and the others raise RanksError with the words of ``failure``.
        """
        if self.has_ledger:
            action()
        self._message(_DONE, failure)

    def decide(self, decision: Callable[[], bool], failure: str) -> bool:
        """Return rank 0's decision on every rank; the others do not ask ``decision``."""
        own = _YES if self.has_ledger and decision() else _DONE
        return self._message(own, failure) == _YES

    def excuse(self) -> None:
        """Tell the others, in place of the messages they wait for, that this rank could not go on with the step."""
        awaited, self._awaited = self._awaited, 0
        if awaited and self.has_ledger:
            self._send(_FAILED)
        for _ in range(0 if self.has_ledger else awaited):
            if self._send(_DONE) == _FAILED:
                return

    def _message(self, code: int, failure: str) -> int:
        if self.size == 1:
            return code
        self._awaited -= 1
        code = self._send(code)
        if code == _FAILED:
            self._awaited = 0
            raise RanksError(f"rank=0 {failure}; it says why. Nothing of this step was released.")
        return code

    def _send(self, code: int) -> int:
        return _broadcast(code, self.device)


def heard_by_all_ranks(begin: Callable[Given, Result]) -> Callable[Given, Result]:
    """Return a function that all ranks call, with ``optimizer`` second, and whose errors the others hear of.

    They hear of them in ``Ranks.agree``, with which ``begin`` must end.
    """

    @functools.wraps(begin)
    def heard(*arguments: Given.args, **options: Given.kwargs) -> Result:
        try:
            return begin(*arguments, **options)
        except RanksError:
            raise
        except Exception:
            ranks = Ranks.of(options.get("optimizer") or [None, *arguments, None][2])
            if ranks.size > 1:
                ranks.gather(torch.tensor([_FAILED, 0]))
            raise

    return heard


@contextmanager
def _lost_ranks_named() -> Generator[None]:
    try:
        yield
    except RuntimeError as error:
        said = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise RanksError(
            f"A rank of the run has ended, or does not answer within the time limit of the process group ({said}). "
            "What is in the ledger stays there; resume with Ledger.open on rank 0."
        ) from error


def from_rank_zero(value: int) -> int:
    """Return the value of rank 0, an integer below 2^63; of a program without a process group, its own."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return value
    on_gpu = distributed.get_backend() == "nccl"
    return _broadcast(value, torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu"))


def _broadcast(value: int, device: torch.device) -> int:
    message = torch.tensor([value], device=device)
    with _lost_ranks_named():
        distributed.broadcast(message, 0)
        received = int(message)
    release_before_exit(message)
    return received


class LedgerOfRankZero:
    """What ``Watch.ledger`` is on ranks other than 0: whatever is asked of it is refused, in one line."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def __getattr__(self, name: str) -> Any:
        raise refuse("rank", self._rank, f"rank 0, which has the ledger of the run, for {name!r}")

    def __repr__(self) -> str:
        return f"<the ledger is on rank 0, this is rank {self._rank}>"
