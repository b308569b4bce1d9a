"""DP-SGD for any model of PyTorch, on Opacus, with noise and batches from a cryptographic generator."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from opacus import GradSampleModule
from opacus.data_loader import wrap_collate_with_empty
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

from bayesdp import validation
from bayesdp.opacus.audit import quiet_hooks, separate_loss
from bayesdp.opacus.secure import SecureNoise, SecureSampler
from bayesdp.opacus.watching import Watch, watch
from bayesdp.progress import Progress
from bayesdp.randomness import Randomness, random_mask
from bayesdp.recipes.checkpoint import Arrays, Checkpoint
from bayesdp.recipes.loop import run_steps
from bayesdp.recipes.sgd import SgdSettings
from bayesdp.run_ledger import Ledger
from bayesdp.validation import refuse

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def fit_model(
    model: nn.Module,
    loss: Loss,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    settings: SgdSettings,
    *,
    ledger: Ledger,
    randomness: Randomness,
    audit: tuple[torch.Tensor, torch.Tensor] | None = None,
    at_once: int | None = None,
    checkpoint: Checkpoint | None = None,
    track: Progress = iter,
) -> None:
    """Train ``model`` in place by Poisson-sampled DP-SGD; every step is in the ledger before it is used.

    ``loss`` is a mean over the batch; sums are divided by the expected size of a batch, whatever is drawn. ``audit``:
    records that are not trained on. ``at_once``: how many records of a batch are computed together, for large batches
    in little memory. What Opacus or the accounting cannot handle is refused, as by ``bayesdp.opacus.watch``.
    """
    if settings.average:
        raise refuse("average", settings.average, "0: weights of models are not averaged")
    if at_once is not None:
        validation.count("at_once", at_once, minimum=1)
    separate_loss(loss, "mean", targets)
    run = _Training(model, loss, inputs, targets, settings, ledger, randomness, audit, at_once)
    try:
        run_steps(run.step, run, steps=settings.steps, ledger=ledger, checkpoint=checkpoint, track=track)
    finally:
        run.close()


class _Training:
    """A model that is being trained: what Opacus needs around it, and its state."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        settings: SgdSettings,
        ledger: Ledger,
        randomness: Randomness,
        audit: tuple[torch.Tensor, torch.Tensor] | None,
        at_once: int | None,
    ) -> None:
        self._plain, self._loss, self._settings, self._randomness = model.train(), loss, settings, randomness
        self._masks: list[torch.Tensor] | None = None
        records: Any = audit
        if audit is not None and settings.mask is not None:
            records = MaskedAudit(model, loss, *audit, lambda: self._masks)
        self._model: Any = GradSampleModule(model, batch_first=True, loss_reduction="mean")
        self._sgd = torch.optim.SGD(model.parameters(), lr=settings.learning_rate, momentum=settings.momentum)
        self._optimizer: Any = DPOptimizer(
            self._sgd,
            noise_multiplier=settings.noise_multiplier,
            max_grad_norm=settings.clip,
            expected_batch_size=settings.sample_rate * len(targets),  # type: ignore[arg-type]
        )
        self._noise = SecureNoise(self._optimizer, randomness, step=ledger.steps)
        dataset = TensorDataset(inputs, targets)
        sampler: Any = SecureSampler(
            num_samples=len(targets),
            sample_rate=settings.sample_rate,
            steps=max(settings.steps - ledger.steps, 0),
            randomness=randomness,
            first=ledger.steps,
        )
        if at_once is not None:
            sampler = BatchSplittingSampler(sampler=sampler, max_batch_size=at_once, optimizer=self._optimizer)
        collate = wrap_collate_with_empty(
            collate_fn=default_collate,
            sample_empty_shapes=[(0, *one.shape) for one in dataset[0]],
            dtypes=[one.dtype for one in dataset[0]],
        )
        loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=collate)
        try:
            self._watch: Watch = watch(self._model, self._optimizer, loader, ledger=ledger, audit=records, loss=loss)
        except BaseException:
            self._model.to_standard_module()
            raise
        self._batches = iter(loader)

    def step(self, number: int) -> None:
        """Draw a batch and take a step; in as many parts as it is computed in."""
        self._masks = self._new_masks(number)
        self._noise.masks = self._masks
        while True:
            inputs, targets = next(self._batches)
            self._optimizer.zero_grad()
            with quiet_hooks():
                self._loss(self._model(inputs), targets).backward()
            self._mask_gradients()
            self._optimizer.step()
            if not self._optimizer._is_last_step_skipped:
                return

    def close(self) -> None:
        """Leave the plain model."""
        self._watch.close()
        self._model.to_standard_module()

    def state(self) -> Arrays:
        """Parameters, buffers and momentum."""
        found = {f"model.{name}": one.detach().cpu().numpy() for name, one in self._plain.state_dict().items()}
        for number, parameter in enumerate(self._plain.parameters()):
            momentum = self._sgd.state.get(parameter, {}).get("momentum_buffer")
            if momentum is not None:
                found[f"momentum.{number}"] = momentum.cpu().numpy()
        return found

    def restore(self, state: Arrays) -> None:
        """From a checkpoint of the same model."""
        model = {name.removeprefix("model."): one for name, one in state.items() if name.startswith("model.")}
        try:
            self._plain.load_state_dict({name: torch.from_numpy(one) for name, one in model.items()})
        except RuntimeError:
            raise refuse("checkpoint", "other parameters", "the checkpoint of a model of the same form") from None
        for number, parameter in enumerate(self._plain.parameters()):
            if (kept := state.get(f"momentum.{number}")) is not None:
                self._sgd.state[parameter]["momentum_buffer"] = torch.from_numpy(kept).to(parameter.device)

    def _new_masks(self, number: int) -> list[torch.Tensor] | None:
        share, parameters = self._settings.mask, self._optimizer.params
        if share is None:
            return None
        sizes = [one.numel() for one in parameters]
        whole = torch.from_numpy(random_mask(self._randomness, (sum(sizes),), share, step=number))
        return [part.view_as(one).to(one) for part, one in zip(whole.split(sizes), parameters, strict=True)]

    def _mask_gradients(self) -> None:
        if self._masks is not None:
            for parameter, mask in zip(self._optimizer.params, self._masks, strict=True):
                parameter.grad_sample = parameter.grad_sample * mask


