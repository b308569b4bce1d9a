"""Record a real run with Opacus, and replay each of its steps with one record added to the batch.

The recorded run is an ordinary watched one. Replays are made by new objects of Opacus that nobody watches: they get the
weights, the batch and the state of the noise generator of the step, and what the optimizer is given is compared. In
double precision, so that adding one record to a sum changes nothing but its own contribution.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bayesdp.attack.replayed_run import ReplayedRun, ReplayedStep
from bayesdp.opacus import watch
from bayesdp.run_ledger import Ledger
from bayesdp.validation import FloatArray

RECORDS, FEATURES, CLASSES = 200, 12, 3
BATCH, CLIP, NOISE_MULTIPLIER = 20, 2.0, 1.0
_NOT_NEWS = ("Secure RNG turned off", "Full backward hook is firing")
"""What Opacus and PyTorch warn of in each of hundreds of runs."""
Plant = Callable[[Any, Ledger], None]
"""Breaks an optimizer of Opacus, after it was made, or how it and the ledger work together."""


class _Engine:
    """One private optimizer on the same data and settings, and what it hands to the optimizer inside it."""

    def __init__(self, mode: str, seed: int, ledger: Ledger, plant: Plant | None) -> None:
        torch.random.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]
        model = nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, CLASSES)).double()
        generator = torch.Generator().manual_seed(seed + 1)
        self.rows = torch.randn(RECORDS, FEATURES, generator=generator, dtype=torch.float64)
        self.classes = torch.randint(0, CLASSES, (RECORDS,), generator=generator)
        self.noise = torch.Generator().manual_seed(seed + 2)
        engine: Any = PrivacyEngine()
        made: Any = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.3),
            data_loader=DataLoader(
                TensorDataset(self.rows, self.classes),
                batch_size=BATCH,
                generator=torch.Generator().manual_seed(seed + 3),
            ),
            noise_multiplier=NOISE_MULTIPLIER,
            max_grad_norm=CLIP,
            noise_generator=self.noise,
            grad_sample_mode=mode,
            criterion=nn.CrossEntropyLoss(),
        )
        self.model: Any
        if mode == "ghost":
            self.model, self.optimizer, self.loss, self.loader = made
        else:
            (self.model, self.optimizer, self.loader), self.loss = made, nn.CrossEntropyLoss()
        if plant is not None:
            plant(self.optimizer, ledger)
        self.ledger = ledger
        self.given: FloatArray = np.zeros(0)
        self.recorded = 0

    def listen(self) -> None:
        """Keep what the inner optimizer is given, in units of the sum, whenever it is about to update.

        And how many steps the ledger has then: a step that is written a moment later counts as not recorded.
        """
        self.optimizer.original_optimizer.register_step_pre_hook(self._keep)

    def _keep(self, *_: Any) -> None:
        flat = torch.cat([parameter.grad.reshape(-1) for parameter in self.optimizer.params])
        self.given = (flat * self.optimizer.expected_batch_size).numpy().copy()
        self.recorded = self.ledger.steps

    def step(self, rows: torch.Tensor, classes: torch.Tensor) -> None:
        """Take one step as a user's loop does."""
        self.optimizer.zero_grad()
        self.loss(self.model(rows), classes).backward()
        self.optimizer.step()

    def again(self, weights: Any, rows: torch.Tensor, classes: torch.Tensor, noise: torch.Tensor) -> FloatArray:
        """Return what is released from these weights, this batch and this state of the noise generator."""
        self.model.load_state_dict(weights)
        self.noise.set_state(noise)
        self.step(rows, classes)
        return self.given


def opacus_run(
    seed: int, *, steps: int = 60, mode: str = "hooks", plant: Plant | None = None, ledger: Ledger | None = None
) -> ReplayedRun:
    """Train with Opacus for some steps, watched, and replay each with one of two audit records added.

    ``mode``: of Opacus' gradients, "hooks" or "ghost". ``plant`` breaks every optimizer that is made; ``ledger`` may be
    one that errs. Both are for showing that the lab would notice.
    """
    with warnings.catch_warnings():
        for message in _NOT_NEWS:
            warnings.filterwarnings("ignore", message, UserWarning)
        return _replayed(seed, steps, mode, plant, Ledger(keep_norms=True) if ledger is None else ledger)


def _replayed(seed: int, steps: int, mode: str, plant: Plant | None, ledger: Ledger) -> ReplayedRun:
    recorded, replayed = (_Engine(mode, seed, ledger, plant) for _ in range(2))
    audit = _audit_records(seed)
    other = torch.Generator().manual_seed(seed + 4)
    place = {bytes(row.numpy()): number for number, row in enumerate(recorded.rows)}
    seen: list[ReplayedStep] = []
    with watch(recorded.model, recorded.optimizer, recorded.loader, ledger=ledger, audit=audit, loss=recorded.loss):
        recorded.listen()
        replayed.listen()
        while len(seen) < steps:
            for rows, classes in recorded.loader:
                weights = {name: value.clone() for name, value in recorded.model.state_dict().items()}
                noise = recorded.noise.get_state()
                recorded.step(rows, classes)
                added = [
                    replayed.again(weights, torch.cat([rows, row[None]]), torch.cat([classes, label[None]]), noise)
                    for row, label in zip(*audit, strict=True)
                ]
                seen.append(
                    ReplayedStep(
                        drawn=np.array([place[bytes(row.numpy())] for row in rows], dtype=np.int64),
                        released=recorded.given,
                        repeated=replayed.again(weights, rows, classes, noise),
                        with_record=np.array(added),
                        other_noise=replayed.again(weights, rows, classes, other.get_state()),
                        recorded=recorded.recorded,
                    )
                )
                torch.randn(1000, generator=other)  # so that no two replays share their noise
                if len(seen) == steps:
                    break
    return ReplayedRun(
        engine=f"Opacus, {'flat' if mode == 'hooks' else mode} clipping",
        ledger=ledger,
        records=RECORDS,
        steps=tuple(seen),
    )


def _audit_records(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the records that are added: a short one, whose gradient is seldom clipped, and a long one."""
    generator = torch.Generator().manual_seed(seed + 5)
    rows = torch.randn(2, FEATURES, generator=generator, dtype=torch.float64) * torch.tensor([[0.2], [4.0]])
    return rows, torch.randint(0, CLASSES, (2,), generator=generator)
