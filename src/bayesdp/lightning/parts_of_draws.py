"""Draws in parts that fit into memory, as Lightning accumulates batches: a step of Lightning is one whole draw.

Why epochs end with a draw (``PartsOfDraws`` has no length)
    Lightning ends an epoch after as many batches as the loader has. How many parts the draws of an epoch have depends
    on who was drawn, so an end after a number of parts would fall into the middle of a draw or not, depending on that,
    and the number of steps would tell of it: no epsilon covers that. Without a length, the epoch ends with the sampler.

Why ``_accumulated_batches_reached`` of the epoch loop is replaced
    It says whether Lightning steps after a batch: optimizer, learning rate schedulers, ``global_step``, loggers. Now it
    does so after the last part of each draw. After the other parts Opacus adds to its sum (``add_up``).

What would break this: an epoch loop that steps without asking ``_accumulated_batches_reached``, or a fit loop that
needs a length. tests/with_lightning would tell.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from itertools import islice
from typing import Any

from opacus.utils.batch_memory_manager import BatchSplittingSampler

from bayesdp.opacus.draw_parts import parts_of_draw, with_batch_sampler


class PartsOfDraws(BatchSplittingSampler):
    """The draws of an epoch in parts of at most ``max_batch_size`` records; it notes which parts are the last ones."""

    def __init__(self, *, sampler: Any, max_batch_size: int, optimizer: Any, draws: Callable[[], int]) -> None:
        """``draws``: how many draws the epoch that begins has."""
        super().__init__(sampler=sampler, max_batch_size=max_batch_size, optimizer=optimizer)
        self._draws = draws
        self.last: deque[bool] = deque()
        "Whether each part that was not trained on yet is the last one of its draw."

    def __iter__(self) -> Generator[list[int]]:
        self.last.clear()
        draws = self._draws()
        ends_early = draws < len(self.sampler)  # type: ignore[arg-type]
        for drawn in islice(self.sampler, draws) if ends_early else self.sampler:
            parts = parts_of_draw(drawn, self.max_batch_size)
            for number, part in enumerate(parts, 1):
                self.last.append(number == len(parts))
                yield part

    def __len__(self) -> int:
        raise TypeError("how many parts there are depends on the draws")


class WholeDraws:
    """Lets the loops of a trainer take a draw, in parts, as one step; ``loader`` is what to iterate over instead."""

    def __init__(self, trainer: Any, loader: Any, optimizer: Any, most: int, *, automatic: bool) -> None:
        self._trainer, self._optimizer, self._automatic = trainer, optimizer, automatic
        self._is_last = True
        self._limits = {name: getattr(trainer, name) for name in ("limit_train_batches", "val_check_interval")}
        limit, interval = self._limits.values()
        self._draws = min(limit, len(loader)) if isinstance(limit, int) else int(limit * len(loader))
        splitter = BatchSplittingSampler(sampler=loader.batch_sampler, max_batch_size=most, optimizer=optimizer)
        if isinstance(interval, float) and interval != 1.0:  # a number of parts: about as many are expected
            trainer.val_check_interval = max(int(interval * len(splitter) * self._draws / len(loader)), 1)
        if self._draws:
            trainer.limit_train_batches = 1.0  # draws are counted by their sampler
        self._parts = PartsOfDraws(
            sampler=loader.batch_sampler, max_batch_size=most, optimizer=optimizer, draws=self._left
        )
        self.loader = with_batch_sampler(loader, self._parts)
        if automatic:
            trainer.fit_loop.epoch_loop._accumulated_batches_reached = lambda: self._is_last

    def _left(self) -> int:
        """Return how many draws are left of the epoch that begins: after a checkpoint within one, not all."""
        loop = self._trainer.fit_loop.epoch_loop
        if not (loop.restarting and self._automatic):
            return self._draws
        taken = loop.automatic_optimization.optim_progress.optimizer.step.current.completed
        return self._draws - taken % self._draws

    def begin(self) -> None:
        """Note that the next part is being trained on."""
        self._is_last = self._parts.last.popleft()

    def add_up(self) -> bool:
        """Let Opacus add a part to its sum if more of its draw will follow; return whether that is so."""
        if not self._is_last and self._automatic:
            self._optimizer.step()
        return not self._is_last

    def end(self) -> None:
        """Leave the trainer as it was."""
        for name, value in self._limits.items():
            setattr(self._trainer, name, value)
        self._trainer.fit_loop.epoch_loop.__dict__.pop("_accumulated_batches_reached", None)