class MaskedAudit:
    """Norms of audit records where only some weights are updated: of the masked gradients, one by one (torch.func)."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        masks: Callable[[], Sequence[torch.Tensor] | None],
        at_once: int = 64,
    ) -> None:
        self.records = len(targets)
        self._model, self._loss, self._inputs, self._targets = model, loss, inputs, targets
        self._form = copy.deepcopy(model)  # without the hooks that Opacus will put into the other
        self._masks, self._at_once = masks, at_once

    def due(self) -> bool:
        """At every step."""
        return True

    def norms(self) -> torch.Tensor:
        """With the parameters and masks as they are now, [m]."""
        parameters = {name: one.detach() for name, one in self._model.named_parameters() if one.requires_grad}
        rest = {name: one.detach() for name, one in self._model.named_parameters() if not one.requires_grad}
        buffers = dict(self._model.named_buffers())
        masks = self._masks() or [torch.ones(())] * len(parameters)

        def loss(trained: Any, one: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            output: Any = torch.func.functional_call(self._form, (trained, rest, buffers), (one[None],))
            return self._loss(output, target[None])

        def norm(one: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            gradients = torch.func.grad(loss)(parameters, one, target).values()
            return sum((g * m).square().sum() for g, m in zip(gradients, masks, strict=True)).sqrt()  # type: ignore[union-attr]

        each = torch.func.vmap(norm, chunk_size=self._at_once, randomness="different")  # dropout is each record's own
        return each(self._inputs, self._targets)


def predictions(model: nn.Module, inputs: torch.Tensor) -> NDArray[np.int64]:
    """The class with the highest output for each record."""
    model.eval()
    with torch.inference_mode():
        return torch.cat([model(some).argmax(1) for some in inputs.split(1024)]).numpy()
