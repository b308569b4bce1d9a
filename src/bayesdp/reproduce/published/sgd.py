"""DP-SGD as the authors' code does it: the mean of a batch is clipped, not its records, and accounted for by pairs.

For reproduction only. At each step noise of standard deviation sigma C is added to the mean gradient of a shuffled
batch, clipped to C as a whole (or not at all), and a random part of the weights is updated. What the accountant will
need is kept: the 28 distances between the mean gradients of that batch without its first, second, ... eighth record,
and beside them how far each of these records moves the mean.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from bayesdp.progress import Progress
from bayesdp.validation import FloatArray

_LEFT_OUT = 8


@dataclass(frozen=True, kw_only=True)
class PublishedSettings:
    """The settings of a run as published. Kept models are recognised by these fields, so their names must stay."""

    epochs: int
    batch: int
    sigma: float
    learning_rate: float
    clip: float = 1.0
    clipped: bool = True
    "Whether the mean gradient is clipped at all; the noise is sigma times ``clip`` in either case."
    mask: float = 1.0
    "The part of the weights that a step updates, from 0 to 1."
    adam: bool = False
    decay: bool = False
    "Whether the learning rate falls linearly to 0."

    @property
    def noise_std(self) -> float:
        """The standard deviation of the noise on the mean of a batch."""
        return self.sigma * self.clip

    def steps(self, records: int) -> int:
        """Return the number of steps of the whole run; an incomplete batch at the end of an epoch is dropped."""
        return self.epochs * (records // self.batch)

    def sample_rate(self, records: int) -> float:
        """Return the sampling rate that the accountant is told, as if batches were Poisson samples."""
        return self.batch / records


@dataclass(frozen=True)
class Distances:
    """What an accountant needs of every step of a run; without privacy both arrays are empty."""

    pairs: FloatArray
    "Between the mean gradients of a batch without one of eight records, [steps, 28]; as in the authors' code."
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
    track: Progress = iter,
) -> Distances:
    """Train ``model`` in place and return the distances that were seen on the way.

    ``seed`` fixes batches, masks and noise. Without ``private`` nothing is clipped, noisy or masked, and no distance is
    computed: a baseline for comparison.
    """
    generator = torch.Generator().manual_seed(seed)
    parameters = _trainable(model)
    weights = _flat(parameter.detach() for parameter in parameters)
    optimizer = _optimizer(weights, settings)
    seen: list[tuple[FloatArray, FloatArray]] = []
    batches = len(inputs) // settings.batch
    order = torch.arange(0)
    for step in track(range(settings.epochs * batches)):
        if step % batches == 0:
            order = torch.randperm(len(inputs), generator=generator)
        batch = order[step % batches * settings.batch :][: settings.batch]
        mean = mean_gradient(model, inputs[batch], targets[batch])
        if private:
            left_out, mask = batch[:_LEFT_OUT], random_mask(mean, settings, generator)
            seen.append(distances(model, inputs[left_out], targets[left_out], mean, mask, settings))
            updated = random_mask(mean, settings, generator)  # not the mask accounted for, as in the authors' code
            mean = (_clip(mean, settings) + settings.noise_std * torch.randn(len(mean), generator=generator)) * updated
        if settings.decay:
            optimizer.param_groups[0]["lr"] = settings.learning_rate * (1 - step / settings.steps(len(inputs)))
        weights.grad = mean
        optimizer.step()
        with torch.no_grad():
            parts = torch.split_with_sizes(weights, [parameter.numel() for parameter in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.copy_(part.view(parameter.shape))
    return Distances(np.array([pairs for pairs, _ in seen]), np.array([moves for _, moves in seen]))


def _optimizer(weights: torch.Tensor, settings: PublishedSettings) -> torch.optim.Optimizer:
    kind: Any = torch.optim.Adam if settings.adam else torch.optim.SGD
    return kind([weights], lr=settings.learning_rate)


def random_mask(mean: torch.Tensor, settings: PublishedSettings, generator: torch.Generator) -> torch.Tensor:
    """Return a random mask over the weights, [d], in which about the part ``settings.mask`` is true."""
    return torch.rand(len(mean), generator=generator) < settings.mask


def mean_gradient(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean gradient of a batch over all trainable weights, [d]."""
    loss = nn.functional.cross_entropy(model(inputs), targets)
    return _flat(torch.autograd.grad(loss, _trainable(model)))


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _flat(parts: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def distances(
    model: nn.Module,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    mean: torch.Tensor,
    mask: torch.Tensor,
    settings: PublishedSettings,
) -> tuple[FloatArray, FloatArray]:
    """Leave out, one at a time, k records of the batch that has the mean gradient ``mean``, and compare the means.

    Returns the distances between the k mean gradients, [k (k - 1) / 2], and from each of them to ``mean``, [k]: clipped
    as in training, and only where ``mask`` is true.
    """
    parameters = _trainable(model)
    losses = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
    without: list[torch.Tensor] = []
    for loss in losses:
        gradient = _flat(torch.autograd.grad(loss, parameters, retain_graph=True))
        without.append(_clip((settings.batch * mean - gradient) / (settings.batch - 1), settings)[mask])
    means = torch.stack(without).double()
    return nn.functional.pdist(means).numpy(), (means - _clip(mean, settings)[mask]).norm(dim=1).numpy()


def _clip(mean: torch.Tensor, settings: PublishedSettings) -> torch.Tensor:
    if not settings.clipped:
        return mean
    return mean / max(1.0, float(mean.square().sum().sqrt()) / settings.clip)
