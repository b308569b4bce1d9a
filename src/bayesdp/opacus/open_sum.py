"""The sum of clipped gradients that the next step will release: what is in it, and whether more will follow.

Why ``signal_skip_step`` is replaced (``OpenSum.attach``)
    Opacus has one queue of signals and takes one at each step: "only add this batch to the sum". Two callers fill it.
    BatchMemoryManager signals when its sampler draws, so that signals may belong to batches that were drawn ahead, or
    that never came because the loop was left; whether a part of a batch is its last, the draws know better. Whoever
    accumulates gradients (dp-transformers, for instance) signals just before the step, and means that step. So signals
    are kept apart by who sent them: those of the user are obeyed in their order, those of BatchMemoryManager are
    replaced by what the draws say, and both at once are refused.

What would break this: a BatchSplittingSampler that signals by another method, or from a function that has no ``self``
(its signals would be taken for the user's, and refused); another name for ``_step_skip_queue``,
``_is_last_step_skipped``. tests/with_opacus/test_virtual_batches.py and test_same_training.py would
tell.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from opacus.utils.batch_memory_manager import BatchSplittingSampler

from bayesdp.opacus.clipping import FlatClipping
from bayesdp.opacus.draws import Draw
from bayesdp.opacus.passes import PassCounter
from bayesdp.opacus.recording import GradientSum
from bayesdp.opacus.sampling import Sampling
from bayesdp.run_ledger import Ledger
from bayesdp.validation import refuse


class OpenSum:
    """The batches that Opacus has clipped and added up since the last release."""

    def __init__(self, optimizer: Any, sampling: Sampling, clipping: FlatClipping, passes: PassCounter | None) -> None:
        self._optimizer, self._sampling, self._clipping = optimizer, sampling, clipping
        self._parts: list[tuple[Draw, torch.Tensor, float]] = []
        "Draw, norms and clip bound of each part of the sum so far."
        self._passes = passes
        self.several_passes = False
        "Whether there were other passes through the model for a batch than in the audit, as far as they are counted."
        self.changed_gradients = False
        "Whether gradients were changed between a backward pass and the step, as far as that is seen."
        self._caveats: frozenset[str] = frozenset()
        "What the parts of the sum rest on, because of how they were clipped."
        self._in_a_draw = False
        "Whether BatchMemoryManager has more of the last draw to come."
        self._signals: list[bool] = []
        "What the user has signalled about steps to come."

    def attach(self) -> None:
        """Take the place of Opacus' ``signal_skip_step``, and take over what was signalled before."""
        self._signals[:] = self._optimizer._step_skip_queue
        self._optimizer._step_skip_queue.clear()
        self._optimizer.signal_skip_step = self._signal

    def detach(self) -> None:
        """Give ``signal_skip_step`` back to Opacus, with the signals that no step has used."""
        del self._optimizer.signal_skip_step
        self._optimizer._step_skip_queue[:] = self._signals
        if self._passes is not None:
            self._passes.detach()

    def _signal(self, do_skip: bool = True) -> None:
        if not isinstance(sys._getframe(1).f_locals.get("self"), BatchSplittingSampler):
            self._signals.append(bool(do_skip))

    def add_batch(self) -> bool:
        """Let Opacus add a batch to the sum; return whether the sum stays open because more will follow."""
        signals = [self._signals.pop(0)] if self._signals else []
        if not self._clipping.sum_begun():
            self.released()
        batches = self._clipping.batches()
        self.several_passes |= self._passes is not None and self._passes.differ(len(batches))
        self.changed_gradients |= self._passes is not None and self._passes.changed()
        parts = self._sampling.draws.use(batches)
        split = any(part.split for part in parts)
        if split and signals:
            raise refuse("signal_skip_step", signals[0], "signals of your own or BatchMemoryManager, not both")
        if (split or any(signals)) and not self._clipping.in_parts:
            expected = "flat clipping for BatchMemoryManager and signal_skip_step: the adaptive count is lost"
            raise refuse("clipping", "adaptive", expected)
        norms, clip = self._clipping.add_to_sum(), self._clipping.clip()
        self._caveats |= self._clipping.caveats
        for part, part_norms in zip(parts, norms.split([len(batch) for batch in batches]), strict=True):
            # Without the sample that was invented for an empty batch.
            real = part_norms if part.draw.records else part_norms[:0]
            self._parts.append((part.draw, real.detach(), clip))
        self._in_a_draw = bool(parts) and parts[-1].more
        more = self._in_a_draw or any(signals)
        self._optimizer._step_skip_queue[:] = [True] if more else []
        return more

    @property
    def clip(self) -> float:
        """The largest bound with which a part of the sum was clipped."""
        return max(clip for _, _, clip in self._parts)

    @property
    def empty(self) -> bool:
        """Whether no record is in the sum."""
        return not any(len(norms) for _, norms, _ in self._parts)

    @property
    def records(self) -> int | None:
        """How many records are in the sum, if it is one batch."""
        return len(self._parts[0][1]) if len(self._parts) == 1 else None

    def complete(self, audit: torch.Tensor | None, caveats: frozenset[str], noise: tuple[int, ...]) -> GradientSum:
        """Return the sum as it will be released; ``audit`` are the norms of audit records, [m].

        ``noise`` are digests of the states from which noise will be drawn.
        """
        if self._clipping.own_bound:
            _check_bound(self.clip, float(self._optimizer.max_grad_norm))
        return GradientSum.of(
            [(draw, norms) for draw, norms, _ in self._parts],
            audit,
            noise_std=self._clipping.noise_std(),
            clip=self.clip,
            extra_norm=self._clipping.extra_norm(),
            caveats=self._caveats | caveats,
            noise=noise,
        )

    def note_end(self, ledger: Ledger) -> None:
        """Note in the ledger that training ends within a draw, if it does.

        A loop that ends after a number of parts takes a number of steps that depends on how many records were drawn,
        which is no result with noise. Claims name it, as they do where a loop leaves a draw and goes on.
        """
        if self._in_a_draw and ledger.steps and not ledger.closed:
            ledger.note_caveat("skipped-batches")

    def released(self) -> None:
        """Begin a new, empty sum: the last one was released, and its parts are in the ledger."""
        self._parts.clear()
        self._caveats = frozenset()
        self.several_passes = self.changed_gradients = False

    def drop(self) -> None:
        """Forget the sum: nothing of it will be released."""
        self._clipping.drop_sum()
        self._optimizer._is_last_step_skipped = False
        self._optimizer._step_skip_queue.clear()
        self.released()
        self._in_a_draw = False

    def start_iteration(self) -> list[torch.Tensor]:
        """Drop a draw that was left in the middle: which records are in its parts depends on the other records.

        So does whether it is in the middle that it was left, if the loop ends after a number of parts: claims name it.
        A sum of whole draws, which the user accumulates, goes on. Returns what ``Draws.at_start`` does.
        """
        if self._in_a_draw and any(self._sampling.draws.is_over(draw) for draw, _, _ in self._parts):
            self.drop()
            self._sampling.draws.skipped = True
        return self._clipping.start()


def check_between_sums(optimizer: Any, clipping: FlatClipping) -> None:
    """Raise InvalidInputError if a sum has begun already, whose records are not known."""
    if optimizer._is_last_step_skipped and clipping.sum_begun():
        raise refuse("optimizer", "in the middle of a sum", "watch before its first batch: its records are unknown")


def _check_bound(clips: float, assumed: float) -> None:
    if not abs(clips - assumed) <= 1e-6 * assumed:
        raise refuse(
            "max_grad_norm",
            assumed,
            f"the bound {clips:g} with which gradients are clipped: noise is scaled by the optimizer's, and a "
            "scheduler changes only that one; set both",
        )
