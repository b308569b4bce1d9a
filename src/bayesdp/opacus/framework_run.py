"""What Lightning and the Trainer of Hugging Face have in common: settings that wait, and a run that is watched.

A framework creates model, optimizer and loader when training begins, so ``make_private`` and ``watch`` have to wait for
them. It also keeps checkpoints of its own, into which the position of the ledger goes. ``FrameworkRun`` holds the
settings until then, continues the ledger if there is a checkpoint, and leaves everything as it was at the end.

Why noise does not come from PyTorch's generator by default
    Frameworks seed it: the Trainer always does, with 42 unless it is told otherwise, and restores it from checkpoints.
    Whoever knows the seed can subtract the noise, and a resumed run would use the same noise twice. So noise comes from
    the operating system (``SecureNoise``) and batches from a generator that the operating system seeds;
    ``secure=False`` leaves both to Opacus.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.data_loader import CollateFnWithEmpty

from bayesdp import validation
from bayesdp.claims.budget import declared_budget
from bayesdp.claims.stopping import StopWhen
from bayesdp.ledger import check_continues
from bayesdp.opacus.attaching import watch
from bayesdp.opacus.audit_loss import BatchLoss
from bayesdp.opacus.hidden_draws import borrowed_random_numbers
from bayesdp.opacus.run_names import path_of_run
from bayesdp.opacus.secure import SecureNoise
from bayesdp.opacus.trained_rows import have_rows_in_common
from bayesdp.opacus.watched_run import Watch
from bayesdp.randomness import Secure
from bayesdp.report.curve_points import PacedPoints
from bayesdp.run_ledger import Ledger
from bayesdp.validation import refuse

_GIVEN = ("self", "module", "optimizer", "data_loader", "criterion", "wrap_model", "kwargs")
_OF_OPACUS = frozenset(inspect.signature(PrivacyEngine.make_private).parameters) - frozenset(_GIVEN)
_WHEN_NEW = ("steps", "audit_used_for", "unit", "audit_ids", "audit_groups", "data", "metadata", "keep_norms", "gate")
"""What a ledger declares when it is created; a run that continues has it already."""


class FrameworkRun:
    """One private run inside a framework; it may be interrupted and continued with the same ledger.

    ``options`` are those of ``make_private`` (``noise_multiplier``, ``max_grad_norm``, ...) and those of ``watch``;
    ``audit`` and ``loss`` among them are given to ``begin``. Raises TypeError for an option that neither of them has.
    """

    def __init__(self, ledger: Ledger | str | Path, options: Mapping[str, Any], *, secure: bool = True) -> None:
        known = _OF_OPACUS | frozenset(inspect.signature(watch).parameters) | frozenset(_WHEN_NEW)
        for name in options:
            if name not in known:
                raise TypeError(f"got an unexpected keyword argument {name!r}")
        self._ledger, self._secure = ledger, secure
        self._for_opacus = {name: value for name, value in options.items() if name in _OF_OPACUS}
        self._for_watch = {name: value for name, value in options.items() if name not in _OF_OPACUS}
        self._delta = validation.probability("delta", self._for_watch.get("delta", 1e-5))
        self.watched: Watch | None = None
        "The run while it is going on."
        self._audits_its_loss = False
        "Whether audit records have the loss that the framework itself computes, not one that was given."
        self._opened: Ledger | None = None
        self._hooks: Any = None
        self._frozen: list[torch.nn.Parameter] = []
        "Parameters that the optimizer does not have, frozen while the run goes on."
        self._points: PacedPoints | None = None
        self._position: dict[str, Any] | None = None

    @property
    def makes_private(self) -> bool:
        """Whether model, optimizer and loader are to be made private here: whether there are settings for it."""
        return bool(self._for_opacus)

    def check_choices(self, audit: Any, by: Iterable[str], validated: Iterable[Any]) -> None:
        """Raise InvalidInputError if something is evidently chosen by audit records, and that was not declared.

        ``by`` names what chooses by the results of validation, on the data sets ``validated``.
        """
        ledger = self._ledger
        declared = ledger.audit_used_for if isinstance(ledger, Ledger) else self._for_watch.get("audit_used_for")
        chooses = ", ".join(dict.fromkeys(by))
        if audit is None or declared or not chooses:
            return
        if any(have_rows_in_common(audit, dataset) for dataset in validated):
            expected = (
                f"people by whom nothing is chosen, but validation rows choose here ({chooses}): validate on others, "
                "or declare it, as in audit_used_for='early stopping'; figures for shares are then estimates"
            )
            raise refuse("audit", "rows of the validation data", expected)

    def make_private(self, module: Any, optimizer: Any, loader: Any) -> tuple[Any, Any, Any]:
        """Return what Opacus makes of a module, whose class and names stay, of an optimizer and of a loader.

        Parameters that the optimizer does not have are frozen until the run ends.

        Raises InvalidInputError if noise multiplier or clip bound is missing, and for ghost clipping, which needs a
        loss of its own.
        """
        for name in ("noise_multiplier", "max_grad_norm"):
            if name not in self._for_opacus:
                raise refuse(name, None, "a number: model, optimizer and loader are made private with it")
        if "ghost" in self._for_opacus.get("grad_sample_mode", "hooks"):
            raise refuse("grad_sample_mode", self._for_opacus["grad_sample_mode"], "'hooks', 'functorch' or 'ew'")
        if self._secure and self._for_opacus.get("noise_generator") is not None:
            raise refuse("secure", True, "False, if noise is to come from noise_generator")
        module.train()
        trained = {id(each) for group in optimizer.param_groups for each in group["params"]}
        self._frozen = [each for each in module.parameters() if each.requires_grad and id(each) not in trained]
        for each in self._frozen:  # Opacus would keep gradients by record, which no optimizer clears
            each.requires_grad_(False)
        with warnings.catch_warnings():
            if self._secure:
                warnings.filterwarnings("ignore", "Secure RNG turned off")  # there is another one instead
            engine = PrivacyEngine()
        made: Any = engine.make_private(
            module=module, optimizer=optimizer, data_loader=loader, wrap_model=False, **self._for_opacus
        )
        hooks, private, drawn = made
        self._hooks = hooks
        if self._secure:
            SecureNoise(private, Secure())
            if hasattr(drawn.batch_sampler, "generator"):
                drawn.batch_sampler.generator = torch.Generator()
                drawn.batch_sampler.generator.seed()
        _show_a_record(drawn)
        return hooks, private, drawn

    def begin(self, model: Any, optimizer: Any, loader: Any, *, audit: Any, loss: Any) -> Watch:
        """Watch the run from now on: with a new ledger, or with that of the run that goes on.

        Raises what ``watch`` raises, and LedgerError if the ledger does not contain the steps of a checkpoint.
        """
        options = dict(self._for_watch)
        ledger = self._ledger
        self._audits_its_loss = isinstance(loss, BatchLoss)
        if self._position is not None:
            ledger = self._continued(self._position)
            for name in _WHEN_NEW:
                options.pop(name, None)
            options["budget"] = None if declared_budget(ledger) is None else StopWhen(ledger)
        try:
            self.watched = watch(model, optimizer, loader, ledger=ledger, **options, audit=audit, loss=loss)
        except BaseException:
            self._release()
            raise
        self._points = PacedPoints(self.watched.ledger, self._delta, 0.01)
        return self.watched

    def _continued(self, position: Mapping[str, Any]) -> Ledger:
        """Return the ledger that has the steps of a checkpoint, open for writing."""
        if isinstance(self._ledger, Ledger):
            check_continues(self._ledger, position)
            return self._ledger
        ledger = Ledger.open(path_of_run(self._ledger, str(position.get("run"))))
        try:
            check_continues(ledger, position)
        except BaseException:
            ledger.close()
            raise
        self._opened = ledger
        return ledger

    @property
    def stopped(self) -> bool:
        """Whether the budget allows no further step."""
        return self.watched is not None and self.watched.stopped

    def note_loss(self, loss: Any) -> None:
        """Note the loss of a batch before the framework scales it and makes the backward pass.

        Only if audit records have this loss, too: of one that was given, the framework's may be any multiple.
        """
        if self.watched is not None and self._audits_its_loss:
            self.watched.note_loss(loss)

    def new_figures(self, *, last: bool = False) -> dict[str, float]:
        """Return epsilon for everyone and for half of the people now, by name, as far as they may be shown.

        Empty if it is too early for new ones, unless this is the ``last`` step: they take at most 2 % of the time.
        """
        point = None if self._points is None else self._points.new(last=last)
        return {} if point is None else point.named()

    def state(self) -> dict[str, Any] | None:
        """Return the position of the ledger for a checkpoint; None before the first run."""
        if self.watched is not None:
            self._position = self.watched.state_dict()
        return self._position

    def load_state(self, position: Mapping[str, Any]) -> None:
        """Note the position of a checkpoint, from which the next run continues."""
        self._position = dict(position)

    def end(self, *, failed: bool = False) -> None:
        """Close the run and leave optimizer and module without hooks; statement and report if it did not fail."""
        watched, self.watched, self._points = self.watched, None, None
        if watched is None:
            self._release()
            return
        self._position = watched.state_dict()
        if failed:
            watched.at_end = None
        try:
            watched.close()
        finally:
            self._release()

    def _release(self) -> None:
        if self._hooks is not None:
            self._hooks.remove_hooks()
            self._hooks = None
        for each in self._frozen:
            each.requires_grad_(True)
        self._frozen = []
        if self._opened is not None:
            self._opened.close()
            self._opened = None


def _show_a_record(loader: Any) -> None:
    """Let Opacus' collate function see the form of a record, so that the first batch may be empty; draw nothing."""
    collate = loader.collate_fn
    if isinstance(collate, CollateFnWithEmpty) and collate.first_batch is None:
        with borrowed_random_numbers():
            collate([loader.dataset[0]])
