"""DP-SGD for any PyTorch model, on Opacus, with noise and batches from a cryptographic generator.

``fit_model`` trains a model; ``fit_recipe`` is the recipe around it, for a small network on images.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesdp.optional import needs

with needs("demo", "training a network with DP-SGD"):  # first, as the modules of bayesdp.opacus need Opacus too
    import torch
    from opacus import GradSampleModule
    from opacus.data_loader import wrap_collate_with_empty
    from opacus.optimizers import DPOptimizer
    from opacus.utils.batch_memory_manager import BatchSplittingSampler
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset, default_collate

from bayesdp import validation
from bayesdp.opacus import SecureNoise, SecureSampler, Watch, watch
from bayesdp.opacus.audit_loss import separate_loss
from bayesdp.opacus.twin import quiet_hooks
from bayesdp.progress import Progress
from bayesdp.randomness import Randomness, random_mask
from bayesdp.recipes.catalogue import NetworkChoice
from bayesdp.recipes.checkpoint import Arrays, Checkpoint
from bayesdp.recipes.datasets import Dataset, Rows
from bayesdp.recipes.descent import SgdSettings
from bayesdp.recipes.loop import run_steps
from bayesdp.recipes.recipe_run import Fitted, RecipeRun
from bayesdp.recipes.release import RESTS_ON
from bayesdp.recipes.stages import stages
from bayesdp.run_ledger import Ledger
from bayesdp.validation import refuse

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_ROWS_AT_ONCE = 1024


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

    ``loss`` must be a mean over the batch. Sums of clipped gradients are divided by the expected size of a batch,
    whatever is drawn. ``audit`` are inputs and targets of people from the same population who are not trained on; the
    norms that their gradients would have go into the ledger. ``at_once`` is the number of records of a batch that are
    computed together, for large batches in little memory; it changes nothing else. A ledger that has steps is continued
    from ``checkpoint``. Afterwards the model is a plain one again, without the hooks of Opacus.

    Raises InvalidInputError for settings that do not apply to models (``average``), for a loss that couples records and
    for everything else that Opacus or the accounting cannot handle, as ``bayesdp.opacus.watch`` does. All rows go
    through model and loss once before the first step: a row that makes them fail, such as a class that the model does
    not have, is refused then, because a run that fails at the step that draws the row would give it away.
    """
    if settings.average:
        raise refuse("average", settings.average, "0: weights of models are not averaged")
    if at_once is not None:
        validation.count("at_once", at_once, minimum=1)
    separate_loss(loss, "mean", targets)
    _check_rows(model, loss, inputs, targets, at_once)
    run = _Training(model, loss, inputs, targets, settings, ledger, randomness, audit, at_once)
    try:
        run_steps(run.step, run, steps=settings.steps, ledger=ledger, checkpoint=checkpoint, track=track)
    finally:
        run.close()


def _check_rows(model: nn.Module, loss: Loss, inputs: torch.Tensor, targets: torch.Tensor, at_once: int | None) -> None:
    """Raise InvalidInputError for rows of which the model or the loss cannot be computed."""
    if len(inputs) != len(targets):
        raise refuse("len(inputs)", len(inputs), f"a row for each of {len(targets)} targets")
    training = model.training
    with torch.no_grad(), torch.random.fork_rng():
        try:
            for x, y in zip(*(rows.split(at_once or _ROWS_AT_ONCE) for rows in (inputs, targets)), strict=True):
                loss(model.eval()(x), y)
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise refuse("inputs, targets", "rows", f"rows that model and loss can take ({reason})") from None
        finally:
            model.train(training)


class _Training:
    """A model in training, wrapped as Opacus needs it, with its state for checkpoints."""

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
            caveats=RESTS_ON,
        )
        if at_once is not None:
            sampler = BatchSplittingSampler(sampler=sampler, max_batch_size=at_once, optimizer=self._optimizer)
        collate = wrap_collate_with_empty(
            collate_fn=default_collate,
            sample_empty_shapes=[(0, *tensor.shape) for tensor in dataset[0]],
            dtypes=[tensor.dtype for tensor in dataset[0]],
        )
        loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=collate)
        try:
            self._watch: Watch = watch(self._model, self._optimizer, loader, ledger=ledger, audit=records, loss=loss)
        except BaseException:
            self._model.to_standard_module()
            raise
        self._batches = iter(loader)

    def step(self, number: int) -> None:
        """Draw a batch and take a step: Opacus updates the weights after the last part of the batch."""
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
        """Take the hooks of Opacus off the model."""
        self._watch.close()
        self._model.to_standard_module()

    def state(self) -> Arrays:
        """Return parameters, buffers and momentum."""
        arrays = {f"model.{name}": value.detach().cpu().numpy() for name, value in self._plain.state_dict().items()}
        for number, parameter in enumerate(self._plain.parameters()):
            momentum = self._sgd.state.get(parameter, {}).get("momentum_buffer")
            if momentum is not None:
                arrays[f"momentum.{number}"] = momentum.cpu().numpy()
        return arrays

    def restore(self, state: Arrays) -> None:
        """Go back to a state. Raises InvalidInputError if its parameters are not those of the model."""
        model = {name.removeprefix("model."): array for name, array in state.items() if name.startswith("model.")}
        try:
            self._plain.load_state_dict({name: torch.from_numpy(array) for name, array in model.items()})
        except RuntimeError:
            raise refuse("checkpoint", "other parameters", "the checkpoint of a model of the same form") from None
        for number, parameter in enumerate(self._plain.parameters()):
            if (kept := state.get(f"momentum.{number}")) is not None:
                self._sgd.state[parameter]["momentum_buffer"] = torch.from_numpy(kept).to(parameter.device)

    def _new_masks(self, number: int) -> list[torch.Tensor] | None:
        share, parameters = self._settings.mask, self._optimizer.params
        if share is None:
            return None
        sizes = [parameter.numel() for parameter in parameters]
        whole = torch.from_numpy(random_mask(self._randomness, (sum(sizes),), share, step=number))
        parts = zip(whole.split(sizes), parameters, strict=True)
        return [part.view_as(parameter).to(parameter) for part, parameter in parts]

    def _mask_gradients(self) -> None:
        if self._masks is not None:
            for parameter, mask in zip(self._optimizer.params, self._masks, strict=True):
                parameter.grad_sample = parameter.grad_sample * mask


