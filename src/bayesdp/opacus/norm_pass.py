"""One forward and one backward pass that find the norms of the gradients of single records, and nothing else.

Why Opacus' own hooks are not used where it can be helped
    They serve training: autograd forms the gradient of the batch by every weight beside what the hooks compute, which
    nobody needs here; every use of a recurrent layer adds to gradients by record as large as the weights; PyTorch's
    full backward hooks put a function of their own around each layer. Here no parameter needs a gradient. The hook of a
    layer keeps what goes in (``_Use``) and asks autograd for the gradient by what comes out; once all uses of the layer
    have received theirs, ``layer_norms`` computes the norms, and both are dropped.

Why outputs may get a seed (``_Seed``)
    If no parameter needs a gradient, nothing does. The first layers that are trained pass their output on by a function
    whose gradient somebody asks for; below them there is no backward pass at all.

What this refuses, by NotImplementedError, so that Opacus' own hooks are used instead (audit.py): tied parameters,
layers that return no tensor or are called by keyword, inputs that are changed in place after they were used, forward
passes within the backward pass (checkpointing), uses that the loss does not depend on, rows that are no records, and
gradients in half precision (autocast), which are to be rounded as Opacus rounds them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.grad_sample.functorch import prepare_layer
from opacus.layers.dp_rnn import DPGRU, DPLSTM, DPRNN, RNNLinear
from torch import nn

from bayesdp.opacus.layer_norms import SHORT_CUTS, Norms, linear_norms, sampled_norms
from bayesdp.opacus.lstm_pass import take_in_one


class NormPass:
    """Norms of gradients by record, from hooks on a module of its own.

    ``wanted``: the parameters that are clipped. ``batch_first``, ``force_functorch``: as Opacus was told. ``ghost``:
    whether training uses ghost clipping, which does not take all that would be possible here. Raises
    NotImplementedError for tied parameters.
    """

    def __init__(
        self,
        module: nn.Module,
        wanted: Collection[nn.Parameter],
        *,
        batch_first: bool,
        force_functorch: bool,
        ghost: bool,
    ) -> None:
        self._module = module
        self._axis = 0 if batch_first else 1
        self._wanted = list(wanted)
        self._force_functorch, self._ghost = force_functorch, ghost
        self._uses: dict[nn.Module, _Uses] = {}
        self._norms: Norms = {}
        self._records = 0
        self._forward = False
        self._seed = torch.ones((), requires_grad=True)
        self._marked = parameters = frozenset(self._wanted)
        owners: set[nn.Parameter] = set()
        layers = list(_trained_layers(module, parameters))
        take_in_one(module, layers, self._note, self._seed)
        for layer in layers:
            sampled = type(layer) in GradSampleModule.GRAD_SAMPLERS
            own = set(layer.parameters(recurse=not sampled)) & parameters
            if own & owners:
                raise NotImplementedError("parameters that several layers share")
            owners |= own
            if force_functorch or not sampled:
                prepare_layer(layer, batch_first=batch_first)
            layer.register_forward_hook(self._keep)
        for parameter in module.parameters():
            parameter.requires_grad_(False)

    def norms(self, loss_of: Callable[[nn.Module], torch.Tensor], records: int, *, scale: float) -> list[torch.Tensor]:
        """Return the norms by each parameter that is wanted, each [records].

        ``loss_of`` makes the forward pass and returns the loss of all records; ``scale`` is what makes of its gradient
        the sum of the gradients of the records (their number, if the loss is a mean). Raises NotImplementedError where
        the norms could be others than Opacus would find.
        """
        self._records, self._forward = records, True
        try:
            loss = loss_of(self._module)
            self._forward = False
            if not loss.requires_grad:
                raise NotImplementedError("a loss that depends on no layer that is trained")
            try:
                torch.autograd.backward(loss * scale if scale != 1 else loss, inputs=[self._seed])
            except RuntimeError as error:
                if "use_reentrant" in str(error):
                    raise NotImplementedError("activation checkpointing that is reentrant") from error
                raise
            if self._uses or len(self._norms) < len(self._wanted):
                raise NotImplementedError("layers that the loss does not depend on")
            return [self._norms[parameter] for parameter in self._wanted]
        finally:
            self._forward = False
            self._uses.clear()
            self._norms.clear()

    def _keep(self, layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        """Note a use of a layer: Opacus' forward hook, and a hook of what comes out."""
        if not torch.is_grad_enabled():
            return None
        regular = layer.training and isinstance(output, torch.Tensor) and bool(inputs)
        if not regular or not all(isinstance(each, torch.Tensor) for each in inputs):
            raise NotImplementedError("a layer that is not used as Opacus expects it")
        receive = self._note(layer, *inputs)
        given = output if output.requires_grad else _Seed.apply(output, self._seed)
        given.register_hook(receive)
        return given

    def _note(self, layer: nn.Module, *inputs: torch.Tensor) -> Callable[[torch.Tensor], None]:
        """Note a use of a layer; return what its output's gradient is to be given to."""
        if not self._forward:
            raise NotImplementedError("a layer that is used in the backward pass")
        use = _Use([each.detach() for each in inputs])
        uses = self._uses.setdefault(layer, _Uses())
        uses.append(use)
        uses.missing += 1
        return partial(self._receive, layer, use)

    def _receive(self, layer: nn.Module, use: _Use, backprops: torch.Tensor) -> None:
        """Note the gradient by what a layer gave out; compute norms if it was the last that the layer waits for."""
        if use.backprops is not None or use.changed():
            raise NotImplementedError("a layer whose input was changed, or that receives its gradient in parts")
        if backprops.dtype not in (torch.float32, torch.float64):
            raise NotImplementedError("norms in half precision")
        use.backprops = backprops.detach()
        uses = self._uses[layer]
        uses.missing -= 1
        if uses.missing:
            return
        del self._uses[layer]
        for parameter, norms in self._norms_of(layer, uses).items():
            if norms.shape != (self._records,):
                raise NotImplementedError("a layer whose rows are not records")
            self._norms[parameter] = norms

    def _norms_of(self, layer: nn.Module, uses: Sequence[_Use]) -> Norms:
        recurrent = type(layer) is RNNLinear
        turned = [use.turned(0 if recurrent else self._axis) for use in uses]
        rows = {tensor.shape[0] for inputs, backprops in turned for tensor in (*inputs, backprops)}
        if rows != {self._records} and not (recurrent and max(rows) == self._records):  # sequences may have ended
            raise NotImplementedError("a layer whose rows are not records")
        in_ghost_mode = self._ghost and type(layer) in GradSampleModuleFastGradientClipping.NORM_SAMPLERS
        if in_ghost_mode and (len(uses) > 1 or turned[0][1].ndim > 3):
            raise NotImplementedError("a layer that ghost clipping does not take")
        short_cut = SHORT_CUTS.get(type(layer))
        if short_cut is not None and (short_cut is linear_norms or not self._force_functorch):
            norms = short_cut(layer, turned)
            if norms is not None:
                return norms
        with _needing_gradients(layer, self._marked):
            return sampled_norms(layer, turned, by_derivative=self._force_functorch)


