"""Ghost clipping: norms without gradients by record, which the module finds in the backward pass and clips by.

Why ``get_norm_sample`` is replaced (``GhostClipping.attach``)
    Ghost clipping has no gradients by record. ``loss.backward()`` makes two passes: after the first the module computes
    norms in ``get_norm_sample`` and clipping factors from them, and the second yields the clipped gradient. Norms and
    bound of that moment count. The attribute ``per_sample_gradient_norms`` would give the norms, but not the bound,
    which a scheduler may have changed by the time of the step, nor whether there was a backward pass since the last
    step.

Why saved tensors are mended between the two passes (``_mended``)
    A record whose norm is not finite gets the clipping factor 0. That is not enough: the second pass multiplies this 0
    with what the forward pass saved for the record, and 0 times infinity is NaN for the whole batch. There are no
    gradients by record that could be left out. So values that are not finite are replaced by 1 in every tensor that
    the graph has saved; they belong to broken records only, and 0 times 1 is 0. After the step they are put back, as
    one of the tensors may be the user's batch.

Why the gradient is noted at the end of the second pass (``_note_gradient``)
    It is clipped already, and Opacus adds it to the sum as it finds it. A loop that multiplies it before the step, or a
    ``GradScaler`` that takes its scale out, would release more than the noise is for (or less). PyTorch counts changes
    of a tensor (``_version``), so it is enough to compare before it is added. Tensors that are changed by way of
    ``.data``, and hooks of parameters, which belong to the backward pass, are not seen.

What would break this: a ghost module that computes its factors without ``get_norm_sample`` (then a step is refused, as
there was no backward pass); a graph whose saved tensors cannot be reached (checkpointing, saved tensors off the
device): a gradient that is still not finite is then dropped with its whole batch.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Iterator, Sequence
from types import MethodType
from typing import Any

import torch
from opacus.grad_sample import GradSampleHooksFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

from bayesdp.opacus.clipping import FlatClipping
from bayesdp.opacus.precision import check_norms
from bayesdp.opacus.sampling import Sampling
from bayesdp.opacus.untrained import check_reached
from bayesdp.validation import InvalidInputError, refuse

_FRAMES = 4  # from get_norm_sample up to the loss's backward there are two


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
        self._mended: list[tuple[torch.Tensor, torch.Tensor]] = []
        "Tensors of the graph that were mended, each with a copy from before."
        self._left: list[tuple[weakref.ref[torch.Tensor] | None, int]] | None = None
        "The gradients that the last backward pass left, with their versions; None if that is not known."

    def attach(self) -> None:
        """Note norms and bound where the module finds the norms and uses the bound."""
        self._module.get_norm_sample = _NotedNorms(self._module, self)

    def detach(self) -> None:
        """Undo ``attach``."""
        del self._module.get_norm_sample

    def note(self, norms: torch.Tensor, clip: float) -> torch.Tensor:
        """Note a backward pass with norms [b]; return norms to clip by, infinite for records that are broken.

        Those count with norm 0, and contribute nothing. An earlier pass that no step followed is forgotten, as its
        gradient is.
        """
        self._put_back()
        self._left = None
        broken = ~torch.isfinite(norms)
        loss = _loss_under_way()
        if bool(broken.any()):
            self._mend(loss)
        if loss is not None and loss.requires_grad:
            loss.register_hook(self._at_second_pass)
        self._norms, self._clip = norms.detach().masked_fill(broken, 0), clip
        return norms.masked_fill(broken, math.inf)

    def _at_second_pass(self, _: torch.Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(self._note_gradient)

    def _note_gradient(self) -> None:
        self._left = [
            (None, 0) if grad is None else (weakref.ref(grad), self._version_of(grad))
            for grad in (parameter.grad for parameter in self.optimizer.params)
        ]

    def _version_of(self, grad: Any) -> int:
        """Return a number that grows whenever the gradient is changed in place."""
        return grad._version

    def _is_changed(self) -> bool:
        """Return whether the gradient is not what the last backward pass left."""
        if self._left is None:
            return False
        grads = [parameter.grad for parameter in self.optimizer.params]
        if len(grads) != len(self._left):
            return True
        for grad, (left, version) in zip(grads, self._left, strict=True):
            if grad is None or left is None:
                if grad is not left:
                    return True
            elif grad is not left() or self._version_of(grad) != version:
                return True
        return False

    def _mend(self, loss: torch.Tensor | None) -> None:
        """Replace what is not finite in the graph of the loss whose backward pass is under way."""
        if loss is None or loss.grad_fn is None:
            return
        weights = {parameter.data_ptr() for parameter in self._module.parameters()}
        for saved in _saved_tensors(loss.grad_fn):
            if not saved.untyped_storage().size():  # a whole weight that FSDP has given back
                continue
            if saved.data_ptr() not in weights and not bool(torch.isfinite(saved).all()):
                self._mended.append((saved, saved.clone()))
                saved.masked_fill_(~torch.isfinite(saved), 1)

    def _put_back(self) -> None:
        for tensor, before in reversed(self._mended):
            tensor.copy_(before)
        self._mended.clear()

    def batches(self) -> list[torch.Tensor]:
        """Return the norms of the last backward pass: its gradient is that of one batch, or of a part of one."""
        return [] if self._norms is None else [self._norms]

    def add_to_sum(self) -> torch.Tensor:
        """Return the norms [b] of the last backward pass; Opacus adds its gradient to the sum, clipped already.

        Raises InvalidInputError if there was no backward pass, if norms and gradient are of different passes, if
        something else was added to the gradient or it was changed since, and for adaptive ghost clipping.
        """
        if hasattr(self.optimizer, "_adjusted_noise_multiplier"):
            raise refuse("clipping", "adaptive ghost", "clipping='adaptive' without ghost: noise depends on the batch")
        if self._norms is None:
            raise refuse("loss", "no backward", "backward of the criterion that make_private returned, before the step")
        norms, self._norms = self._norms, None
        self._put_back()
        parameters = self._module.trainable_parameters
        self._check_all_clipped()
        check_norms([parameter._norm_sample for parameter in parameters])
        if passes_are_mixed(parameters):
            what = "a backward for each forward pass in training mode, and no weight that is used outside its layer"
            raise refuse("model", "a pass without backward", what)
        changed = self._is_changed()
        if norms.device.type != "cpu":  # a look at a value would wait for the device
            self._drop_broken_gradient()
        else:
            length = self._length()
            if not math.isfinite(length):
                self._drop_broken_gradient()
                length = self._length()
            self._check_length(length, norms)
        if changed:
            raise refusal_of_change()
        return norms

    def _check_all_clipped(self) -> None:
        """Raise if the optimizer trains parameters that the module does not clip: it has a list of its own."""
        clipped = {id(parameter) for parameter in self._module.trainable_parameters}
        if not all(id(parameter) in clipped for parameter in self.optimizer.params):
            expected = (
                "the parameters that were trained when make_private was called: ghost clipping does not clip those "
                "that are unfrozen or added later"
            )
            raise refuse("optimizer.param_groups", "more parameters", expected)

    def _drop_broken_gradient(self) -> None:
        """Set a gradient to 0 that is still not finite, without waiting for the device."""
        grads = self._gradients()
        if grads:
            finite = torch.stack([torch.isfinite(grad).all().to(grads[0].device) for grad in grads]).all()
            for grad in grads:
                grad.masked_fill_(~finite.to(grad.device), 0)

    def _check_length(self, length: float, norms: torch.Tensor) -> None:
        """Raise if the gradient is longer than the clipped gradients of its records can be together."""
        if length > float(norms.clamp(max=self._clip).sum()) * (1 + 1e-4) + 1e-6:
            what = "one no longer than the clipped gradients of its records together: something else was added to it"
            raise refuse("|gradient|", "too long", what)  # its length is that of training records

    def _gradients(self) -> list[torch.Tensor]:
        return [parameter.grad for parameter in self.optimizer.params if parameter.grad is not None]

    def _length(self) -> float:
        """Return the length of the whole gradient; finite only if all of it is."""
        return math.hypot(*(float(grad.norm()) for grad in self._gradients()))

    def start(self) -> list[torch.Tensor]:
        """Forget a backward pass of an earlier iteration: no step will follow it."""
        self._put_back()
        self._norms = None
        return []

    def planned_clip(self) -> float:
        """Return the optimizer's bound: the module's own is known only after a backward pass."""
        return float(self.optimizer.max_grad_norm)

    def clip(self) -> float:
        """Return the bound of the last backward pass."""
        return self._clip


class _NotedNorms:
    """A stand-in for the module's ``get_norm_sample``; copies and pickles of the module get their own method back."""

    def __init__(self, module: Any, ghost: GhostClipping) -> None:
        self._module, self._ghost = module, ghost

    def __call__(self) -> torch.Tensor:
        check_reached([hasattr(parameter, "_norm_sample") for parameter in self._module.trainable_parameters])
        return self._ghost.note(_own_method(self._module)(), float(self._module.max_grad_norm))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _own_method(memo[id(self._module)])

    def __reduce__(self) -> Any:
        return _own_method, (self._module,)


