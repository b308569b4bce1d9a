"""One small training problem, and a run of it through each adapter.

An adapter brings what a framework knows about a step into the ledger. To put one more under the contract, write a class
with the methods of ``AdapterRun`` and give it a line in ``ADAPTERS``; test_adapter_contract.py does the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from opacus import PrivacyEngine
from torch import nn
from torch.func import grad, vmap
from torch.utils.data import DataLoader, TensorDataset

import bayesdp.opacus
from bayesdp import Ledger
from opacus_runs import drawn

FloatArray = NDArray[np.float64]

RECORDS, AUDIT_RECORDS, FEATURES, HIDDEN, CLASSES = 200, 60, 12, 16, 3
EPOCHS, BATCHES = 3, 10
SHAPES = [(HIDDEN, FEATURES), (HIDDEN,), (CLASSES, HIDDEN), (CLASSES,)]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """DP-SGD in float64 for x -> W2 tanh(W1 x + b1) + b2 with cross-entropy: data, batches and noise are given.

    At each step the gradients of the records in the batch are clipped by min(1, clip / (norm + 1e-6)) and summed, noise
    is added, and ``learning_rate`` times the result over ``expected_batch`` is subtracted from the parameters.
    """

    inputs: FloatArray
    "[n, FEATURES]"
    targets: NDArray[np.int64]
    "[n]"
    audit_inputs: FloatArray
    "[m, FEATURES]"
    audit_targets: NDArray[np.int64]
    "[m]"
    parameters: tuple[FloatArray, ...]
    "W1, b1, W2, b2 before the first step, with shapes SHAPES."
    batches: tuple[NDArray[np.int64], ...]
    "Indices of the records that each step draws; T of them."
    noise: tuple[tuple[FloatArray, ...], ...]
    "What each step adds to the sum of clipped gradients, by parameter; T of them."
    noise_multiplier: float = 3.0
    clip: float = 3.5
    learning_rate: float = 0.1
    seed: int = 0

    @property
    def sample_rate(self) -> float:
        """How often a record is really drawn: ``torch.rand`` gives multiples of 2^-24."""
        return drawn(1 / BATCHES)

    @property
    def expected_batch(self) -> int:
        return RECORDS // BATCHES

    @property
    def noise_std(self) -> float:
        return self.noise_multiplier * self.clip

    @property
    def steps(self) -> int:
        return len(self.batches)

    def spoiled(self, step: int) -> Problem:
        """Return the problem with a record that is not finite; batch number ``step`` is the first to hold it."""
        earlier = np.concatenate([np.zeros(0, np.int64), *self.batches[:step]])
        record = np.setdiff1d(self.batches[step], earlier)[0]
        inputs = self.inputs.copy()
        inputs[record] = np.nan
        return replace(self, inputs=inputs)

    def with_spoiled_audit(self) -> Problem:
        """Return the problem with an audit record that is not finite."""
        inputs = self.audit_inputs.copy()
        inputs[7] = np.nan
        return replace(self, audit_inputs=inputs)


def new_problem(seed: int = 0, epochs: int = EPOCHS) -> Problem:
    """Return a problem whose batches and noise are those that Opacus draws from generators seeded with ``seed``."""
    values = np.random.default_rng(seed)

    def inputs(records: int) -> FloatArray:  # some records have small gradients, some are clipped
        return values.standard_normal((records, FEATURES)) * values.uniform(0.1, 1.5, (records, 1))

    empty = Problem(
        inputs=inputs(RECORDS),
        targets=values.integers(CLASSES, size=RECORDS),
        audit_inputs=inputs(AUDIT_RECORDS),
        audit_targets=values.integers(CLASSES, size=AUDIT_RECORDS),
        parameters=tuple(values.uniform(-0.3, 0.3, shape) for shape in SHAPES),
        batches=(),
        noise=(),
        seed=seed,
    )
    draws, noise = _generators(seed)
    batches: list[NDArray[np.int64]] = []
    for _ in range(epochs):
        torch.empty((), dtype=torch.int64).random_(generator=draws)  # a DataLoader seeds its workers first
        for _ in range(BATCHES):
            batches.append((torch.rand(RECORDS, generator=draws) < empty.sample_rate).nonzero()[:, 0].numpy())
    added = [
        tuple(torch.normal(0, empty.noise_std, shape, generator=noise, dtype=torch.float64).numpy() for shape in SHAPES)
        for _ in batches
    ]
    return replace(empty, batches=tuple(batches), noise=tuple(added))


def _generators(seed: int) -> tuple[torch.Generator, torch.Generator]:
    return torch.Generator().manual_seed(seed + 1), torch.Generator().manual_seed(seed + 2)


class AdapterRun(ABC):
    """A run of a problem through an adapter.

    ``ledger`` is where the adapter records; None runs the same training without the adapter. ``at_update`` must be
    called at the moment when the framework applies an update, before any parameter changes.
    """

    closeness = 1e-9
    "How much parameters may differ from those of the first adapter, in proportion."
    broken_norm: Literal["zero", "clip"] = "zero"
    "What is recorded of a training record whose gradient is not finite: that it contributed nothing, or the most."

    @abstractmethod
    def __init__(self, problem: Problem, ledger: Ledger | None, at_update: Callable[[], None]) -> None: ...

    @abstractmethod
    def train(self, steps: int) -> None:
        """Take ``steps`` further steps; the first call begins with the first batch of the problem."""

    @property
    @abstractmethod
    def parameters(self) -> FloatArray:
        """All parameters in one vector, as they are now."""

    @abstractmethod
    def close(self) -> None:
        """Give the ledger what the adapter still holds, and let go of it."""


class ArraysRun(AdapterRun):
    """A loop written by hand in PyTorch, which gives arrays to ``Ledger.step`` (docs/opacus.md, "Any other loop")."""

    def __init__(self, problem: Problem, ledger: Ledger | None, at_update: Callable[[], None]) -> None:
        self._problem, self._ledger, self._at_update = problem, ledger, at_update
        self._parameters = tuple(torch.tensor(parameter) for parameter in problem.parameters)
        self._data = torch.tensor(problem.inputs), torch.tensor(problem.targets)
        self._audit = torch.tensor(problem.audit_inputs), torch.tensor(problem.audit_targets)
        self._taken = 0

        def loss(parameters: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            w1, b1, w2, b2 = parameters
            return nn.functional.cross_entropy(w2 @ torch.tanh(w1 @ x + b1) + b2, y)

        self._gradients: Any = vmap(grad(loss), in_dims=(None, 0, 0))

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self._step()
            self._taken += 1

    def _step(self) -> None:
        problem, batch = self._problem, torch.tensor(self._problem.batches[self._taken])
        each = self._gradients(self._parameters, *(tensor[batch] for tensor in self._data))
        broken = ~torch.isfinite(_norms(each))
        for gradients in each:
            gradients[broken] = 0  # a record that breaks its gradient contributes nothing
        norms = _norms(each)
        factors = (problem.clip / (norms + 1e-6)).clamp(max=1.0)
        noisy = [
            torch.einsum("i,i...", factors, gradients) + torch.tensor(noise)
            for gradients, noise in zip(each, problem.noise[self._taken], strict=True)
        ]
        if self._ledger is not None:
            audit = _norms(self._gradients(self._parameters, *self._audit))
            self._ledger.step(
                noise_std=problem.noise_std,
                sample_rate=problem.sample_rate,
                clip=problem.clip,
                audit=audit,
                batch=norms,
            )
        self._at_update()
        for parameter, gradient in zip(self._parameters, noisy, strict=True):
            parameter -= problem.learning_rate * gradient / problem.expected_batch

    @property
    def parameters(self) -> FloatArray:
        return np.concatenate([parameter.numpy().ravel() for parameter in self._parameters])

    def close(self) -> None:
        """Do nothing: everything is in the ledger already."""


def _norms(gradients: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return torch.cat([gradient.flatten(1) for gradient in gradients], dim=1).norm(dim=1)


class OpacusRun(AdapterRun):
    """A run with Opacus, watched by ``bayesdp.opacus.watch``."""

    def __init__(self, problem: Problem, ledger: Ledger | None, at_update: Callable[[], None]) -> None:
        model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES)).double()
        for parameter, value in zip(model.parameters(), problem.parameters, strict=True):
            parameter.data = torch.tensor(value)
        dataset = TensorDataset(torch.tensor(problem.inputs), torch.tensor(problem.targets))
        draws, noise = _generators(problem.seed)
        self._loss = nn.CrossEntropyLoss()
        self._model, self._optimizer, self._loader = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=problem.learning_rate),
            data_loader=DataLoader(dataset, batch_size=problem.expected_batch, generator=draws),
            noise_multiplier=problem.noise_multiplier,
            max_grad_norm=problem.clip,
            noise_generator=noise,
        )
        self._watched: bayesdp.opacus.Watch | None = None
        if ledger is not None:
            audit = torch.tensor(problem.audit_inputs), torch.tensor(problem.audit_targets)
            self._watched = bayesdp.opacus.watch(
                self._model, self._optimizer, self._loader, ledger=ledger, audit=audit, loss=self._loss
            )
        # After the hooks of the watch, so that it is the last thing before parameters change.
        self._optimizer.original_optimizer.register_step_pre_hook(lambda *_: at_update())

    def train(self, steps: int) -> None:
        taken = 0
        while taken < steps:
            for x, y in self._loader:
                self._optimizer.zero_grad()
                self._loss(self._model(x), y).backward()
                self._optimizer.step()
                taken += 1
                if taken == steps:
                    break

    @property
    def parameters(self) -> FloatArray:
        return np.concatenate([parameter.detach().numpy().ravel() for parameter in self._model.parameters()])

    def close(self) -> None:
        if self._watched is not None:
            self._watched.close()


ADAPTERS: dict[str, type[AdapterRun]] = {
    "arrays": ArraysRun,
    "opacus": OpacusRun,
}
"""Every adapter, by its name. The first is what the others are compared with."""

if find_spec("jax_privacy") is not None:  # `make test-engines` has it
    from contracts.jax_privacy_run import JaxPrivacyRun

    ADAPTERS["jax_privacy"] = JaxPrivacyRun
