"""Ends of runs that nobody plans, on one of several processes; run as the functions of rank_scenarios.py are."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rank_runs import AUDIT, Private, data, private
from rank_scenarios import MODES, rank, refused


def train_until(folder: Path, run: Private, at: int, then: Callable[[], None], only: int) -> Any:
    """Train, and note each update that is about to be applied; at a certain step, something happens on one rank."""
    updates = os.open(folder / f"updates{rank()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    steps = 0

    def after() -> None:
        nonlocal steps
        steps += 1
        if steps == at and rank() == only:
            then()

    with run.watch(folder / "run.ledger", audit=data(AUDIT, 3), loss=run.loss):
        run.optimizer.original_optimizer.register_step_pre_hook(lambda *_: os.write(updates, b".") and None)
        run.train(1000, after=after)


def dies(folder: Path, at: int = 3, only: int = 1, mode: str = "hooks") -> Any:
    return refused(lambda: train_until(folder, private(mode, MODES[mode]), at, lambda: os._exit(9), only))


def hangs(folder: Path, at: int = 3, only: int = 1) -> Any:
    begin = time.monotonic()
    error = refused(lambda: train_until(folder, private(), at, lambda: time.sleep(8), only))
    return [error, time.monotonic() - begin]


def trains_on(folder: Path, mode: str = "hooks") -> Any:
    """Train until somebody kills it."""
    return refused(lambda: train_until(folder, private(mode, MODES[mode]), 0, lambda: None, 0))
