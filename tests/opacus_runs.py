"""Small private training runs on real models, as a user of Opacus writes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesdp.opacus
from bayesdp import Ledger

FEATURES, CLASSES = 12, 3
ADAPTIVE: dict[str, Any] = {
    "clipping": "adaptive",
    "target_unclipped_quantile": 0.5,
    "clipbound_learning_rate": 0.2,
    "max_clipbound": 10.0,
    "min_clipbound": 0.1,
    "unclipped_num_std": 5.0,
}
"""Options of ``make_private`` for adaptive clipping."""


def random_data(records: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(records, FEATURES, generator=generator, dtype=dtype),
        torch.randint(0, CLASSES, (records,), generator=generator),
    )


def small_model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, CLASSES))


@dataclass
class Run:
    """What ``make_private`` returned, and a loop over it."""

    engine: PrivacyEngine
    model: Any
    optimizer: Any
    loader: Any
    loss: Any
    losses: list[float] = field(default_factory=list)

    def watch(self, ledger: Ledger | Path, **options: Any) -> bayesdp.opacus.Watch:
        return bayesdp.opacus.watch(self.model, self.optimizer, self.loader, ledger=ledger, **options)

    def train(self, epochs: int = 1, loader: Iterable[Any] | None = None, most: int | None = None) -> None:
        """Train for some epochs, of ``most`` batches each at most."""
        for _ in range(epochs):
            for number, (x, y) in enumerate(self.loader if loader is None else loader):
                if number == most:
                    break
                self.step(x, y)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss = self.loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    @property
    def parameters(self) -> np.ndarray:
        """All parameters in one vector."""
        return torch.cat([parameter.detach().reshape(-1) for parameter in self.optimizer.params]).numpy().copy()


def private_run(
    model: nn.Module | None = None,
    *,
    records: int = 200,
    batch: int = 20,
    seed: int = 0,
    accountant: str = "prv",
    mode: str = "hooks",
    workers: int = 0,
    shuffle: bool = False,
    dtype: torch.dtype = torch.float32,
    data: tuple[torch.Tensor, torch.Tensor] | None = None,
    **options: Any,
) -> Run:
    """Return a run whose random numbers are its own: draws come from ``seed`` + 1, noise from ``seed`` + 2."""
    model = (small_model(seed) if model is None else model).to(dtype)
    given = random_data(records, seed, dtype) if data is None else data
    dataset = TensorDataset(*(tensor.clone() for tensor in given))  # copies may be audit records, too
    draws = torch.Generator().manual_seed(seed + 1)
    loader = DataLoader(dataset, batch_size=batch, generator=draws, num_workers=workers, shuffle=shuffle)
    engine = PrivacyEngine(accountant=accountant)
    settings: dict[str, Any] = {"noise_multiplier": 1.0, "max_grad_norm": 1.0} | options
    made = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=loader,
        grad_sample_mode=mode,
        noise_generator=torch.Generator().manual_seed(seed + 2),
        criterion=nn.CrossEntropyLoss(reduction=options.get("loss_reduction", "mean")),
        **settings,
    )
    if mode == "ghost":
        model, optimizer, loss, loader = made
    else:
        (model, optimizer, loader), loss = made, nn.CrossEntropyLoss()
    return Run(engine, model, optimizer, loader, loss)


def default_run(**options: Any) -> Run:
    """Return a run that takes all its random numbers from PyTorch's own generator, as most do."""
    run = private_run(**options)
    run.optimizer.generator = run.loader.batch_sampler.generator = None
    return run


def drawn(rate: float) -> float:
    """Return how often Opacus' sampler draws a record at a nominal rate: it compares multiples of 2^-24 with it."""
    return np.ceil(rate * 2.0**24).item() / 2.0**24


RATE = drawn(0.1)
"""The rate of ``private_run``: batches of 20 from 200 records."""


def settings(ledger: Ledger) -> list[tuple[float, float, float | None, int]]:
    """Return noise, sampling rate, clip bound and number of steps of each stretch."""
    return [
        (stretch.noise_std, stretch.sample_rate, stretch.clip, stretch.steps) for stretch in ledger.history.stretches
    ]


def batch_norms(ledger: Ledger, step: int) -> np.ndarray:
    """Return the norms of the batch at a step of a ledger that keeps norms, [b]."""
    norms = ledger.private_norms(step)[1]
    assert norms is not None
    return norms


def audit_norms(ledger: Ledger, step: int) -> np.ndarray:
    """Return the norms of audit records at a step of a ledger that keeps norms, [m]."""
    norms = ledger.private_norms(step)[0]
    assert norms is not None
    return norms


def norms_by_autograd(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> np.ndarray:
    """Return norms of the gradients by each of P parameters of a ``small_model`` with these values, [b, P].

    One record at a time, with nothing but autograd.
    """
    values, model = model.state_dict(), small_model().to(x.dtype)
    model.load_state_dict(values)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    norms = []
    for row in range(len(x)):
        loss = nn.functional.cross_entropy(model(x[row : row + 1]), y[row : row + 1])
        norms.append([float(grad.norm()) for grad in torch.autograd.grad(loss, parameters)])
    return np.array(norms)
