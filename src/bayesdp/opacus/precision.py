"""Gradients in bfloat16: what is clipped, how long a clipped gradient can be, and what cannot be bounded.

Under ``torch.autocast`` with parameters in float32, Opacus' gradients by record are in bfloat16 (unit roundoff
u = 2^-8). It converts them to float32 before it adds them up, and noise and update are float32 as well. Two things are
rounded:

The clipping factor
    The norm n_p of a record's gradient by each parameter is rounded, n_p >= (1 - u) |g_p|; so is the norm over all
    parameters, n >= (1 - u) sqrt(sum n_p^2) >= (1 - u)^2 |g|; and so is the quotient, factor <= (1 + u) C / n. (That
    Opacus adds 1e-6 to n can only make it smaller: rounding is monotone, and n is a number of the format.) A clipped
    gradient is no longer than factor |g| <= C (1 + u) / (1 - u)^2 < 1.0119 C. ``CLIPPED`` is 1 + 2^-6 > 1.0156; what is
    left between the two is for the sums of squares, which PyTorch forms in float32.

The gradient itself
    What is clipped is the rounded gradient, whose norm is computed here in float32. But the backward pass of a mean
    over a batch of n records works with numbers divided by n, and rounding depends on n: a record that joins changes
    the gradients of all others by up to about u of their length. No bound on one record's contribution covers that. It
    is the caveat "low-precision", and makes every claim an estimate. In float32 the same effect is 2^16 times smaller.

Opacus' gradients of ``grad_sample_mode="functorch"`` are those of float32 parameters, and arrive in float32: they hold
values that were rounded, but norms and factors are exact, so that the clip bound stays what it is.

Refused: trained parameters in half precision (sum and noise are then rounded by what they contain, and the noise has
few values); a step inside the autocast block (the same, for the sum); float16 (norms overflow at 65504); clipping by
layer, adaptive or ghost clipping (norms by way of products in bfloat16, which cancel, are wrong by any factor).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from bayesdp.validation import refuse

CLIPPED = 1 + 2.0**-6
"""How much longer than the clip bound a gradient in bfloat16 may be after clipping, at most."""
LOW_PRECISION = frozenset(["low-precision"])
"""The caveat of a step that rests on numbers in half precision."""
_FULL = (torch.float32, torch.float64)


def check_parameters(parameters: Sequence[Any]) -> None:
    """Raise InvalidInputError for trained parameters in half precision."""
    for parameter in parameters:
        if parameter.dtype not in _FULL:
            expected = "trained parameters in float32, with torch.autocast for the forward pass if it must be bfloat16"
            raise refuse("parameter.dtype", parameter.dtype, f"{expected}: the noise would be rounded too")


def check_norms(norms: Sequence[torch.Tensor]) -> None:
    """Raise InvalidInputError for norms in half precision, as ghost clipping finds them under autocast."""
    for norm in norms:
        if norm.dtype not in _FULL:
            raise refuse("norm.dtype", norm.dtype, "float32, or grad_sample_mode='hooks': ghost norms are not exact")


def in_bfloat16(grads: Sequence[torch.Tensor]) -> bool:
    """Return whether some gradients by record are in bfloat16.

    Raises InvalidInputError for float16, and if Opacus is about to add gradients up in half precision.
    """
    for grad in grads:
        if grad.dtype not in (*_FULL, torch.bfloat16):
            raise refuse("grad_sample.dtype", grad.dtype, "float32, or bfloat16 from torch.autocast")
    if torch.is_autocast_enabled(grads[0].device.type):
        expected = "optimizer.step() outside the autocast block: inside it gradients are added up in half precision"
        raise refuse("torch.autocast", "enabled", expected)
    return any(grad.dtype == torch.bfloat16 for grad in grads)


def has_half(module: nn.Module) -> bool:
    """Return whether a module has parameters in half precision, trained or not."""
    return any(p.is_floating_point() and p.dtype not in _FULL for p in module.parameters())


def rounded_up(norms: torch.Tensor) -> torch.Tensor:
    """Return norms in float32 at least; those that were rounded to bfloat16 are raised above what they were before."""
    return norms.float() * CLIPPED if norms.dtype == torch.bfloat16 else norms


class SeenAutocast:
    """Whether training computes under autocast, wherever it is entered: around the model, or inside of it.

    Two questions are answered by hooks, each in constant time. Layers with trained parameters say whether they computed
    under autocast: frameworks and models enter it in ``forward``, where the hook of the whole model is too early to see
    it. The whole model says what was on already when it was called, so that the audit can do the same; what its
    ``forward`` enters, that of its copy enters too. If training never calls the whole model (the ``training_step`` of
    Lightning does not), the audit does what the layers did.
    """

    def __init__(self, module: nn.Module) -> None:
        self.half = has_half(module)
        "Whether the model has parameters in half precision."
        self._device = next(module.parameters()).device.type
        self._around: torch.dtype | None = None
        "The type to which the last pass was cast from outside of the model; None without autocast."
        self._whole = False
        "Whether training has called the whole model."
        self._inside: torch.dtype | None = None
        "The type to which a layer was cast last; None as long as there was no autocast."
        trained = [each for each in module.modules() if any(p.requires_grad for p in each.parameters(recurse=False))]
        # Other layers get no hook: one of their own may make PyTorch compute them in another way.
        self._handles = [layer.register_forward_pre_hook(_Note(self.note_layer)) for layer in trained]
        self._handles.append(module.register_forward_pre_hook(_Note(self.note_pass)))

    def note_pass(self) -> None:
        """Note whether autocast is on as the whole model is called."""
        self._around, self._whole = self._now(), True

    def note_layer(self) -> None:
        """Note autocast if it is on as a layer is called."""
        if torch.is_autocast_enabled(self._device):
            self._inside = self._now()

    def _now(self) -> torch.dtype | None:
        return torch.get_autocast_dtype(self._device) if torch.is_autocast_enabled(self._device) else None

    @property
    def caveats(self) -> frozenset[str]:
        """What steps rest on: "low-precision" as soon as numbers were in half precision."""
        return LOW_PRECISION if self.half or self._around is not None or self._inside is not None else frozenset()

    def again(self) -> AbstractContextManager[Any]:
        """Return the autocast block around the last pass; one that does nothing if there was none."""
        dtype = self._around if self._whole else self._inside
        return nullcontext() if dtype is None else torch.autocast(self._device, dtype=dtype)

    def detach(self) -> None:
        """Leave the model as it was."""
        for handle in self._handles:
            handle.remove()


class _Note:
    """The hook; a copy of the model gets one that does nothing."""

    def __init__(self, note: Callable[[], None] | None) -> None:
        self._note = note

    def __call__(self, module: nn.Module, _: Any) -> None:
        if self._note is not None and module.training and torch.is_grad_enabled():
            self._note()

    def __deepcopy__(self, memo: dict[int, Any]) -> _Note:
        return _Note(None)

    def __reduce__(self) -> Any:
        return _Note, (None,)
