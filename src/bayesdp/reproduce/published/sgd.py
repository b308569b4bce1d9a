"""DP-SGD as the authors' code does it: the mean of a batch is clipped, not its records, and accounted by pairs.

For reproduction only. At each step noise of standard deviation sigma C is added to the mean gradient of a shuffled
batch, clipped to C as a whole (or not at all), and a random part of the weights is updated. What the accountant will
see is written down: the 28 distances between the gradients of that batch without its first, second, ... eighth record,
and beside them how far each of these records moves the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from bayesdp.validation import FloatArray

_LEFT_OUT = 8


@dataclass(frozen=True, kw_only=True)
class PublishedSettings:
    """Of a run as published."""

    epochs: int
    batch: int
    sigma: float
    learning_rate: float
    clip: float = 1.0
    clipped: bool = True
    "Whether the mean gradient is clipped at all; the noise is sigma times ``clip`` in either case."
    mask: float = 1.0
    "The part of the weights that a step updates."
    adam: bool = False
    decay: bool = False
    "Whether the learning rate goes down to 0, in a straight line."

    @property
    def noise_std(self) -> float:
        """On the mean of a batch."""
        return self.sigma * self.clip

    def steps(self, rows: int) -> int:
        """Of the whole run; an incomplete batch at the end of an epoch is dropped."""
        return self.epochs * (rows // self.batch)

    def sample_rate(self, rows: int) -> float:
        """As if batches were Poisson samples."""
        return self.batch / rows


@dataclass(frozen=True)
class Distances:
    """Of a whole run, for the accountant."""

    pairs: FloatArray
    "Between mean gradients of a batch without one of eight records, [steps, 28]; as in the authors' code."
    moves: FloatArray
    "How far each of the eight moves the mean of its batch, [steps, 8]."


def fit_as_published(
    model: nn.Module,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    settings: PublishedSettings,
    *,
    seed: int = 0,
    private: bool = True,
    track: Callable[[range], Iterable[int]] = iter,
) -> Distances:
    """Train ``model`` in place; without ``private`` neither clipped nor noisy nor masked, for comparison."""
    generator = torch.Generator().manual_seed(seed)
    parameters = _trained(model)
    weights = _flat(one.detach() for one in parameters)
    optimizer = _optimizer(weights, settings)
    seen: list[tuple[FloatArray, FloatArray]] = []
    batches = len(inputs) // settings.batch
    order = torch.arange(0)
    for step in track(range(settings.epochs * batches)):
        if step % batches == 0:
            order = torch.randperm(len(inputs), generator=generator)
        rows = order[step % batches * settings.batch :][: settings.batch]
        mean = mean_gradient(model, inputs[rows], targets[rows])
        if private:
            few, mask = rows[:_LEFT_OUT], random_mask(mean, settings, generator)
            seen.append(distances(model, inputs[few], targets[few], mean, mask, settings))
            updated = random_mask(mean, settings, generator)  # not the one that was accounted, as in the authors' code
            mean = (_clip(mean, settings) + settings.noise_std * torch.randn(len(mean), generator=generator)) * updated
        if settings.decay:
            optimizer.param_groups[0]["lr"] = settings.learning_rate * (1 - step / settings.steps(len(inputs)))
        weights.grad = mean
        optimizer.step()
        with torch.no_grad():
            parts = torch.split_with_sizes(weights, [one.numel() for one in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.copy_(part.view(parameter.shape))
    return Distances(np.array([pairs for pairs, _ in seen]), np.array([moves for _, moves in seen]))


def _optimizer(weights: torch.Tensor, settings: PublishedSettings) -> torch.optim.Optimizer:
    kind: Any = torch.optim.Adam if settings.adam else torch.optim.SGD
    return kind([weights], lr=settings.learning_rate)


def random_mask(mean: torch.Tensor, settings: PublishedSettings, generator: torch.Generator) -> torch.Tensor:
    """The part of the weights that a step sees or updates."""
    return torch.rand(len(mean), generator=generator) < settings.mask


def mean_gradient(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Of a batch, flat."""
    loss = nn.functional.cross_entropy(model(inputs), targets)
    return _flat(torch.autograd.grad(loss, _trained(model)))


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [one for one in model.parameters() if one.requires_grad]


def _flat(parts: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.cat([one.reshape(-1) for one in parts])


def distances(
    model: nn.Module,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    mean: torch.Tensor,
    mask: torch.Tensor,
    settings: PublishedSettings,
) -> tuple[FloatArray, FloatArray]:
    """Between mean gradients of a batch without one of the k given records, [k (k - 1) / 2]; from ``mean``, [k]."""
    parameters = _trained(model)
    losses = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
    without: list[torch.Tensor] = []
    for loss in losses:
        own = _flat(torch.autograd.grad(loss, parameters, retain_graph=True))
        without.append(_clip((settings.batch * mean - own) / (settings.batch - 1), settings)[mask])
    each = torch.stack(without).double()
    return nn.functional.pdist(each).numpy(), (each - _clip(mean, settings)[mask]).norm(dim=1).numpy()


def _clip(mean: torch.Tensor, settings: PublishedSettings) -> torch.Tensor:
    if not settings.clipped:
        return mean
    return mean / max(1.0, float(mean.square().sum().sqrt()) / settings.clip)
