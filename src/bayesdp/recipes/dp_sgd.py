"""DP-SGD for any PyTorch model, on Opacus, with noise and batches from a cryptographic generator.

``fit_model`` trains a model; ``fit_recipe`` is the recipe around it, for a small network on images.
"""

from __future__ import annotations

import copy
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
from bayesdp.recipes.checkpoint import Arrays, Checkpoint
from bayesdp.recipes.choices import NetworkChoice
from bayesdp.recipes.datasets import Dataset, Rows
from bayesdp.recipes.descent import SgdSettings
from bayesdp.recipes.loop import run_steps
from bayesdp.recipes.recipe_run import Fitted, RecipeRun
from bayesdp.recipes.record_norms import Loss, RecordNorms, Views, check_views, only_view
from bayesdp.recipes.release import RESTS_ON
from bayesdp.recipes.stages import stages
from bayesdp.run_ledger import Ledger
from bayesdp.validation import refuse

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
    views: Views = only_view,
    at_once: int | None = None,
    checkpoint: Checkpoint | None = None,
    track: Progress = iter,
) -> None:
    """Train ``model`` in place by Poisson-sampled DP-SGD; every step is in the ledger before it is used.

    ``loss`` must be a mean over the batch. Sums of clipped gradients are divided by the expected size of a batch,
    whatever is drawn. ``audit`` are inputs and targets of people from the same population who are not trained on; the
    norms that their gradients would have go into the ledger. ``at_once`` is the number of records of a batch that are
    computed together, for large batches in little memory; it changes nothing else. A ledger that has steps is continued
    from ``checkpoint``. With ``average`` in the settings, the weights after the last steps are averaged, which is
    post-processing. Afterwards the model is a plain one again, without the hooks of Opacus.

    ``views`` maps records [b, ...] to fixed variants of each, [b, k, ...], such as an image and its mirror image
    (augmentation multiplicity; De et al., 2022, arXiv:2204.13650). What is clipped is the mean of the gradients of a
    record's views, one vector for each record; audit norms are those of this mean. Views must not be random: a record
    then contributes a function of the weights, and its norm says all about a step. Random views would be randomness
    that is not released, for which one draw of an audit norm is not a bound.

    Raises InvalidInputError for a loss that couples records, for views that are random or depend on other records, and
    for everything else that Opacus or the accounting cannot handle, as ``bayesdp.opacus.watch`` does. All rows go
    through model and loss once before the first step: a row that makes them fail, such as a class that the model does
    not have, is refused then, because a run that fails at the step that draws the row would give it away.
    """
    if at_once is not None:
        validation.count("at_once", at_once, minimum=1)
    separate_loss(loss, "mean", targets)
    check_views(views, inputs)
    _check_rows(model, loss, inputs, targets, views, at_once)
    run = _Training(model, loss, inputs, targets, settings, ledger, randomness, audit, views, at_once)
    try:
        run_steps(run.step, run, steps=settings.steps, ledger=ledger, checkpoint=checkpoint, track=track)
    finally:
        run.close()
    run.take_average()


def _check_rows(
    model: nn.Module, loss: Loss, inputs: torch.Tensor, targets: torch.Tensor, views: Views, at_once: int | None
) -> None:
    """Raise InvalidInputError for rows of which the model or the loss cannot be computed."""
    if len(inputs) != len(targets):
        raise refuse("len(inputs)", len(inputs), f"a row for each of {len(targets)} targets")
    training = model.training
    with torch.no_grad(), torch.random.fork_rng():
        try:
            for x, y in zip(*(rows.split(at_once or _ROWS_AT_ONCE) for rows in (inputs, targets)), strict=True):
                _loss_of_views(model.eval(), loss, views(x), y)
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise refuse("inputs, targets", "rows", f"rows that model and loss can take ({reason})") from None
        finally:
            model.train(training)


