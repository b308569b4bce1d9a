"""Compute the gradient norms that held-out records would have in the batch, without touching the training run.

Audit records go through a twin of the model (twin.py). There are three ways to their norms, and the first that works is
kept (``_WAYS``): hooks of our own that compute norms and nothing else (norm_pass.py); Opacus' ghost clipping, whose
norms it computes for clipping; and Opacus' hooks that form gradients by record, which takes all that Opacus takes.

What would break this: norms elsewhere than in ``_norm_sample``. tests/with_opacus/test_audit.py compares audit norms
with those of the batch on the same records, for layers of all kinds.
"""

from __future__ import annotations

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
from bayesdp.opacus.due_steps import DueSteps
from bayesdp.opacus.ghost_clipping import GhostClipping, passes_are_mixed
from bayesdp.opacus.hidden_draws import borrowed_random_numbers, devices_of
from bayesdp.opacus.loss_scale import audit_under_way
from bayesdp.opacus.norm_pass import NormPass
from bayesdp.opacus.precision import SeenAutocast, has_half, rounded_up
from bayesdp.opacus.same_people import rows_digest
from bayesdp.opacus.twin import Twin, modules_of, parameters_of, quiet_hooks, replaced_methods
from bayesdp.opacus.untrained import check_reached
from bayesdp.validation import InvalidInputError, count, refuse

Together = Callable[[Sequence[torch.Tensor]], torch.Tensor]

_WAYS = ("norms only", "ghost", "gradients")
_USES_MODEL = (
    "a loss that depends on what is trained in the model it is given, the first argument of loss(model, batch), and on "
    "no other model (adapters that are merged or switched off train nothing)"
)
_IN_BLOCK = "; and, as the model has parameters in half precision, watch inside the torch.autocast block of training"


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


