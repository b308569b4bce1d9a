"""Compute the gradient norms that held-out records would have in the batch, without touching the training run.

Why a twin of the model is used (``AuditRecords._new_twin``)
    Opacus' hooks sit on the modules of the live model: a pass with audit records through it would leave their
    activations and gradients among those of the batch (``grad_sample``, ``_forward_counter``), count as a backward pass
    of its own in ghost mode, change buffers, and advance random numbers. Switching the hooks off for a while is not
    enough, because the norms we need come from just such hooks. So the model is copied once. The twin has its own hooks
    and its own ``grad``; its parameters share their memory with the live ones, so it follows training for free, and
    buffers are copied at each step, as a forward pass may change them. Opacus then finds the norms in one forward and
    one backward pass, as in its ghost clipping; where a layer has no ghost norms, gradients by record are formed and
    dropped, as ``torch.func`` would form them for every layer.

Why Opacus' hooks are put aside while the model is copied (``without_opacus_hooks``)
    ``copy.deepcopy`` of a hooked module copies the hooks as well, and with these bound methods the wrapper they belong
    to: the twin would have a second set of hooks, and Opacus refuses to add its own ("Trying to add hooks twice").
    Tensors that a module kept from a forward pass carry a graph, and cannot be copied at all. Only the hooks of Opacus
    go, by their handles: those of the user stay, and also see the audit records. Afterwards the dictionaries of the
    modules are put back as they were.

What would break this: Opacus keeping its hooks or leftovers under other names (``autograd_grad_sample_hooks``,
``_LEFT_BY_OPACUS``), or norms elsewhere than in ``_norm_sample``. tests/with_opacus/test_audit.py compares audit norms
with those of the batch on the same records, for layers of all kinds.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol, runtime_checkable

import torch
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from torch import nn

from bayesdp.opacus.audit_data import EXPECTED, AuditData, Rows, SomeRecords, audit_data
from bayesdp.opacus.audit_loss import audit_loss
from bayesdp.opacus.audit_rows import check_rows
from bayesdp.opacus.clipping import FlatClipping, norms_together
from bayesdp.opacus.coupling import couples, refuse_unsorted_sequences
from bayesdp.opacus.dry_run import dry_run
from bayesdp.opacus.ghost_clipping import GhostClipping, passes_are_mixed
from bayesdp.opacus.hidden_draws import borrowed_random_numbers, devices_of, draws_at_random
from bayesdp.opacus.passes import PassHook
from bayesdp.opacus.precision import SeenAutocast, rounded_up
from bayesdp.validation import InvalidInputError, count

Together = Callable[[Sequence[torch.Tensor]], torch.Tensor]

_LEFT_BY_OPACUS = ("activations", "max_batch_len", "ft_compute_sample_grad", "autograd_grad_sample_hooks")


@runtime_checkable
class AuditNorms(Protocol):
    """What ``watch`` asks at each step about records that are not trained on.

    Give an object of your own as ``audit`` if gradients are changed before they are clipped (masked, for instance): its
    norms must be those that Opacus would have clipped, had the record been in the batch.
    """

    records: int
    "How many audit records there are; it must not change."

    def due(self) -> bool:
        """Return whether norms are to be computed at this step; called once before each step."""
        ...

    def norms(self) -> torch.Tensor:
        """Return the norms of the gradients that the records would have now, before clipping, [m]."""
        ...


class AuditRecords:
    """Records that are not trained on, and the norms of the gradients they would have now.

    ``audit`` is any form that ``audit_data`` takes, ``loss`` any that ``audit_loss`` takes, and ``loader`` the one that
    is trained with. ``every``: norms are due at the first step and at every ``every``-th after it. ``audit_batch``: how
    many records go through the model at once. Raises InvalidInputError for records that do not fit, and for a loss that
    couples the records of a batch.
    """

    def __init__(
        self,
        audit: Any,
        loss: Any,
        model: Any,
        loader: Any,
        clipping: FlatClipping,
        *,
        every: int,
        audit_batch: int,
    ) -> None:
        self._live = inner_module(model._module)
        device = next(self._live.parameters()).device
        self._data: AuditData = audit_data(audit, loader, device, 0 if model.batch_first else 1)
        self._given = type(audit).__name__
        self.records = self._data.records
        self._audit_batch = count("audit_batch", audit_batch, minimum=1)
        self._loss = audit_loss(loss, self._data.take(slice(0, self._audit_batch)), model.loss_reduction)
        self._clipping = clipping
        self._every = count("every", every, minimum=1)
        self._model = model
        self._ghost = True
        self._twin: Any = None
        self._twins: dict[int, Any] = {}
        "The twin of each live parameter, by its id."
        self._twinned: list[int] = []
        "Ids of the live parameters that were clipped together when the twin was made."
        self._modes = self._modes_now()
        self._asked = 0
        self._tried = self._checked = False
        self._quiet = False
        "Whether layers that are known to be random are to be left out."
        self.random = False
        "Whether the dry run found that norms are random."
        self.autocast: SeenAutocast | None = None
        "Whether training makes its passes under autocast; None before it begins."
        self.passes = 1
        "How many passes through the model the loss of a batch took last."

    def due(self) -> bool:
        """Return whether norms are to be computed at this step: at the first, and at every ``every``-th after it."""
        self._asked += 1
        return (self._asked - 1) % self._every == 0

    def norms(self) -> torch.Tensor:
        """Return the norms of all records with the parameters as they are now, [m]. It may draw random numbers."""
        if not self.records:
            return torch.zeros(0)
        self.check()
        starts = range(0, self.records, self._audit_batch)
        return self._passes([slice(first, first + self._audit_batch) for first in starts], self._clipping.together)

    def restrict(self, first: int, after: int) -> None:
        """From now on, look after the records from ``first`` to before ``after`` only."""
        self._data = SomeRecords(self._data, first, after)
        self.records = self._data.records

    def check(self) -> None:
        """Make a dry run, once, as soon as the model is in training mode and its gradients are not all 0.

        Raises InvalidInputError if norms depend on how many records go through the model at once. Nothing of the run
        changes: the twin makes the passes, and random numbers are put back.
        """
        if self._checked:
            return
        self._try()
        if not self._live.training:
            return

        def quiet_norms(rows: torch.Tensor) -> torch.Tensor:
            self._quiet = True
            try:
                return self._passes([rows], norms_together)
            finally:
                self._quiet = False

        shown = dry_run(
            lambda rows: self._passes([rows], norms_together),
            quiet_norms,
            self._data.kinds(),
            self._audit_batch,
            self._model.loss_reduction,
            devices_of(self._live),
        )
        self._checked, self.random = shown.conclusive, self.random or shown.random

    def _try(self) -> None:
        """Let two records through the model, once, so that what cannot work is refused before training begins.

        Raises InvalidInputError, with the first line of what the model or the loss had to say.
        """
        if self._tried:
            return
        modes = self._modes
        if not self._live.training:  # as it will be then: Opacus computes nothing in evaluation mode
            self._modes = [not couples(module) for module in self._live.modules()]
        try:
            with borrowed_random_numbers(devices_of(self._live)):
                self._passes([torch.arange(2) % self.records], norms_together)
        except InvalidInputError:
            raise
        except Exception as error:
            said = next(iter(str(error).strip().splitlines()), "")
            raise InvalidInputError(
                f"audit={self._given}: the model or the loss fails on it ({type(error).__name__}: {said}); expected "
                f"{EXPECTED}."
            ) from error
        finally:
            self._modes = modes
        self._tried = True

    def _passes(self, chunks: Sequence[Rows], together: Together) -> torch.Tensor:
        """Return the norms of the records in each chunk, one pass for each, one after the other."""
        if self._ghost and self.autocast is not None and self.autocast.caveats:
            self._ghost, self._twin = False, None  # ghost norms are sums of products, too rough in half precision
        with torch.enable_grad():
            try:
                return self._all_norms(chunks, together)
            except (NotImplementedError, AttributeError, ValueError):
                if not self._ghost or isinstance(self._clipping, GhostClipping):
                    raise
                self._ghost = False  # tied parameters, or other layers of which Opacus has no ghost norms
                return self._all_norms(chunks, together)

    def _all_norms(self, chunks: Sequence[Rows], together: Together) -> torch.Tensor:
        self._follow()
        try:
            return torch.cat([self._norms_of(rows, together) for rows in chunks])
        except BaseException:
            self._twin = None  # hooks that were interrupted would mix up the next pass
            raise

    def _norms_of(self, rows: Rows, together: Together) -> torch.Tensor:
        records = len(range(*rows.indices(self.records))) if isinstance(rows, slice) else len(rows)
        self.passes = 0
        with nullcontext() if self.autocast is None else self.autocast.again():
            loss = self._loss(self._twin, self._data.take(rows), records)
        if not self._tried:
            check_rows(self._twin._module, records, 0 if self._model.batch_first else 1)
        with quiet_hooks():
            loss.backward()
        parameters: list[Any] = [self._twins[id(parameter)] for parameter in self._clipped_parameters()]
        if passes_are_mixed(parameters):
            raise NotImplementedError("a weight is used outside its layer")
        norms = together([rounded_up(parameter._norm_sample.reshape(records)) for parameter in parameters])
        for twin in self._twins.values():
            twin.grad = None
        return norms.detach()

    def _clipped_parameters(self) -> list[nn.Parameter]:
        """Return the live parameters that are clipped together: the optimizer's; in ghost mode the module's."""
        if isinstance(self._clipping, GhostClipping):
            return [parameter for parameter in self._live.parameters() if parameter.requires_grad]
        return self._clipping.optimizer.params

    def _new_twin(self) -> nn.Module:
        with without_opacus_hooks(self._live, getattr(self._model, "autograd_grad_sample_hooks", [])):
            twin = copy.deepcopy(self._live)
        refuse_unsorted_sequences(twin)
        twin.register_forward_hook(self._count_pass)
        self._twins = dict(zip(map(id, self._live.parameters()), twin.parameters(), strict=True))
        clipped = {id(parameter) for parameter in self._clipped_parameters()}
        for parameter in self._live.parameters():
            self._twins[id(parameter)].requires_grad_(id(parameter) in clipped)
        return GradSampleModuleFastGradientClipping(
            twin,
            batch_first=self._model.batch_first,
            loss_reduction=self._model.loss_reduction,
            strict=False,
            force_functorch=getattr(self._model, "force_functorch", False),
            use_ghost_clipping=self._ghost,
        )

    def _count_pass(self, *_: Any) -> None:
        self.passes += 1

    def _modes_now(self) -> list[bool]:
        return [module.training for module in self._live.modules()]

    def _follow(self) -> None:
        """Make the twin what the model is now: parameters are shared; buffers, modes and plain settings are copied."""
        clipped = [id(parameter) for parameter in self._clipped_parameters()]
        if self._twin is None or clipped != self._twinned:
            self._twinned = clipped
            self._twin = self._new_twin()
        if self._live.training:  # it may be in evaluation mode for a while
            self._modes = self._modes_now()
        twin = self._twin._module
        for mode, live, module in zip(self._modes, self._live.modules(), twin.modules(), strict=True):
            settings = {name: value for name, value in vars(live).items() if type(value) in (bool, int, float, str)}
            module.__dict__.update({name: settings[name] for name in settings if name not in _LEFT_BY_OPACUS})
            quiet = self._quiet and draws_at_random(live) and not any(True for _ in live.parameters())
            module.training = mode and not quiet
        for parameter in self._live.parameters():
            self._twins[id(parameter)].data = parameter.data
        for live, buffer in zip(self._live.buffers(), twin.buffers(), strict=True):
            buffer.data = live.data.clone()


def inner_module(module: Any) -> nn.Module:
    """Return the module inside of what torch.compile and PyTorch's DDP put around it."""
    while True:
        if hasattr(module, "_orig_mod"):
            module = module._orig_mod
        elif isinstance(module, nn.parallel.DistributedDataParallel):
            module = module.module
        else:
            return module


