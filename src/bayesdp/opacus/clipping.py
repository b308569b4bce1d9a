"""Read from Opacus' optimizer how it clips: the norms of a batch, the bound it used, the noise it adds.

There is a class for each way of clipping. Bound and noise are read anew at each step, because schedulers change them.

Why Opacus' clip is replaced by a no-op (``FlatClipping.attach``)
    ``DPOptimizer.pre_step`` clips, adds the batch to ``summed_grad``, draws noise and calls the step hook, all in one
    go, and the hook can only say no by raising. Whether a sum may be released must be decided when the sum is complete
    and before noise is drawn, and a run that has reached its budget must end quietly. So ``add_to_sum`` calls Opacus'
    own ``clip_and_accumulate`` a moment earlier, and ``pre_step`` then finds nothing left to clip. Our own version of
    ``pre_step`` would do as well, but would have to follow every version of Opacus and each of its subclasses (adaptive
    clipping updates its bound at the end of ``pre_step``).

Why norms are picked up while Opacus computes them (``_SeenNorms``)
    The norms are local variables of ``clip_and_accumulate``. Computing them once more means reading all gradients of
    the batch again, as many bytes as clipping itself reads. A TorchFunctionMode sees every call of ``Tensor.norm`` in
    between, and the first results (for each parameter, a vector with an entry for each record) are the norms we need.
    That is an assumption about somebody else's code, so it is tested: on the first batch we compute the norms ourselves
    as well, and go on doing so if they differ.

Why ``get_norm_sample`` is replaced in ghost mode (``GhostClipping.attach``)
    Ghost clipping has no gradients by record. ``loss.backward()`` makes two passes: after the first the module computes
    norms in ``get_norm_sample`` and clipping factors from them, and the second yields the clipped gradient. Norms and
    bound of that moment count. The attribute ``per_sample_gradient_norms`` would give the norms, but not the bound,
    which a scheduler may have changed by the time of the step, nor whether there was a backward pass since the last
    step.

What would break this: norms by another function than ``Tensor.norm`` (then they are computed twice, and stay right);
``pre_step`` that clips by another method than ``clip_and_accumulate`` (a sum would then hold its batch twice: the
comparison with a hand-written loop, tests/with_opacus/test_counts.py, would tell); a ghost module that computes its
factors without ``get_norm_sample`` (then a step is refused, as there was no backward pass).
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


class FlatClipping:
    """One bound for the whole gradient. Other ways of clipping derive from it."""

    caveats: frozenset[str] = frozenset()
    own_bound = False
    "Whether gradients are clipped with another bound than the one that scales the noise, so that the two may differ."
    in_parts = True
    "Whether a sum may be made of several physical batches."
    repeatable = True
    "Whether a batch may be clipped again, because clipping it changes nothing but the sum."

    def __init__(self, model: Any, optimizer: Any, sampling: Sampling) -> None:
        self.optimizer = optimizer
        self._clip_and_accumulate = optimizer.clip_and_accumulate
        self._sees_norms: bool | None = None
        "Whether the norms that Opacus computes while it clips are those we need; None before the first batch."

    def add_to_sum(self) -> torch.Tensor:
        """Let Opacus clip a batch and add it to the sum; return norms of its records before clipping, [b].

        A record whose gradient is not finite, or too long for its norm to be, contributes nothing and has norm 0: one
        that broke the sum, or stopped the run, would be known to be there. (On a GPU this would have to wait for the
        device: there the next step refuses it.) Raises InvalidInputError for gradients in half precision.
        """
        before = [None if p.summed_grad is None else p.summed_grad.clone() for p in self.optimizer.params]
        norms = self._clip_batch()
        if norms.device.type != "cpu" or not self.repeatable or bool(torch.isfinite(norms).all()):
            return norms
        broken = ~torch.isfinite(norms)
        for parameter, summed in zip(self.optimizer.params, before, strict=True):
            parameter.summed_grad = summed
            given = parameter.grad_sample if isinstance(parameter.grad_sample, list) else [parameter.grad_sample]
            for grad, rows in zip(given, broken.split([len(grad) for grad in given]), strict=True):
                grad[rows] = 0
                del grad._processed
        self._clip_batch()
        return torch.where(broken, 0.0, norms)

    def _clip_batch(self) -> torch.Tensor:
        grads: list[torch.Tensor] = self.optimizer.grad_samples
        _check_precision(grads)
        with _SeenNorms() as seen:
            self._clip_and_accumulate()
        if not len(grads[0]):
            return torch.zeros(0)
        norms = self.together(by_parameter) if (by_parameter := seen.of(grads)) else None
        if norms is None or not self._sees_norms:
            own = self.together([grad.reshape(len(grad), -1).norm(2, dim=-1) for grad in grads])
            if self._sees_norms is None:
                self._sees_norms = norms is not None and torch.allclose(norms, own, rtol=1e-5, equal_nan=True)
            return own
        return norms

    def batches(self) -> list[torch.Tensor]:
        """Return, for each batch that is about to be added to the sum, a tensor with a row for each record."""
        grads = getattr(self.optimizer.params[0], "grad_sample", None)
        return grads if isinstance(grads, list) else [] if grads is None else [grads]

    def start(self) -> list[torch.Tensor]:
        """Return the batches of earlier iterations that may be in the next sum, when a new iteration begins."""
        return [grad for grad in self.batches() if not hasattr(grad, "_processed")]

    def together(self, norms: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return one norm for each record, [b], from the norms of its gradients by parameter, each [b]."""
        device = norms[0].device
        return torch.stack([by_parameter.to(device) for by_parameter in norms], dim=1).norm(2, dim=1)

    def planned_clip(self) -> float:
        """Return the clip bound of the steps to come, as it is set now."""
        return self.clip()

    def clip(self) -> float:
        """Return the bound with which gradients are clipped now."""
        return float(self.optimizer.max_grad_norm)

    def noise_std(self) -> float:
        """Return the standard deviation of the noise on the sum."""
        return float(self.optimizer.noise_multiplier) * float(self.optimizer.max_grad_norm)

    def extra_norm(self) -> float:
        """Return the norm of what else is released about each record with this noise, orthogonal to its gradient."""
        return 0.0

    def attach(self) -> None:
        """Make Opacus clip when ``add_to_sum`` is called, a moment earlier than it would."""
        self.optimizer.clip_and_accumulate = lambda: None

    def detach(self) -> None:
        """Undo ``attach``."""
        del self.optimizer.clip_and_accumulate