def refusal_of_change() -> InvalidInputError:
    """Return the error for a gradient that was changed between its backward pass and the step."""
    what = "the gradient as the backward pass left it: it is clipped already, and noise is for its length"
    return refuse("p.grad", "changed", what)


def _own_method(module: Any) -> Any:
    return MethodType(type(module).get_norm_sample, module)


def _loss_under_way() -> torch.Tensor | None:
    """Return the losses by record, [b], whose backward pass asks for norms just now."""
    frame = sys._getframe()
    for _ in range(_FRAMES + 4):
        if frame is None:
            return None
        caller = frame.f_locals.get("self")
        if isinstance(caller, DPTensorFastGradientClipping):
            return caller.loss_per_sample
        frame = frame.f_back
    return None


def _saved_tensors(root: Any) -> Iterator[torch.Tensor]:
    """Yield the floating-point tensors that a graph has saved for its backward pass, detached."""
    seen, nodes = {root}, [root]
    while nodes:
        node = nodes.pop()
        names = [name for name in dir(node) if name.startswith("_saved_") or name == "saved_tensors"]
        for name in names:
            value = getattr(node, name)
            for tensor in value if isinstance(value, tuple | list) else [value]:
                if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                    yield tensor.data  # by way of .data: the graph does not see that it is written to
        after = [child for child, _ in node.next_functions if child is not None and child not in seen]
        seen.update(after)
        nodes += after


def passes_are_mixed(parameters: Sequence[Any]) -> bool:
    """Return whether Opacus' norms are of several passes: one had no backward, or a weight was used off its layer."""
    return any(parameter._forward_counter or hasattr(parameter, "_current_grad_sample") for parameter in parameters)
