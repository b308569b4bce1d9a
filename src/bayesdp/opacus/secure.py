"""Noise and batches from a cryptographic generator, for Opacus: what its secure mode needs another package for.

Whoever can predict the generator of the noise can subtract it, and whoever can predict which records were drawn has no
use for the amplification that sampling gives. PyTorch's own generators are fast, not unpredictable.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import torch
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping, DPPerLayerOptimizer
from opacus.optimizers.optimizer import _check_processed_flag, _mark_as_processed
from opacus.utils.uniform_sampler import UniformWithReplacementSampler

from bayesdp import validation
from bayesdp.randomness import Randomness, gaussian, poisson_batch
from bayesdp.validation import refuse


class SecureSampler(UniformWithReplacementSampler):
    """Poisson sampling, for ``DataLoader(dataset, batch_sampler=SecureSampler(...))``: ``steps`` batches.

    ``first`` is the number of the first step: a seeded run that goes on draws what it would have drawn.
    """

    def __init__(
        self, *, num_samples: int, sample_rate: float, steps: int, randomness: Randomness, first: int = 0
    ) -> None:
        super().__init__(
            num_samples=validation.count("num_samples", num_samples, minimum=1),
            sample_rate=validation.sample_rate(sample_rate),
            steps=validation.count("steps", steps, minimum=0),
        )
        self.randomness = randomness
        self._next = first

    def __iter__(self) -> Generator[list[int]]:
        """Indices of each batch; another pass goes on with further steps."""
        for _ in range(self.steps):
            step, self._next = self._next, self._next + 1
            yield poisson_batch(self.randomness, self.num_samples, self.sample_rate, step=step).tolist()


class SecureNoise:
    """The noise of an optimizer of Opacus, drawn by ``randomness``; attach it before ``watch``.

    ``step`` is the number of the next step. ``masks`` may have a tensor of zeros and ones for each parameter: noise is
    then added where the mask is 1 only, for gradients that are 0 elsewhere.
    """

    def __init__(self, optimizer: Any, randomness: Randomness, *, step: int = 0) -> None:
        if type(optimizer) not in (DPOptimizer, DPOptimizerFastGradientClipping, DPPerLayerOptimizer):
            raise refuse("optimizer", type(optimizer).__name__, "one of Opacus with flat or per-layer clipping")
        self.step = step
        self.masks: Sequence[torch.Tensor] | None = None
        self.randomness = randomness
        optimizer.add_noise = self._add_noise
        self._optimizer = optimizer

    @staticmethod
    def of(optimizer: Any) -> SecureNoise | None:
        """The one that is attached to an optimizer."""
        found = getattr(optimizer.add_noise, "__self__", None)
        return found if isinstance(found, SecureNoise) else None

    def _add_noise(self) -> None:
        """In place of Opacus' method of this name: ``grad`` is the sum with noise on it."""
        optimizer = self._optimizer
        std = float(optimizer.noise_multiplier) * float(optimizer.max_grad_norm)
        sizes = [one.numel() for one in optimizer.params]
        noise = torch.from_numpy(gaussian(self.randomness, (sum(sizes),), std, step=self.step)).split(sizes)
        for number, (parameter, of_parameter) in enumerate(zip(optimizer.params, noise, strict=True)):
            total = parameter.summed_grad
            _check_processed_flag(total)
            noisy = total.double() + of_parameter.view(total.shape).to(total.device)
            mask = 1 if self.masks is None else self.masks[number]
            parameter.grad = (noisy.to(parameter.dtype) * mask).view_as(parameter)
            _mark_as_processed(total)
        self.step += 1