class MaskedAudit:
    """Audit records of a run with masks: norms of their masked gradients, computed one by one with torch.func.

    It has the form of an audit set that ``bayesdp.opacus.watch`` takes.
    """

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
        self._form = copy.deepcopy(model)  # which stays without the hooks that Opacus puts into the model
        self._masks, self._at_once = masks, at_once

    def due(self) -> bool:
        """Return True: norms are measured at every step."""
        return True

    def norms(self) -> torch.Tensor:
        """Return the norms [m] with the parameters and masks as they are now."""
        everything = dict(self._model.named_parameters())
        parameters = {name: value.detach() for name, value in everything.items() if value.requires_grad}
        rest = {name: value.detach() for name, value in everything.items() if not value.requires_grad}
        buffers = dict(self._model.named_buffers())
        masks = self._masks() or [torch.ones(())] * len(parameters)

        def loss(trained: Any, record: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            output: Any = torch.func.functional_call(self._form, (trained, rest, buffers), (record[None],))
            return self._loss(output, target[None])

        def norm(record: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            gradients = torch.func.grad(loss)(parameters, record, target).values()
            return sum((g * m).square().sum() for g, m in zip(gradients, masks, strict=True)).sqrt()  # type: ignore[union-attr]

        # randomness="different": each record has a dropout of its own
        norms = torch.func.vmap(norm, chunk_size=self._at_once, randomness="different")
        return norms(self._inputs, self._targets)


def predictions(model: nn.Module, inputs: torch.Tensor) -> NDArray[np.int64]:
    """Return the class with the highest output for each record, [n]; leaves the model in evaluation mode."""
    model.eval()
    with torch.inference_mode():
        return torch.cat([model(part).argmax(1) for part in inputs.split(_ROWS_AT_ONCE)]).numpy()


def fit_recipe(run: RecipeRun, choice: NetworkChoice) -> Fitted:
    """Train the network on development rows, images [n, 1, 8, 8], within ``run.target_epsilon`` for everyone."""
    dataset = run.dataset
    [training] = stages(choice, run.target_epsilon, run.delta)
    settings = SgdSettings(
        steps=choice.steps,
        sample_rate=choice.sample_rate,
        clip=choice.clip,
        noise_multiplier=training.noise_multiplier,
        learning_rate=choice.learning_rate,
        momentum=choice.momentum,
    )
    model, (inputs, targets) = network(dataset.classes), _tensors(dataset.development)
    start = copy.deepcopy(model)
    fit_model(
        model,
        nn.CrossEntropyLoss(),
        inputs,
        targets,
        settings,
        ledger=run.ledger,
        randomness=run.randomness,
        audit=_tensors(dataset.audit),
        checkpoint=run.checkpoint(settings.to_dict()),
        track=run.track,
    )
    return Fitted(
        arrays={name: value.numpy() for name, value in model.state_dict().items()},
        classify="argmax of bayesdp.recipes.dp_sgd.network with this state, images [n, 1, 8, 8] from 0 to 1",
        accuracy=_accuracy(model, dataset.audit),
        baseline=lambda: _baseline(start, dataset, settings),
    )


def network(classes: int) -> nn.Module:
    """Return a network of two convolutions and a linear layer for images [n, 1, 8, 8], with its initial weights.

    Activations are bounded: gradients then vary less (Papernot et al., 2021). The initial weights come from a fixed
    seed, the same in every run, and know nothing.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.Tanh(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.Tanh(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(128, classes),
        )


def _tensors(rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(rows.x), torch.from_numpy(rows.y)


def _accuracy(model: nn.Module, rows: Rows) -> float:
    return float((predictions(model, torch.from_numpy(rows.x)) == rows.y).mean())


def _baseline(model: nn.Module, dataset: Dataset, settings: SgdSettings) -> float:
    """Return the accuracy on audit rows of the same network, trained without noise and clipping. Not private."""
    inputs, targets = _tensors(dataset.development)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loss: Any = nn.CrossEntropyLoss()
    for _ in range(settings.steps):
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()
        optimizer.step()
    return _accuracy(model, dataset.audit)
