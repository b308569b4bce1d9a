"""Draws in parts that fit into memory, for frameworks that must know where a draw ends."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch.utils.data import DataLoader


def parts_of_draw(drawn: Any, most: int) -> list[list[int]]:
    """Return the positions that were drawn in parts of at most ``most``, as Opacus splits them: at least one part."""
    parts = max(math.ceil(len(drawn) / most), 1)
    return [part.tolist() for part in np.array_split(np.asarray(drawn, dtype=int), parts)]


def with_batch_sampler(loader: Any, sampler: Any) -> Any:
    """Return a loader of the same data with another batch sampler."""
    return DataLoader(
        loader.dataset,
        batch_sampler=sampler,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )
