"""Gradients that are not what a backward pass should leave, on several processes; run as those of rank_scenarios.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rank_runs import private, same_draws
from rank_scenarios import MODES, rank, refused


def hostile(folder: Path, mode: str) -> Any:
    """Train with a record on rank 1 whose gradient is not finite; return parameters, and norms in the ledger."""
    run = private(mode, MODES[mode])
    same_draws(run)
    with run.watch(folder / "run.ledger", keep_norms=True) as watch:
        for number, (x, y) in enumerate(run.loader):
            if number == 1 and rank() == 1:
                x[0] = torch.nan
            run.step(x, y)
            if number == 1:
                break
        norms = watch.ledger.private_norms(2)[1].tolist() if rank() == 0 else None
    return [run.parameters, norms]


def changed_gradients(folder: Path) -> Any:
    """Change a gradient between backward and step, in several ways, on all ranks or on rank 1; then train on."""
    changes: list[Callable[[Any], Any]] = [
        lambda weight: weight.grad.mul_(2),
        lambda weight: weight.grad.to_local().mul_(2),
        lambda weight: setattr(weight, "grad", 0.5 * weight.grad),
    ]
    answers: list[Any] = []
    for number, (change, first) in enumerate((change, first) for change in changes for first in (0, 1)):
        with (run := private("ghost_fsdp", "fsdp")).watch(folder / f"{number}.ledger") as watch:
            x, y = next(iter(run.loader))
            run.loss(run.model(x), y).backward()
            if rank() >= first:
                change(run.optimizer.params[-first])
            before, error = run.parameters, refused(run.optimizer.step)
            seen = [error, run.parameters == before, run.train(most=2)]
            answers.append([*seen, watch.ledger.steps if rank() == 0 else 2])
    return answers