class _Use:
    """A use of a layer: its inputs, and, once it is known, the gradient by its output."""

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        self._inputs = inputs
        self._versions = [each._version for each in inputs]
        self.backprops: torch.Tensor | None = None

    def changed(self) -> bool:
        """Return whether an input was changed in place since the layer used it."""
        return [each._version for each in self._inputs] != self._versions

    def turned(self, axis: int) -> tuple[Sequence[torch.Tensor], torch.Tensor]:
        """Return inputs and gradient with the axis of the records in front, as Opacus turns them."""
        assert self.backprops is not None
        if axis == 0:
            return self._inputs, self.backprops
        return [each.movedim(axis, 0) for each in self._inputs], self.backprops.movedim(axis, 0)


class _Uses(list[_Use]):
    """The uses of a layer in a pass, and how many of them have not received their gradient yet."""

    missing = 0


class _Seed(torch.autograd.Function):
    """Pass a tensor on that needs no gradient, as one that does."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return output.data  # neither a view nor a leaf, so that what follows may work in place

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[None, None]:
        return None, None


def _trained_layers(module: nn.Module, wanted: Collection[nn.Parameter]) -> Iterator[nn.Module]:
    """Yield the layers on which Opacus puts hooks: with a parameter of their own that is trained.

    Inside of a layer for which Opacus has no sampler nothing is looked for: ``torch.func`` takes it as a whole.
    """
    own = any(parameter in wanted for parameter in module.parameters(recurse=False))
    if own and type(module) not in (DPRNN, DPLSTM, DPGRU):  # these only name the parameters of layers inside
        yield module
        if type(module) not in GradSampleModule.GRAD_SAMPLERS:
            return
    for child in module.children():
        yield from _trained_layers(child, wanted)


@contextmanager
def _needing_gradients(layer: nn.Module, wanted: Collection[nn.Parameter]) -> Generator[None]:
    """Mark the parameters of a layer that are wanted: Opacus' samplers ask for the mark."""
    marked = [parameter for parameter in layer.parameters() if parameter in wanted]
    for parameter in marked:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in marked:
            parameter.requires_grad_(False)
