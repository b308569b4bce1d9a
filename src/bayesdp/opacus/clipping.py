"""How Opacus clips, read from its optimizer: the norms of a batch, the bound that was used, the noise that was added.

One class for each way. ``together`` makes one norm of the norms of a record's gradients by each parameter; the bound
and the noise are read at each step, as schedulers change them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from opacus.grad_sample import AbstractGradSampleHooks, GradSampleHooksFastGradientClipping
from opacus.optimizers import (
    AdaClipDPOptimizer,
    DPOptimizer,
    DPOptimizerFastGradientClipping,
    DPPerLayerOptimizer,
)
from opacus.utils.adaptive_clipping.adaptive_clipping_utils import DPLossFastGradientAdaptiveClipping

from bayesdp.opacus.sampling import Sampling
from bayesdp.validation import refuse

_LIKELY_EMPTY = 1e-9  # the probability of an empty batch in an epoch that adaptive clipping may have


class Flat:
    """One bound for the whole gradient."""

    caveats: tuple[str, ...] = ()
    own_bound = False
    "Whether it clips with another bound than the one that scales the noise, so that they may differ."

    def __init__(self, model: Any, optimizer: Any, sampling: Sampling) -> None:
        self.optimizer = optimizer

    def norms(self) -> torch.Tensor:
        """Of the records that are about to be added to the sum, before clipping, [b]."""
        grads: list[torch.Tensor] = self.optimizer.grad_samples
        if grads[0].dtype not in (torch.float32, torch.float64):
            raise refuse("grad_sample.dtype", grads[0].dtype, "float32 or float64: norms of less are not exact enough")
        if not len(grads[0]):
            return torch.zeros(0)
        return self.together([grad.reshape(len(grad), -1).norm(2, dim=-1) for grad in grads])

    def batches(self) -> list[torch.Tensor]:
        """Of each batch that is about to be added, something with a row for each record."""
        grads = self.optimizer.params[0].grad_sample
        return grads if isinstance(grads, list) else [grads]

    def start(self) -> list[torch.Tensor]:
        """A new iteration over the loader begins: the batches before it that will be in the next sum.

        What BatchMemoryManager signalled about batches that will not come is forgotten: Opacus would take it for the
        first batches of the new iteration.
        """
        self.optimizer._step_skip_queue.clear()
        grads = getattr(self.optimizer.params[0], "grad_sample", None)
        grads = grads if isinstance(grads, list) else [grads]
        return [grad for grad in grads if grad is not None and not hasattr(grad, "_processed")]

    @property
    def is_part(self) -> bool:
        """Whether BatchMemoryManager made it, a part of a batch at a time."""
        return bool(self.optimizer._step_skip_queue)

    def together(self, norms: Sequence[torch.Tensor]) -> torch.Tensor:
        """One norm for each record [b] from those by parameter, each [b]."""
        device = norms[0].device
        return torch.stack([one.to(device) for one in norms], dim=1).norm(2, dim=1)

    def clip(self) -> float:
        """The bound with which it clips now."""
        return float(self.optimizer.max_grad_norm)

    def noise_std(self) -> float:
        """Standard deviation of the noise on the sum."""
        return float(self.optimizer.noise_multiplier) * float(self.optimizer.max_grad_norm)

    def beside(self) -> float:
        """The norm of what else is released about each record with this noise, at right angles to its gradient."""
        return 0.0


class PerLayer(Flat):
    """A bound for each parameter; the pieces that remain make one vector together."""

    own_bound = True

    def __init__(self, model: Any, optimizer: Any, sampling: Sampling) -> None:
        super().__init__(model, optimizer, sampling)
        for parameter in optimizer.params:
            if parameter.ndim == 0:
                raise refuse("parameter.ndim", 0, "parameters with an axis: Opacus clips others by the batch together")

    def together(self, norms: Sequence[torch.Tensor]) -> torch.Tensor:
        """Of the clipped pieces."""
        bounds = self.optimizer.max_grad_norms
        return super().together([one.clamp(max=float(bound)) for one, bound in zip(norms, bounds, strict=True)])

    def clip(self) -> float:
        """Of the clipped pieces together."""
        return math.hypot(*map(float, self.optimizer.max_grad_norms))


class Adaptive(Flat):
    """The bound follows a noisy count of records that were not clipped, which is released as well.

    By Theorem 1 of Andrew et al. (2021) a record is worth 1/2 in that count. Opacus divides the count by the number of
    records that were drawn, which the theorem does not know: a caveat.
    """

    caveats = ("drawn-size-public",)

    def __init__(self, model: Any, optimizer: Any, sampling: Sampling) -> None:
        super().__init__(model, optimizer, sampling)
        if sampling.empty / (sampling.rate or 1.0) > _LIKELY_EMPTY and not sampling.draws.invents:
            raise refuse(
                "clipping",
                "adaptive",
                "batches that are never empty, on which adaptive clipping fails: larger ones, or rand_on_empty=True",
            )

    def norms(self) -> torch.Tensor:
        """Virtual steps lose what was counted."""
        if self.is_part:
            raise refuse("clipping", "adaptive", "flat clipping for BatchMemoryManager: it loses the adaptive count")
        return super().norms()

    def noise_std(self) -> float:
        """What is left of the noise for the gradient is more than the noise multiplier says."""
        multiplier, count_std = float(self.optimizer.noise_multiplier), float(self.optimizer.unclipped_num_std)
        return (multiplier**-2 - (2 * count_std) ** -2) ** -0.5 * float(self.optimizer.max_grad_norm)

    def beside(self) -> float:
        """Half a record in the count, over the noise on the count."""
        return 0.5 / float(self.optimizer.unclipped_num_std) * self.noise_std()


class Ghost(Flat):
    """Norms without gradients: the module finds them in the backward pass, and clips with a bound of its own."""

    own_bound = True

    def __init__(self, model: Any, optimizer: Any, sampling: Sampling) -> None:
        super().__init__(model, optimizer, sampling)
        if not isinstance(model, GradSampleHooksFastGradientClipping):
            raise refuse("model", model, "the model that make_private returned with grad_sample_mode='ghost'")
        self._module: Any = model
        self._used: torch.Tensor | None = model._per_sample_gradient_norms

    def batches(self) -> list[torch.Tensor]:
        """The gradient is that of the last backward pass: of one batch, or of a part of one."""
        return [self._module.per_sample_gradient_norms]

    def norms(self) -> torch.Tensor:
        """Those of the last backward pass."""
        if hasattr(self.optimizer, "_adjusted_noise_multiplier"):
            raise refuse("clipping", "adaptive ghost", "clipping='adaptive' without ghost: noise depends on the batch")
        norms: torch.Tensor | None = self._module._per_sample_gradient_norms
        if norms is None or norms is self._used:
            raise refuse("loss", "no backward", "backward of the criterion that make_private returned, before the step")
        self._used = norms
        return norms

    def start(self) -> list[torch.Tensor]:
        """A backward pass before it is not followed by a step."""
        self._used = self._module._per_sample_gradient_norms
        return super().start()

    def clip(self) -> float:
        """The module's own bound."""
        return float(self._module.max_grad_norm)


_WAYS: dict[type, type[Flat]] = {
    DPOptimizer: Flat,
    DPPerLayerOptimizer: PerLayer,
    AdaClipDPOptimizer: Adaptive,
    DPOptimizerFastGradientClipping: Ghost,
}


def clipping_of(model: Any, optimizer: Any, sampling: Sampling, loss: Any) -> Flat:
    """How this optimizer clips; refused if that is not known."""
    if not isinstance(optimizer, DPOptimizer):
        raise refuse("optimizer", type(optimizer).__name__, "the optimizer that make_private returned")
    way = _WAYS.get(type(optimizer))
    if way is None:
        raise refuse(
            "optimizer", type(optimizer).__name__, f"one of {', '.join(one.__name__ for one in _WAYS)}, on one device"
        )
    if not isinstance(model, AbstractGradSampleHooks):
        raise refuse("model", type(model).__name__, "the model that make_private returned")
    if isinstance(loss, DPLossFastGradientAdaptiveClipping):
        raise refuse("loss", type(loss).__name__, "clipping='adaptive' without ghost: here noise depends on the batch")
    return way(model, optimizer, sampling)
