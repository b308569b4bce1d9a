"""A ``Trainer`` of Hugging Face that trains with Opacus and keeps a ledger.

What it does differently from ``Trainer``, and why

- The training loader draws by Poisson sampling, on average ``per_device_train_batch_size`` times
  ``gradient_accumulation_steps`` records. A step is one draw, in parts of at most ``per_device_train_batch_size``.
- Losses are means over records (``record_loss.py``), and are never divided by the number of items of a whole batch.
- ``grad_norm`` is not logged, nor are tokens and floating-point operations counted: they come from training records
  without noise. (So does the training loss, which everybody wants to see. It is not covered by any epsilon: do not
  publish it.)
- Batches are not skipped when a run is resumed: every draw is fresh.

What would break this: a Trainer that computes steps without ``get_batch_samples`` and ``training_step``, or that takes
the optimizer elsewhere than from ``self.optimizer``. tests/with_transformers would tell.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import get_last_checkpoint

from bayesdp.opacus.audit_loss import BatchLoss
from bayesdp.opacus.framework_run import FrameworkRun
from bayesdp.run_ledger import Ledger
from bayesdp.transformers.record_loss import has_token_labels, record_losses
from bayesdp.transformers.whole_draws import DrawSplitter, WholeDraw, in_parts, records_of
from bayesdp.validation import refuse

_OF_TRAINER = (
    "data_collator",
    "train_dataset",
    "eval_dataset",
    "processing_class",
    "model_init",
    "compute_loss_func",
    "compute_metrics",
    "callbacks",
    "optimizers",
    "optimizer_cls_and_kwargs",
    "preprocess_logits_for_metrics",
)


class PrivateTrainer(Trainer):
    """Train as ``Trainer`` does, with Opacus; every step is in the ledger before its update is applied.

    ``epsilon`` and, with enough audit records, ``epsilon_half`` are logged beside the loss (``bayesdp.loggers`` says
    what they mean), as often as takes 2 % of the time and at the end. Training stops when the budget is spent.
    Checkpoints contain the position of the ledger, and ``train(resume_from_checkpoint=...)`` continues it. Evaluation,
    prediction, saving and peft models are as in ``Trainer``.

    Args:
        model: A model or a peft model. Dropout makes claims about shares estimates: switch it off in the configuration.
        args: ``TrainingArguments``; ``max_grad_norm`` among them has no effect.
        ledger: An open ``Ledger``, or the path of one: of a new one, or of that of the checkpoint.
        noise_multiplier: Of ``PrivacyEngine.make_private``.
        max_grad_norm: The clip bound of a record's gradient, of ``make_private``.
        audit: A data set of people from the same population who are not trained on; it is collated as training data.
        secure: Whether noise and batches come from the operating system instead of PyTorch's generator, which the
            Trainer seeds with ``args.seed`` and restores from checkpoints.
        options: Arguments of ``Trainer``, of ``make_private`` (``clipping``, ...) and of ``bayesdp.opacus.watch``
            (``budget``, ``steps``, ``report``, ``delta``, ``every``, ...).

    Raises TypeError for an option that none of them has; InvalidInputError for several processes or devices, and, from
    ``train``, for whatever ``watch`` refuses.
    """

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        *,
        ledger: Ledger | str | Path,
        noise_multiplier: float,
        max_grad_norm: float,
        audit: Any = None,
        secure: bool = True,
        **options: Any,
    ) -> None:
        of_trainer = {name: options.pop(name) for name in _OF_TRAINER if name in options}
        private = {"noise_multiplier": noise_multiplier, "max_grad_norm": max_grad_norm, **options}
        self._run = FrameworkRun(ledger, private, secure=secure)
        self._audit = audit
        super().__init__(model, args, **of_trainer)
        if self.args.world_size > 1 or self.args.n_gpu > 1:
            raise refuse("world_size", self.args.world_size * max(self.args.n_gpu, 1), "one process and one device")
        if self.args.auto_find_batch_size:
            raise refuse("auto_find_batch_size", True, "False: the batch size is a setting of the noise")
        self._own_args = self.args
        self._splitter: DrawSplitter | None = None
        self._plain_optimizer: Any = None
        self.add_callback(_Progress(self._run))

    @property
    def watched(self) -> Any:
        """The ``Watch`` of the run while ``train`` goes on, else None."""
        return self._run.watched

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **options: Any) -> Any:
        """Train as ``Trainer.train`` does; with a checkpoint, continue the ledger that it belongs to.

        Raises InvalidInputError for a checkpoint of a run without a ledger, LedgerError if the ledger lacks its steps.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir)
        if resume_from_checkpoint:
            self._run.load_state(_position_of(Path(resume_from_checkpoint)))
        self.args = _private_arguments(self._own_args)
        failed = True
        try:
            result = super().train(resume_from_checkpoint or None, *args, **options)
            failed = False
            return result
        finally:
            self.args = self._own_args
            self._splitter = None
            self.__dict__.pop("create_optimizer", None)
            if self._plain_optimizer is not None:
                self.optimizer, self._plain_optimizer = self._plain_optimizer, None
            self._run.end(failed=failed)

    # What the Trainer calls while it trains

    def get_train_dataloader(self) -> Any:
        """Return the training loader; inside ``train``, make everything private and return the draws in parts."""
        if self.args is self._own_args:
            return super().get_train_dataloader()
        expected = self._train_batch_size * self._accumulated()
        self._run.check_choices(self._audit, self._choosers(), self._validated())
        people: Any = self.train_dataset
        plain = self._get_dataloader(people, "Training", expected, is_training=True)
        self.create_optimizer()
        self._plain_optimizer = self.optimizer
        hooks, optimizer, loader = self._run.make_private(self.model, self.optimizer, _unprepared(plain))
        self.optimizer = optimizer
        self.__dict__["create_optimizer"] = lambda *_, **__: optimizer  # that of a subclass may create another one
        self._run.begin(hooks, optimizer, loader, audit=self._audit_data(), loss=BatchLoss(self._audit_loss))
        parts = in_parts(loader, self._train_batch_size, optimizer)
        self._splitter = parts.batch_sampler
        return parts

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], None]:
        """Return one draw, and no number of items: it would couple the records of a batch."""
        if self._splitter is None:
            expected = "that of PrivateTrainer, as super().get_train_dataloader() returns it"
            raise refuse("get_train_dataloader", type(self).__name__, expected)
        drawn = WholeDraw.next_of(epoch_iterator, self._splitter)
        return ([] if drawn is None else [drawn]), None

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Add up the gradients of a draw, part by part; return the mean loss of its records."""
        optimizer: Any = self.optimizer.optimizer  # inside that of Accelerate  # pyright: ignore
        model.train()
        total, records = torch.zeros((), device=self.args.device), 0
        for part, is_last in inputs:
            size = records_of(part)
            if size:
                prepared = self._prepare_inputs(part)
                with self.compute_loss_context_manager():
                    loss = self.compute_loss(model, prepared)
                self._run.note_loss(loss)
                self.accelerator.backward(loss)
                total, records = total + size * loss.detach(), records + size
            else:
                for parameter in optimizer.params:
                    parameter.grad_sample = torch.zeros((0, *parameter.shape), device=parameter.device)
            if not is_last:
                optimizer.step()
                optimizer.zero_grad()
        return total / max(records, 1)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss as ``Trainer`` does, except that labels of tokens give a mean over records."""
        labels = inputs.get("labels")
        if self.compute_loss_func is None and isinstance(labels, torch.Tensor) and labels.ndim == 2:
            outputs = model(**inputs)
            if has_token_labels(outputs, labels):
                losses = record_losses(
                    outputs.logits, labels, shifted=self._is_causal(), smoothing=self.args.label_smoothing_factor
                )
                return (losses.mean(), outputs) if return_outputs else losses.mean()
        return super().compute_loss(model, inputs, return_outputs=return_outputs)

    def log(self, logs: dict[str, float], *args: Any, **options: Any) -> None:
        """Log as ``Trainer`` does, with epsilon beside the loss if new figures are due, and at the end."""
        if self._run.watched is not None and ("loss" in logs or "train_loss" in logs):
            logs = {**logs, **self._run.new_figures(last="train_loss" in logs)}
        super().log(logs, *args, **options)

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0: how much there is to compute depends on training records."""
        return 0

    def _prepare_inputs(self, inputs: Any) -> Any:
        """Prepare a batch as ``Trainer`` does; refuse a draw, which a subclass took for one."""
        if isinstance(inputs, WholeDraw):
            raise refuse("training_step", type(self).__name__, "that of PrivateTrainer; override compute_loss instead")
        return super()._prepare_inputs(inputs)

    def _clip_grad_norm(self, model: Any) -> None:
        """Leave the gradient without noise alone: Opacus clips the gradients of records."""

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> None:
        """Keep the norm of the gradient without noise out of the logs."""

    # Details

    def _accumulated(self) -> int:
        """Return how many batches of the Trainer a draw replaces, and let the Trainer itself accumulate none.

        Not earlier: a trial of a search for settings sets them when training has begun.
        """
        accumulated, self.args.gradient_accumulation_steps = self.args.gradient_accumulation_steps, 1
        return accumulated

    def _choosers(self) -> list[str]:
        """Return the names of what chooses by the results of evaluations while the model is trained."""
        if self.args.eval_strategy == "no":
            return []
        plateau = self.args.lr_scheduler_type == "reduce_lr_on_plateau"
        stops = any(isinstance(each, EarlyStoppingCallback) for each in self.callback_handler.callbacks)
        asked = {"load_best_model_at_end": self.args.load_best_model_at_end, "reduce_lr_on_plateau": plateau}
        return [name for name, chosen in {**asked, "EarlyStoppingCallback": stops}.items() if chosen]

    def _validated(self) -> list[Any]:
        several: Any = self.eval_dataset
        return list(several.values()) if isinstance(several, dict) else [several]

    def _audit_data(self) -> Any:
        if type(self._audit).__module__.split(".")[0] == "datasets":
            return self._remove_unused_columns(self._audit, description="Audit")
        return self._audit

    def _audit_loss(self, model: Any, batch: Any) -> torch.Tensor:
        with self.compute_loss_context_manager():
            return self.compute_loss(model, self._prepare_inputs(dict(batch)))

    def _is_causal(self) -> bool:
        model: Any = self.model
        named = model.get_base_model() if hasattr(model, "get_base_model") else model
        return type(named).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()


class _Progress(TrainerCallback, ExportableState):
    """Clears gradients, stops at the budget, and puts the position of the ledger into checkpoints."""

    def __init__(self, run: FrameworkRun) -> None:
        self._run = run

    def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Clear the gradients of records, which ``model.zero_grad`` leaves, and stop if the budget is spent."""
        objects["optimizer"].zero_grad()
        if self._run.stopped:
            control.should_training_stop = True

    def state(self) -> dict[str, Any]:
        """Return the position of the ledger in the form of the Trainer."""
        return {"args": {}, "attributes": {"position": self._run.state()}}


def _private_arguments(args: Any) -> Any:
    """Return the arguments with which the loop of the Trainer runs."""
    private = copy.copy(args)
    private.ignore_data_skip = True
    private.include_num_input_tokens_seen = "no"
    return private


def _unprepared(loader: Any) -> Any:
    """Return a loader without what Accelerate has put around its parts: Opacus builds a new one from it."""
    return loader.base_dataloader if hasattr(loader, "base_dataloader") else loader


def _position_of(checkpoint: Path) -> dict[str, Any]:
    """Return the position of the ledger in a checkpoint; raise InvalidInputError if it has none."""
    try:
        state = json.loads((checkpoint / "trainer_state.json").read_text("utf-8"))
        return dict(state["stateful_callbacks"][_Progress.__name__]["attributes"]["position"])
    except (OSError, KeyError, TypeError, ValueError):
        expected = "a checkpoint that PrivateTrainer saved; load public weights into the model instead"
        raise refuse("resume_from_checkpoint", str(checkpoint), expected) from None
