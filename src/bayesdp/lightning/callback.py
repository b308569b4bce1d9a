"""A callback of Lightning that makes a run private and watches it.

Why everything happens in ``on_fit_start``
    Lightning has optimizers by then, moved to their device, and has not restored their states from a checkpoint. It
    has built no loader: it does so next, in ``fit_loop.setup_data``, and begins to iterate there, before
    ``on_train_start``. An iteration that began before ``watch`` cannot be followed any more. So the callback asks for
    the loader itself, as Lightning would, and puts the private one in the place of its source
    (``fit_loop._data_source``); if a module has had the loader built already, Lightning is made to build it again.

What would break this: other names for ``_data_source`` and ``_combined_loader`` of the fit loop; an ``on_fit_start``
that comes before ``configure_optimizers``. tests/with_lightning would tell.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opacus.grad_sample import AbstractGradSampleHooks
from opacus.optimizers import DPOptimizer
from torch.utils.data import DataLoader

from bayesdp import validation
from bayesdp.lightning.library import Callback
from bayesdp.lightning.other_callbacks import choosers, most_accumulated, searches, validation_data
from bayesdp.lightning.parts_of_draws import WholeDraws
from bayesdp.lightning.training_loss import training_loss
from bayesdp.opacus.framework_run import FrameworkRun
from bayesdp.run_ledger import Ledger
from bayesdp.validation import refuse


class PrivacyCallback(Callback):
    """Train a LightningModule with Opacus and keep its ledger: ``Trainer(callbacks=[PrivacyCallback(...)])``.

    With ``noise_multiplier`` and ``max_grad_norm``, module, optimizer and loader are made private when ``fit`` begins.
    Without them, ``configure_optimizers`` is expected to have called ``make_private`` with the loader that Lightning
    uses, as in the tutorial of Opacus.

    ``epsilon`` and, with enough audit records, ``epsilon_half`` go to the progress bar, with the step they belong to,
    and to every logger of the trainer (``bayesdp.loggers`` says what they mean): as often as takes 2 % of the time, and
    at the end. ``trainer.should_stop`` is set when the
    budget is spent. Checkpoints contain the position of the ledger; ``fit(ckpt_path=...)`` continues the ledger, and is
    refused if it lacks a step from before the checkpoint. ``test`` and ``validate`` are not touched.

    Formal guarantees are those of ``bayesdp.opacus.watch``: a step is in the ledger before its update is applied.

    Args:
        ledger: An open ``Ledger``, or the path of one: of a new one, or of that of the checkpoint.
        audit: People from the same population who are not trained on: a data set, a loader or a batch.
        loss: A function ``loss(model, batch)`` that returns one loss for each audit record, or the criterion for
            (inputs, targets). By default the loss is what ``training_step`` returns. Claims name it as an assumption
            that a given one is trained with, unless it is a criterion that ``training_step`` calls, the same object.
        max_physical_batch_size: The most samples that go through the model at once: larger batches are added up in
            parts. A step of Lightning is a whole batch then, as with ``accumulate_grad_batches``; ``batch_idx`` counts
            parts.
        secure: Whether noise and batches come from the operating system instead of PyTorch's generator, which
            ``seed_everything`` makes predictable.
        options: Arguments of ``PrivacyEngine.make_private`` (``noise_multiplier``, ``max_grad_norm``, ...) and of
            ``bayesdp.opacus.watch`` (``budget``, ``steps``, ``report``, ``delta``, ``every``, ...).

    Raises TypeError for an option that neither of them has; ``fit`` raises InvalidInputError for several optimizers,
    loaders or processes, and for whatever ``watch`` refuses.
    """

    def __init__(
        self,
        *,
        ledger: Ledger | str | Path,
        audit: Any = None,
        loss: Any = None,
        max_physical_batch_size: int | None = None,
        secure: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        self._run = FrameworkRun(ledger, options, secure=secure)
        self._audit, self._loss = audit, loss
        if max_physical_batch_size is not None:
            validation.count("max_physical_batch_size", max_physical_batch_size, minimum=1)
        self._most = max_physical_batch_size
        self._source: Any = None
        self._draws: WholeDraws | None = None
        self._restored = False

    @property
    def watched(self) -> Any:
        """The ``Watch`` of the run while ``fit`` goes on, else None."""
        return self._run.watched

    # What Lightning calls

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuse callbacks that train without privacy when ``fit`` begins."""
        if stage == "fit" and (found := searches(trainer)):
            expected = "none that trains without privacy; search beforehand, with Tuner and a trainer for other data"
            raise refuse("callbacks", found[0], expected)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Make the run private and watch it, before Lightning iterates over the loader."""
        if trainer.world_size > 1:
            raise refuse("world_size", trainer.world_size, "one process: Trainer(devices=1)")
        if trainer.ckpt_path is not None and not self._restored:
            expected = "a checkpoint that was saved with PrivacyCallback; load public weights into the module instead"
            raise refuse("ckpt_path", str(trainer.ckpt_path), expected)
        self._restored = False
        if (accumulated := most_accumulated(trainer)) != 1:
            expected = "1, as batches are drawn by Poisson sampling; for large ones there is max_physical_batch_size"
            raise refuse("accumulate_grad_batches", accumulated, expected)
        if len(trainer.optimizers) != 1:
            raise refuse("len(optimizers)", len(trainer.optimizers), "one optimizer")
        if self._audit is not None and (by := choosers(trainer)):
            self._run.check_choices(self._audit, by, validation_data(trainer))
        try:
            self._begin(trainer, pl_module, trainer.optimizers[0])
        except BaseException:
            self._run.end(failed=True)
            raise

    def _begin(self, trainer: Any, module: Any, optimizer: Any) -> None:
        loader = _loader(trainer)
        if isinstance(optimizer, DPOptimizer):
            if self._run.makes_private:
                expected = "an optimizer that is not private yet; or no noise_multiplier for PrivacyCallback"
                raise refuse("optimizer", type(optimizer).__name__, expected)
            model = _hooks_of(module)
        else:
            model, optimizer, loader = self._run.make_private(module, optimizer, loader)
            trainer.strategy.optimizers = [optimizer]
        loss = self._loss
        if self._audit is not None and loss is None:
            loss = training_loss(trainer, module)
        self._run.begin(model, optimizer, loader, audit=self._audit, loss=loss)
        if self._most is not None:
            automatic = module.automatic_optimization
            self._draws = WholeDraws(trainer, loader, optimizer, self._most, automatic=automatic)
            loader = self._draws.loader
        self._use(trainer, loader)

    def _use(self, trainer: Any, loader: Any) -> None:
        """Let Lightning iterate over this loader, from its beginning."""
        loop = trainer.fit_loop
        self._source = loop._data_source
        loop._data_source = copy.copy(self._source)
        loop._data_source.instance = loader
        loop._combined_loader = None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Note whether the batch is the last part of a draw."""
        if self._draws is not None:
            self._draws.begin()

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Follow the loss through the backward pass: the module may scale it."""
        self._run.note_loss(loss)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Show and log epsilon if new figures are due, and stop if the budget allows no further step."""
        if self._draws is not None and self._draws.add_up():
            return
        if self._run.stopped:
            trainer.should_stop = True
        figures = self._run.new_figures(last=_is_last(trainer))
        if not figures or self._run.watched is None:
            return
        shown = {"epsilon_step": float(self._run.watched.ledger.steps), **figures}
        pl_module.log_dict(shown, prog_bar=True, logger=False, on_step=True, on_epoch=False, batch_size=1)
        for logger in trainer.loggers:  # now: Lightning itself logs at every 50th step, and would log them too late
            logger.log_metrics(figures, step=trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the ledger, for a checkpoint."""
        return self._run.state() or {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Note the position of the ledger at a checkpoint; ``fit`` continues from there."""
        if state_dict:
            self._run.load_state(state_dict)
            self._restored = True

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close the ledger; what was released is in it."""
        self._leave(trainer, failed=True)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the ledger, print the statement and write the report, if they were asked for."""
        self._leave(trainer, failed=False)

    def _leave(self, trainer: Any, *, failed: bool) -> None:
        if self._source is not None:
            trainer.fit_loop._data_source, self._source = self._source, None
            trainer.fit_loop._combined_loader = None
        if self._draws is not None:
            self._draws.end()
            self._draws = None
        self._run.end(failed=failed)


def _is_last(trainer: Any) -> bool:
    """Return whether no further batch will follow, as far as the trainer knows."""
    ends = trainer.current_epoch + 1 == trainer.max_epochs and trainer.is_last_batch
    return trainer.should_stop or ends or trainer.global_step == trainer.max_steps


def _loader(trainer: Any) -> Any:
    """Return the loader that Lightning has built, or would build next; raise InvalidInputError for several of them."""
    loader = trainer.train_dataloader or trainer.fit_loop._data_source.dataloader()
    if not isinstance(loader, DataLoader):
        raise refuse("train_dataloader", type(loader).__name__, "one DataLoader")
    return loader


def _hooks_of(module: Any) -> AbstractGradSampleHooks:
    """Return what ``make_private`` returned as the model, found by the hooks that it has left on the layers."""
    for layer in module.modules():
        for hook in layer._forward_hooks.values():
            owner = getattr(hook, "__self__", None)
            if isinstance(owner, AbstractGradSampleHooks):
                return owner
    raise refuse("module", type(module).__name__, "the module that was given to make_private")