class PerLayerClipping(FlatClipping):
    """A bound for each parameter. The clipped pieces form one vector, whose norm and bound are accounted."""

    own_bound = True

    def __init__(self, model: Any, optimizer: Any, sampling: Sampling) -> None:
        super().__init__(model, optimizer, sampling)
        for parameter in optimizer.params:
            if parameter.ndim == 0:
                raise refuse("parameter.ndim", 0, "parameters with an axis: Opacus clips others by the batch together")

    def together(self, norms: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the norm of the clipped pieces of each record, [b]."""
        bounds = self.optimizer.max_grad_norms
        clipped = [piece.clamp(max=float(bound)) for piece, bound in zip(norms, bounds, strict=True)]
        return super().together(clipped)

    def clip(self) -> float:
        """Return the bound of the clipped pieces together."""
        return math.hypot(*map(float, self.optimizer.max_grad_norms))


class AdaptiveClipping(FlatClipping):
    """A bound that follows a noisy count of records that were not clipped, which is released as well.

    By Theorem 1 of Andrew et al. (2021, arXiv:1905.03871) a record is worth 1/2 in that count. Opacus divides the count
    by the number of records that were drawn, which the theorem does not cover: a caveat.
    """

    caveats = frozenset({"drawn-size-public"})
    repeatable = False
    in_parts = False  # the count is lost between them

    def __init__(self, model: Any, optimizer: Any, sampling: Sampling) -> None:
        super().__init__(model, optimizer, sampling)
        if sampling.empty_probability / (sampling.rate or 1.0) > _LIKELY_EMPTY and not sampling.draws.invents:
            raise refuse(
                "clipping",
                "adaptive",
                "batches that are never empty, on which adaptive clipping fails: larger ones, or rand_on_empty=True",
            )

    def noise_std(self) -> float:
        """Return the noise on the gradient: more than the noise multiplier says, to pay for the count."""
        multiplier, count_std = float(self.optimizer.noise_multiplier), float(self.optimizer.unclipped_num_std)
        return (multiplier**-2 - (2 * count_std) ** -2) ** -0.5 * float(self.optimizer.max_grad_norm)

    def extra_norm(self) -> float:
        """Return 1/2, what a record is worth in the count, scaled from the noise of the count to ``noise_std``."""
        return 0.5 / float(self.optimizer.unclipped_num_std) * self.noise_std()


class GhostClipping(FlatClipping):
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
        """Note norms and bound where the module finds the norms and uses the bound."""
        self._module.get_norm_sample = _NotedNorms(self._module, self)

    def detach(self) -> None:
        """Undo ``attach``."""
        del self._module.get_norm_sample

    def note(self, norms: torch.Tensor, clip: float) -> None:
        """Note a backward pass. An earlier pass that no step followed is forgotten, as its gradient is."""
        self._norms, self._clip = norms.detach(), clip

    def batches(self) -> list[torch.Tensor]:
        """Return the norms of the last backward pass: its gradient is that of one batch, or of a part of one."""
        return [] if self._norms is None else [self._norms]

    def add_to_sum(self) -> torch.Tensor:
        """Return the norms [b] of the last backward pass; Opacus adds its gradient to the sum, clipped already.

        Raises InvalidInputError if there was no backward pass, if norms and gradient are of different passes, if
        something else was added to the gradient, and for adaptive ghost clipping.
        """
        if hasattr(self.optimizer, "_adjusted_noise_multiplier"):
            raise refuse("clipping", "adaptive ghost", "clipping='adaptive' without ghost: noise depends on the batch")
        if self._norms is None:
            raise refuse("loss", "no backward", "backward of the criterion that make_private returned, before the step")
        norms, self._norms = self._norms, None
        parameters = self._module.trainable_parameters
        _check_precision([parameter._norm_sample for parameter in parameters])
        if passes_are_mixed(parameters):
            what = "a backward for each forward pass in training mode, and no weight that is used outside its layer"
            raise refuse("model", "a pass without backward", what)
        if norms.device.type == "cpu":  # elsewhere the step would have to wait for it
            self._check_length(norms)
        return norms

    def _check_length(self, norms: torch.Tensor) -> None:
        """Raise if the gradient is longer than the clipped gradients of its records can be together."""
        grads = [parameter.grad for parameter in self.optimizer.params if parameter.grad is not None]
        length = math.hypot(*(float(grad.norm()) for grad in grads))
        if length > float(norms.clamp(max=self._clip).sum()) * (1 + 1e-4) + 1e-6:
            what = "one no longer than the clipped gradients of its records together: something else was added to it"
            raise refuse("|gradient|", length, what)

    def start(self) -> list[torch.Tensor]:
        """Forget a backward pass of an earlier iteration: no step will follow it."""
        self._norms = None
        return []

    def planned_clip(self) -> float:
        """Return the optimizer's bound: the module's own is known only after a backward pass."""
        return float(self.optimizer.max_grad_norm)

    def clip(self) -> float:
        """Return the bound of the last backward pass."""
        return self._clip


class _SeenNorms(TorchFunctionMode):
    """The results of ``Tensor.norm`` while this mode is active."""

    def __init__(self) -> None:
        super().__init__()
        self._norms: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.Tensor.norm:
            self._norms.append(result)
        return result

    def of(self, grads: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the norms by parameter, each [b], if the first results have their shapes; else an empty list."""
        first = self._norms[: len(grads)]
        return first if [tuple(norm.shape) for norm in first] == [(len(grad),) for grad in grads] else []


class _NotedNorms:
    """A stand-in for the module's ``get_norm_sample``; copies and pickles of the module get their own method back."""

    def __init__(self, module: Any, ghost: GhostClipping) -> None:
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
    """Return whether Opacus' norms are of several passes: one had no backward, or a weight was used off its layer."""
    return any(parameter._forward_counter or hasattr(parameter, "_current_grad_sample") for parameter in parameters)


def _check_precision(tensors: Sequence[torch.Tensor]) -> None:
    for tensor in tensors:
        if tensor.dtype not in (torch.float32, torch.float64):
            raise refuse("grad_sample.dtype", tensor.dtype, "float32 or float64: norms of less are not exact enough")


_CLIPPING: dict[type, type[FlatClipping]] = {
    DPOptimizer: FlatClipping,
    DPPerLayerOptimizer: PerLayerClipping,
    AdaClipDPOptimizer: AdaptiveClipping,
    DPOptimizerFastGradientClipping: GhostClipping,
}


def clipping_of(model: Any, optimizer: Any, sampling: Sampling, loss: Any) -> FlatClipping:
    """Return how an optimizer clips, by its exact class; raise InvalidInputError if that is not known."""
    if not isinstance(optimizer, DPOptimizer):
        raise refuse("optimizer", type(optimizer).__name__, "the optimizer that make_private returned")
    clipping = _CLIPPING.get(type(optimizer))
    if clipping is None:
        known = ", ".join(known.__name__ for known in _CLIPPING)
        raise refuse("optimizer", type(optimizer).__name__, f"one of {known}, on one device")
    if not isinstance(model, AbstractGradSampleHooks):
        raise refuse("model", type(model).__name__, "the model that make_private returned")
    if isinstance(loss, DPLossFastGradientAdaptiveClipping):
        raise refuse("loss", type(loss).__name__, "clipping='adaptive' without ghost: here noise depends on the batch")
    return clipping(model, optimizer, sampling)
