"""How much a training loop multiplies the loss before its backward pass: by a GradScaler, or by a weight of its own.

What is clipped is the gradient of what the loop calls ``backward`` on; the audit measures the gradient of the loss that
was given to ``watch``. If the loop multiplies that loss by s, a gradient is s times as long before it is clipped, and
so would that of an audit record have been. The derivative of the final loss by the output of the criterion is exactly
this s, and autograd hands it to a hook of that output.

Why the sum over the outputs of one backward pass, and the largest of several passes
    If a loop adds up several losses of a batch, the gradient of a record is no longer than the sum of the gradients of
    each, |s_1| + |s_2| times that of one if they are alike. Several backward passes before a step belong to batches, or
    parts of one, that are clipped each by themselves.

Why norms are never made smaller
    A loss that is divided (by the number of batches that are accumulated, say) gives shorter gradients, but other terms
    of the loss, which nobody sees here, may make up for it. Norms stay what was measured.

Why the factor is compared with the number of records (``check_sizes``)
    A loop that adds up losses where Opacus believes that it averages, or divides such a sum by a fixed number, scales
    every gradient by the size of the batch: whoever joins then changes the gradients of all others before they are
    clipped, which no epsilon covers. The factor is proportional to the size, or to its inverse if it is the other way
    round; three sizes tell that from a factor that changes for other reasons.

What this does not see: terms of the loss beside the criterion, and a loss that is no module, or not the one that the
loop calls, unless the loop gives it to ``Watch.note_loss``. The caveat "given-loss" then says that claims rest on the
loss that was given.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import nn

from bayesdp.opacus.audit_loss import BatchLoss, returned_loss
from bayesdp.opacus.passes import PassHook
from bayesdp.validation import refuse

_EXACT = 1 + 1e-6  # a factor of 1 may come back with an error of float32
_SIZES = 3  # sizes of batches, after which it is known whether the factor follows them
_AUDITS = ContextVar("audits", default=0)
"""How many audits are under way in this thread, of any run: several runs may follow one criterion."""


@contextmanager
def audit_under_way() -> Generator[None]:
    """Let no run count what calls a criterion meanwhile: it is not training."""
    before = _AUDITS.set(_AUDITS.get() + 1)
    try:
        yield
    finally:
        _AUDITS.reset(before)


class LossScale:
    """The factor between the loss that was given and the one that is trained with, since the last step.

    ``loss`` is what was given to ``watch``: a criterion that is a module is followed, also inside of the one for ghost
    clipping; without one, the loss that the model returns. For a ``BatchLoss`` its framework calls ``note_batch``, and
    for a function the user may.
    """

    def __init__(self, loss: Any, model: Any) -> None:
        self._model = model
        self._is_mean = model.loss_reduction == "mean"
        self._missed = False
        "Whether a step was taken without the loss that was given."
        self._reached = False
        "Whether a backward pass went through the loss since the last step."
        self._open: torch.Tensor | None = None
        "The sum over the outputs that the present backward pass has reached."
        self._largest: torch.Tensor | None = None
        criterion = loss.criterion if isinstance(loss, DPLossFastGradientClipping) else loss
        self._by_size: dict[int, float] | None = {}
        "Factors by the number of records in a batch, until it is known that they do not follow it."
        self._observed = loss is None or isinstance(criterion, nn.Module | BatchLoss)
        "Whether a step with records that is taken without the loss is to be noticed at all."
        self._handle: Any = None
        if isinstance(criterion, nn.Module):
            self._handle = criterion.register_forward_hook(_LossHook(self, of_model=False))
        elif loss is None:
            self._handle = model._module.register_forward_hook(_LossHook(self, of_model=True))

    def detach(self) -> None:
        """Leave the criterion, or the model, as it was."""
        if self._handle is not None:
            self._handle.remove()

    def note(self, loss: Any) -> None:
        """Note a loss of a batch as the criterion returned it, before anything is done to it; no value is changed."""
        if isinstance(loss, torch.Tensor) and loss.requires_grad and not _AUDITS.get():
            loss.register_hook(self._reach)

    def note_batch(self, loss: Any) -> None:
        """Note a loss that somebody else has computed as the audit does; one that is followed anyway counts once."""
        if self._handle is None:
            self._observed = True
            self.note(loss)

    def _reach(self, derivative: torch.Tensor) -> None:
        if not getattr(self._model, "hooks_enabled", True):
            return  # the second pass of ghost clipping, whose losses are weighted by clipping factors
        scale = derivative.detach().abs().double()
        if scale.ndim:  # the losses of records, of which ghost clipping takes the mean or the sum
            scale = scale.max() * (scale.numel() if self._is_mean else 1) if scale.numel() else scale.new_ones(())
        torch.autograd.Variable._execution_engine.queue_callback(self._end_of_pass)
        self._open = scale if self._open is None else self._open + scale.to(self._open.device)

    def _end_of_pass(self) -> None:
        scale, self._open = self._open, None
        if scale is not None:
            scale = torch.where(scale > 0, scale, torch.inf)  # nothing, or not a number, says nothing
            self._largest = scale if self._largest is None else torch.maximum(self._largest, scale)
            self._reached = True

    def applied_to(self, norms: torch.Tensor, bound: float) -> torch.Tensor:
        """Return norms [m] of gradients of the given loss as those of the loss that is trained with.

        They are never smaller; ``bound`` is what they are if the factor is 0 or not finite.
        """
        if self._largest is None:
            return norms
        if self._largest.device.type == "cpu" and float(self._largest) <= _EXACT:  # a GPU would have to be waited for
            return norms
        factor = self._largest.to(norms.device)
        factor = torch.where(factor <= _EXACT, 1.0, factor)
        return torch.where(torch.isfinite(factor), norms * factor, bound).to(norms.dtype)

    def check_sizes(self, records: int | None) -> None:
        """Raise InvalidInputError if the factor of steps has followed the number of ``records`` in their batches.

        None for a step of several batches. It waits for the device at the first few steps only.
        """
        if self._by_size is None or not records or self._largest is None:
            return
        factor = float(self._largest)
        if math.isfinite(factor):
            self._by_size.setdefault(records, factor)
        if len(self._by_size) < _SIZES:
            return
        for power in (1, -1):
            ratios = [factor * size**-power for size, factor in self._by_size.items()]
            if max(ratios) <= min(ratios) * (1 + 1e-4):
                expected = (
                    "a loss that is reduced as make_private was told (loss_reduction), 'mean' or 'sum': the loop's own "
                    "is scaled by the size of the batch, so that one record changes the gradients of others"
                )
                raise refuse("loss", "scaled by len(batch)", expected)
        self._by_size = None

    def missed(self, *, empty: bool) -> bool:
        """Return whether claims rest on the given loss because training did not use it, at this step or an earlier one.

        ``empty``: whether the step has no records; loops may leave out the loss of an empty batch.
        """
        self._missed |= not self._reached and not (self._observed and empty)
        return self._missed

    def forget(self) -> None:
        """Begin anew: a step was recorded."""
        self._reached, self._open, self._largest = False, None, None


class _LossHook(PassHook):
    """The forward hook of a criterion, or of a model that returns its loss; a copy of them gets one without effect."""

    def __init__(self, scale: LossScale, *, of_model: bool) -> None:
        self._scale, self._of_model = scale, of_model

    def __call__(self, module: nn.Module, _: Any, output: Any) -> None:
        """Note the loss, if gradients may follow it."""
        if torch.is_grad_enabled():
            self._scale.note(returned_loss(output) if self._of_model else output)
