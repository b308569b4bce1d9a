"""Draw noise and batches for Opacus from a cryptographic generator: what its secure mode needs another package for.

Whoever can predict the generator of the noise can subtract it, and whoever can predict which records were drawn takes
away the amplification that sampling gives. PyTorch's own generators are fast, not unpredictable.

Why ``add_noise`` is replaced (``SecureNoise``)
    Opacus draws noise in ``DPOptimizer.add_noise``, by ``torch.normal`` from ``optimizer.generator``. A torch.Generator
    cannot be given another source of random bits from Python; for ``secure_mode=True`` Opacus asks the package
    torchcsprng for one. A subclass of the optimizer would not help: optimizers come ready-made from ``make_private``,
    and ``watch`` knows how an optimizer clips by its exact class. So the method is replaced on the one optimizer, and
    does what Opacus' does: it adds noise with standard deviation noise_multiplier * max_grad_norm to ``summed_grad``,
    writes the result to ``grad``, and marks the sum as used. The noise is added in float64 and rounded once, to the
    parameter's type.

What would break it: an optimizer that scales its noise otherwise (adaptive clipping does, and is refused here), or an
Opacus that reads the noisy sum from another place than ``grad``. tests/with_opacus/test_secure.py would tell.
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
    """Poisson sampling from ``randomness``, for ``DataLoader(dataset, batch_sampler=SecureSampler(...))``.

    Each of ``num_samples`` records is in each of ``steps`` batches with probability ``sample_rate``, independently.
    ``first`` is the number of the first step: a seeded run that is resumed draws what it would have drawn without the
    interruption. ``caveats`` names what the steps rest on besides (``Ledger.step``). Raises InvalidInputError for
    numbers out of range.
    """

    def __init__(
        self,
        *,
        num_samples: int,
        sample_rate: float,
        steps: int,
        randomness: Randomness,
        first: int = 0,
        caveats: Sequence[str] = (),
    ) -> None:
        super().__init__(
            num_samples=validation.count("num_samples", num_samples, minimum=1),
            sample_rate=validation.sample_rate(sample_rate),
            steps=validation.count("steps", steps, minimum=0),
        )
        self.randomness = randomness
        self.caveats = frozenset(caveats) | frozenset(["seeded"] * randomness.reproducible)
        self._next = first

    @property
    def drawn_rate(self) -> float:
        """The probability with which a record is drawn: at most the sampling rate, and less by 2^-32 at most."""
        return float(self.sample_rate)

    def __iter__(self) -> Generator[list[int]]:
        """Yield the indices of each batch; another pass continues with further steps."""
        for _ in range(self.steps):
            step, self._next = self._next, self._next + 1
            yield poisson_batch(self.randomness, self.num_samples, self.sample_rate, step=step).tolist()


class SecureNoise:
    """Noise from ``randomness`` for an optimizer of Opacus; attach it before ``watch``.

    ``step`` is the number of the next step. ``masks`` may hold a tensor of zeros and ones for each parameter: noise is
    then added only where the mask is 1, for gradients that are 0 elsewhere. Raises InvalidInputError for optimizers
    that scale noise in another way (adaptive clipping) or run on several devices.
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
        """Return what is attached to an optimizer; None if Opacus' own noise is used."""
        owner = getattr(optimizer.add_noise, "__self__", None)
        return owner if isinstance(owner, SecureNoise) else None

    def _add_noise(self) -> None:
        """Set ``grad`` of each parameter to the sum with noise on it, in place of Opacus' method of this name."""
        optimizer = self._optimizer
        std = float(optimizer.noise_multiplier) * float(optimizer.max_grad_norm)
        sizes = [parameter.numel() for parameter in optimizer.params]
        noise = torch.from_numpy(gaussian(self.randomness, (sum(sizes),), std, step=self.step)).split(sizes)
        for number, (parameter, its_noise) in enumerate(zip(optimizer.params, noise, strict=True)):
            total = parameter.summed_grad
            _check_processed_flag(total)
            noisy = total.double() + its_noise.view(total.shape).to(total.device)
            mask = 1 if self.masks is None else self.masks[number]
            parameter.grad = (noisy.to(parameter.dtype) * mask).view_as(parameter)
            _mark_as_processed(total)
        self.step += 1