_QUIET = ("ignore", re.compile("Full backward hook is firing"), Warning, None, 0)  # as warnings.filterwarnings has it


@contextmanager
def quiet_hooks() -> Generator[None]:
    """Silence PyTorch's warning that inputs of Opacus' hooks need no gradients; Opacus does not use those.

    The filter is put into the list by hand: ``catch_warnings`` makes Python forget which warnings it has shown, and the
    user's own training would then show this one at every step instead of once.
    """
    filters: list[Any] = warnings.filters  # pyright: ignore[reportAssignmentType]
    filters.insert(0, _QUIET)
    try:
        yield
    finally:
        filters.remove(_QUIET)


@contextmanager
def without_opacus_hooks(module: nn.Module, handles: Sequence[Any]) -> Generator[None]:
    """Put the hooks of Opacus, by their handles, and what they left on modules aside."""
    hooks = {handle.id for handle in handles}
    aside: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for part in module.modules():
        before = dict(part.__dict__)
        aside.append((part.__dict__, before))
        for name in ("_forward_hooks", "_backward_hooks"):
            kept = {id_: hook for id_, hook in before[name].items() if id_ not in hooks}
            part.__dict__[name] = OrderedDict((id_, kept[id_]) for id_ in kept if not isinstance(kept[id_], PassHook))
        if part is module or len(part._forward_hooks) < len(before["_forward_hooks"]):
            for name in _LEFT_BY_OPACUS:
                part.__dict__.pop(name, None)
        for name, value in before.items():
            if isinstance(value, torch.Tensor) and value.grad_fn is not None:  # kept from a forward pass
                part.__dict__[name] = value.detach()
    try:
        yield
    finally:
        for now, before in aside:
            now.clear()
            now.update(before)
