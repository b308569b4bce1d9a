"""How Opacus clips, read from its optimizer: the norms of a batch, the bound that was used, the noise that was added.

One class for each way. ``together`` makes one norm of the norms of a record's gradients by each parameter; the bound
and the noise are read at each step, as schedulers change them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MethodType
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
from torch.overrides import TorchFunctionMode

from bayesdp.opacus.sampling import Sampling
from bayesdp.validation import refuse

_LIKELY_EMPTY = 1e-9  # the probability of an empty batch in an epoch that adaptive clipping may have


class Flat:
    """One bound for the whole gradient."""

    caveats: frozenset[str] = frozenset()
    own_bound = False
    "Whether it clips with another bound than the one that scales the noise, so that they may differ."
    in_parts = True
    "Whether a sum may be made of several physical batches."

    def __init__(self, model: Any, optimizer: Any, sampling: Sampling) -> None:
        self.optimizer = optimizer
        self._clip_and_accumulate = optimizer.clip_and_accumulate
        self._sees_norms: bool | None = None

    def add_to_sum(self) -> torch.Tensor:
        """Let Opacus clip a batch and add it to the sum; norms of its records before clipping, [b].

        They are those that Opacus computes itself on the way, after a look at the first batch whether that is so.
        """
        grads: list[torch.Tensor] = self.optimizer.grad_samples
        _check_exact(grads)
        with _SeenNorms() as seen:
            self._clip_and_accumulate()
        if not len(grads[0]):
            return torch.zeros(0)
        norms = self.together(found) if (found := seen.of(grads)) else None
        if norms is None or not self._sees_norms:
            own = self.together([grad.reshape(len(grad), -1).norm(2, dim=-1) for grad in grads])
            if self._sees_norms is None:
                self._sees_norms = norms is not None and torch.allclose(norms, own, rtol=1e-5, equal_nan=True)
            return own
        return norms

    def batches(self) -> list[torch.Tensor]:
        """Of each batch that is about to be added, something with a row for each record."""
        grads = getattr(self.optimizer.params[0], "grad_sample", None)
        return grads if isinstance(grads, list) else [] if grads is None else [grads]

    def start(self) -> list[torch.Tensor]:
        """A new iteration over the loader begins: the batches before it that may be in the next sum."""
        return [grad for grad in self.batches() if not hasattr(grad, "_processed")]

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

    def attach(self) -> None:
        """From now on Opacus clips when ``add_to_sum`` says so, a moment earlier than it would."""
        self.optimizer.clip_and_accumulate = lambda: None

    def release(self) -> None:
        """Leave everything as it was."""
        del self.optimizer.clip_and_accumulate


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

    caveats = frozenset({"drawn-size-public"})
    in_parts = False  # the count is lost between them

    def __init__(self, model: Any, optimizer: Any, sampling: Sampling) -> None:
        super().__init__(model, optimizer, sampling)
        if sampling.empty / (sampling.rate or 1.0) > _LIKELY_EMPTY and not sampling.draws.invents:
            raise refuse(
                "clipping",
                "adaptive",
                "batches that are never empty, on which adaptive clipping fails: larger ones, or rand_on_empty=True",
            )

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
        self._norms: torch.Tensor | None = None
        self._clip = math.nan

    def attach(self) -> None:
        """Note norms and bound where the module finds the one and uses the other."""
        self._module.get_norm_sample = _NotedNorms(self._module, self)

    def release(self) -> None:
        """Leave the module as it was."""
        del self._module.get_norm_sample

    def note(self, norms: torch.Tensor, clip: float) -> None:
        """A backward pass; one before it that was not followed by a step is forgotten, as its gradient is."""
        self._norms, self._clip = norms.detach(), clip

    def batches(self) -> list[torch.Tensor]:
        """The gradient is that of the last backward pass: of one batch, or of a part of one."""
        return [] if self._norms is None else [self._norms]

    def add_to_sum(self) -> torch.Tensor:
        """Norms of the last backward pass; Opacus adds its gradient to the sum without clipping anything."""
        if hasattr(self.optimizer, "_adjusted_noise_multiplier"):
            raise refuse("clipping", "adaptive ghost", "clipping='adaptive' without ghost: noise depends on the batch")
        if self._norms is None:
            raise refuse("loss", "no backward", "backward of the criterion that make_private returned, before the step")
        norms, self._norms = self._norms, None
        parameters = self._module.trainable_parameters
        _check_exact([one._norm_sample for one in parameters])
        if passes_are_mixed(parameters):
            what = "a backward for each forward pass in training mode, and no weight that is used outside its layer"
            raise refuse("model", "a pass without backward", what)
        if norms.device.type == "cpu":  # elsewhere it would have to be waited for
            self._check_length(norms)
        return norms

    def _check_length(self, norms: torch.Tensor) -> None:
        """That the gradient is no longer than those of its records: something else may have been added to it."""
        length = math.hypot(*(float(one.grad.norm()) for one in self.optimizer.params if one.grad is not None))
        if length > float(norms.clamp(max=self._clip).sum()) * (1 + 1e-4) + 1e-6:
            what = "one no longer than the clipped gradients of its records together: something else was added to it"
            raise refuse("|gradient|", length, what)

    def start(self) -> list[torch.Tensor]:
        """A backward pass before it is not followed by a step."""
        self._norms = None
        return []

    def clip(self) -> float:
        """That of the last backward pass."""
        return self._clip


class _SeenNorms(TorchFunctionMode):
    """Norms that are computed meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self._norms: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.Tensor.norm:
            self._norms.append(result)
        return result

    def of(self, grads: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Those of gradients by parameter, each [b], if they are what came first."""
        first = self._norms[: len(grads)]
        return first if [tuple(one.shape) for one in first] == [(len(one),) for one in grads] else []


class _NotedNorms:
    """In place of the module's ``get_norm_sample``; copies and pickles of the module have their own again."""

    def __init__(self, module: Any, ghost: Ghost) -> None:
        self._module, self._ghost = module, ghost

    def __call__(self) -> torch.Tensor:
        norms = _own_method(self._module)()
        self._ghost.note(norms, float(self._module.max_grad_norm))
        return norms

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _own_method(memo[id(self._module)])

    def __reduce__(self) -> Any:
        return _own_method, (self._module,)


def _own_method(module: Any) -> Any:
    return MethodType(type(module).get_norm_sample, module)


def passes_are_mixed(parameters: Sequence[Any]) -> bool:
    """Whether the norms that Opacus found are of several passes: one had no backward, or a weight left its layer."""
    return any(one._forward_counter or hasattr(one, "_current_grad_sample") for one in parameters)


def _check_exact(tensors: Sequence[torch.Tensor]) -> None:
    for one in tensors:
        if one.dtype not in (torch.float32, torch.float64):
            raise refuse("grad_sample.dtype", one.dtype, "float32 or float64: norms of less are not exact enough")


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