def _loss_of_views(model: Any, loss: Loss, views: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean loss over all views [b, k, ...] of records with these targets [b, ...]."""
    return loss(model(views.flatten(0, 1)), targets.repeat_interleave(views.shape[1], dim=0))


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
        views: Views,
        at_once: int | None,
    ) -> None:
        self._plain, self._loss, self._settings, self._randomness = model.train(), loss, settings, randomness
        self._views = views
        self._masks: list[torch.Tensor] | None = None
        self._sum = [torch.zeros_like(parameter) for parameter in model.parameters()]
        self._averaged = 0
        records: Any = audit
        if audit is not None and (settings.mask is not None or views is not only_view):
            records = RecordNorms(model, loss, *audit, views=views, masks=lambda: self._masks)
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
            views = self._views(inputs)
            with quiet_hooks():
                _loss_of_views(self._model, self._loss, views, targets).backward()
            self._change_gradients(*views.shape[:2])
            self._optimizer.step()
            if not self._optimizer._is_last_step_skipped:
                break
        if number >= round((1 - self._settings.average) * self._settings.steps):
            for total, parameter in zip(self._sum, self._plain.parameters(), strict=True):
                total += parameter.detach()
            self._averaged += 1

    def take_average(self) -> None:
        """Put the average of the weights after the last steps into the model, if there were such steps."""
        if self._averaged:
            with torch.no_grad():
                for total, parameter in zip(self._sum, self._plain.parameters(), strict=True):
                    parameter.copy_(total / self._averaged)

    def close(self) -> None:
        """Take the hooks of Opacus off the model."""
        self._watch.close()
        self._model.to_standard_module()

    def state(self) -> Arrays:
        """Return parameters, buffers, momentum, and the sum of weights to average."""
        arrays = {f"model.{name}": value.detach().cpu().numpy() for name, value in self._plain.state_dict().items()}
        for number, parameter in enumerate(self._plain.parameters()):
            momentum = self._sgd.state.get(parameter, {}).get("momentum_buffer")
            if momentum is not None:
                arrays[f"momentum.{number}"] = momentum.cpu().numpy()
        if self._averaged:
            arrays |= {f"sum.{number}": total.cpu().numpy() for number, total in enumerate(self._sum)}
            arrays["averaged"] = np.array([self._averaged])
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
        if "averaged" in state:
            self._averaged = int(state["averaged"][0])
            self._sum = [torch.from_numpy(state[f"sum.{number}"]).to(old) for number, old in enumerate(self._sum)]

    def _new_masks(self, number: int) -> list[torch.Tensor] | None:
        share, parameters = self._settings.mask, self._optimizer.params
        if share is None:
            return None
        sizes = [parameter.numel() for parameter in parameters]
        whole = torch.from_numpy(random_mask(self._randomness, (sum(sizes),), share, step=number))
        parts = zip(whole.split(sizes), parameters, strict=True)
        return [part.view_as(parameter).to(parameter) for part, parameter in parts]

    def _change_gradients(self, records: int, views: int) -> None:
        """Replace the gradients of all views by their mean for each record, and mask it."""
        for number, parameter in enumerate(self._optimizer.params):
            if views > 1:
                parameter.grad_sample = parameter.grad_sample.unflatten(0, (records, views)).mean(1)
            if self._masks is not None:
                parameter.grad_sample = parameter.grad_sample * self._masks[number]


def predictions(model: nn.Module, inputs: torch.Tensor) -> NDArray[np.int64]:
    """Return the class with the highest output for each record, [n]; leaves the model in evaluation mode."""
    model.eval()
    with torch.inference_mode():
        return torch.cat([model(part).argmax(1) for part in inputs.split(_ROWS_AT_ONCE)]).numpy()


def settings_for(run: RecipeRun, choice: NetworkChoice, average: float = 0.0) -> SgdSettings:
    """Return the settings of ``choice`` with the noise that keeps ``run.target_epsilon`` for everyone."""
    [training] = stages(choice, run.target_epsilon, run.delta)
    return SgdSettings(
        steps=choice.steps,
        sample_rate=choice.sample_rate,
        clip=choice.clip,
        noise_multiplier=training.noise_multiplier,
        learning_rate=choice.learning_rate,
        momentum=choice.momentum,
        average=average,
    )


def fit_recipe(run: RecipeRun, choice: NetworkChoice) -> Fitted:
    """Train the network on development rows, images [n, 1, 8, 8], within ``run.target_epsilon`` for everyone."""
    dataset, settings = run.dataset, settings_for(run, choice)
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
        hits=lambda: (_hits(model, dataset.development), _hits(model, dataset.audit)),
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


def _hits(model: nn.Module, rows: Rows) -> NDArray[np.bool_]:
    return predictions(model, torch.from_numpy(rows.x)) == rows.y


def _accuracy(model: nn.Module, rows: Rows) -> float:
    return float(_hits(model, rows).mean())


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