class AuditRecords(DueSteps):
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
        super().__init__(every)
        self._live = inner_module(model._module)
        device = next(self._live.parameters()).device
        with borrowed_random_numbers(devices_of(self._live)):
            self._data: AuditData = audit_data(audit, loader, device, 0 if model.batch_first else 1)
        self._given = type(audit).__name__
        self.rows = rows_digest(audit)
        "A digest of the rows that the records are of their data set, if that is known."
        self.records = self._data.records
        self._first = 0
        "The number of the first record among all that were given."
        self._audit_batch = count("audit_batch", audit_batch, minimum=1)
        self.given_loss = loss
        "The loss as it was given."
        with borrowed_random_numbers(devices_of(self._live)):
            first = self._data.take(slice(0, self._audit_batch))
        self._loss = audit_loss(loss, first, model.loss_reduction)
        self._clipping = clipping
        self._model = model
        self._ways = list(_WAYS[:2] if isinstance(clipping, GhostClipping) else _WAYS)
        "The ways that have not failed; the first is used."
        self._twin: Twin | None = None
        self._wrapped: Any = None
        "The twin with hooks: a NormPass, or a module of Opacus."
        self._twinned: tuple[list[int], list[Any]] = ([], [])
        "When the twin was made: ids of the live parameters that are clipped together, and replaced methods."
        self._modes = [module.training for module in modules_of(self._live)]
        self._tried = self._checked = False
        self._quiet = False
        "Whether layers that are known to be random are to be left out."
        self.random = False
        "Whether the dry run found that norms are random."
        self.autocast: SeenAutocast | None = None
        "Whether training makes its passes under autocast; None before it begins."
        self.passes = 1
        "How many passes through the model the loss of a batch took last."

    def norms(self) -> torch.Tensor:
        """Return the norms of all records with the parameters as they are now, [m]. It may draw random numbers."""
        if not self.records:
            return torch.zeros(0)
        self.check()
        return self._passes(self._chunks(), self._clipping.together)

    def restrict(self, first: int, after: int) -> None:
        """From now on, look after the records from ``first`` to before ``after`` only."""
        self._data = SomeRecords(self._data, first, after)
        self.records, self._first = self._data.records, first

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

    def check_finite(self) -> None:
        """Raise InvalidInputError if the norm of a record is not finite with the parameters as they are now.

        The message has the number of the first such record; audit records are no secret of the user.
        """
        if not self.records:
            return
        with self._as_in_training():
            norms = self._passes(self._chunks(), self._clipping.together)
        finite = torch.isfinite(norms)
        if not bool(finite.all()):
            number = int((~finite).nonzero()[0])
            expected = (
                "a finite gradient norm: this audit record has values, or a loss, that are not finite or too large"
            )
            raise refuse(f"audit[{self._first + number}]", float(norms[number]), expected)

    def _chunks(self) -> list[Rows]:
        starts = range(0, self.records, self._audit_batch)
        return [slice(first, first + self._audit_batch) for first in starts]

    def _try(self) -> None:
        """Let two records through the model, once, so that what cannot work is refused before training begins.

        Raises InvalidInputError, with the first line of what the model or the loss had to say.
        """
        if self._tried:
            return
        try:
            with self._as_in_training():
                self._passes([torch.arange(2) % self.records], norms_together)
        except InvalidInputError:
            raise
        except Exception as error:
            said = next(iter(str(error).strip().splitlines()), "")
            raise InvalidInputError(
                f"audit={self._given}: the model or the loss fails on it ({type(error).__name__}: {said}); expected "
                f"{EXPECTED}; and the loss that is trained with, as a function loss(model, batch) unless it is called "
                f"with outputs and targets{_IN_BLOCK if has_half(self._live) else ''}."
            ) from error
        self._tried = True

    @contextmanager
    def _as_in_training(self) -> Generator[None]:
        """Make passes before training begins as they will be then; random numbers are put back."""
        modes = self._modes
        if not self._live.training:  # Opacus computes nothing in evaluation mode
            self._modes = [not couples(module) for module in self._live.modules()]
        try:
            with borrowed_random_numbers(devices_of(self._live)):
                yield
        finally:
            self._modes = modes

    def _passes(self, chunks: Sequence[Rows], together: Together) -> torch.Tensor:
        """Return the norms of the records in each chunk, one pass for each, one after the other."""
        if len(self._ways) > 1 and self.autocast is not None and self.autocast.caveats:
            del self._ways[:-1]  # norms that are sums of products are too rough in half precision
            self._twin = None
        while True:
            try:
                with torch.enable_grad(), audit_under_way():
                    return self._all_norms(chunks, together)
            except (NotImplementedError, AttributeError, ValueError):
                if len(self._ways) == 1:
                    raise
                del self._ways[0]

    def _all_norms(self, chunks: Sequence[Rows], together: Together) -> torch.Tensor:
        try:
            twins = self._follow()
            return torch.cat([together(self._norms_of(rows, twins)).detach() for rows in chunks])
        except BaseException:
            self._twin = None  # hooks that were interrupted would mix up the next pass
            raise

    def _norms_of(self, rows: Rows, twins: Sequence[Any]) -> list[torch.Tensor]:
        """Return the norms by each parameter that is clipped; ``twins`` are those of the parameters."""
        records = len(range(*rows.indices(self.records))) if isinstance(rows, slice) else len(rows)
        batch = self._data.take(rows)
        self.passes = 0

        def loss_of(module: Any) -> torch.Tensor:
            with nullcontext() if self.autocast is None else self.autocast.again():
                return self._loss(module, batch, records)

        if isinstance(self._wrapped, NormPass):
            scale = records if self._model.loss_reduction == "mean" else 1
            return self._wrapped.norms(loss_of, records, scale=scale)
        loss = loss_of(self._wrapped)
        if not loss.requires_grad:
            raise refuse("loss", "without a gradient", _USES_MODEL)
        if not self._tried:
            check_rows(self._wrapped._module, records, 0 if self._model.batch_first else 1)
        with quiet_hooks():
            loss.backward()
        if passes_are_mixed(twins):
            what = "a weight is used outside its layer, or in torch.utils.checkpoint without use_reentrant=True"
            raise NotImplementedError(f"{what}: Opacus does not support either")
        if not any(hasattr(twin, "_norm_sample") for twin in twins):
            raise refuse("loss", "without a gradient", _USES_MODEL)
        check_reached([hasattr(twin, "_norm_sample") for twin in twins])
        found = [twin._norm_sample.reshape(records) for twin in twins]
        if len(self._ways) > 1 and any(norms.dtype == torch.bfloat16 for norms in found):
            raise NotImplementedError("norms that are sums of products, in half precision")
        norms = [rounded_up(each) for each in found]
        for twin in twins:
            twin.grad = None
        return norms

    def _clipped_parameters(self, modules: Sequence[nn.Module]) -> list[nn.Parameter]:
        """Return the live parameters that are clipped together: the optimizer's; in ghost mode those of the modules."""
        if isinstance(self._clipping, GhostClipping):
            return [parameter for parameter in parameters_of(modules) if parameter.requires_grad]
        return self._clipping.optimizer.params

    def _hooked(self, twin: Twin, clipped: Sequence[nn.Parameter]) -> Any:
        """Return a new twin with hooks that find norms, in the first way that has not failed."""
        twins = twin.of(clipped)
        force_functorch = getattr(self._model, "force_functorch", False)
        if self._ways[0] == "norms only":
            return NormPass(
                twin.module,
                twins,
                batch_first=self._model.batch_first,
                force_functorch=force_functorch,
                ghost=isinstance(self._clipping, GhostClipping),
            )
        wanted = set(twins)
        for parameter in twin.module.parameters():
            parameter.requires_grad_(parameter in wanted)
        return GradSampleModuleFastGradientClipping(
            twin.module,
            batch_first=self._model.batch_first,
            loss_reduction=self._model.loss_reduction,
            strict=False,
            force_functorch=force_functorch,
            use_ghost_clipping=self._ways[0] == "ghost",
        )

    def _count_pass(self, *_: Any) -> None:
        self.passes += 1

    def _follow(self) -> list[nn.Parameter]:
        """Make the twin what the model is now, or a new one; return the twins of the parameters that are clipped."""
        modules = modules_of(self._live)
        clipped = self._clipped_parameters(modules)
        made_of = [id(parameter) for parameter in clipped], replaced_methods(modules)
        if self._twin is None or made_of != self._twinned:
            self._twinned = made_of
            self._twin = twin = Twin(self._live, getattr(self._model, "autograd_grad_sample_hooks", []))
            refuse_unsorted_sequences(twin.module)
            twin.module.register_forward_hook(self._count_pass)
            self._wrapped = self._hooked(twin, clipped)
        if self._live.training:  # it may be in evaluation mode for a while
            self._modes = [module.training for module in modules]
        self._twin.follow(modules, self._modes, quiet=self._quiet)
        return self._twin.of(clipped)


def inner_module(module: Any) -> nn.Module:
    """Return the module inside of what torch.compile and PyTorch's DDP put around it."""
    while True:
        if hasattr(module, "_orig_mod"):
            module = module._orig_mod
        elif isinstance(module, nn.parallel.DistributedDataParallel):
            module = module.module
        else:
            return module
