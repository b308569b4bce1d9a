"""A small network on images, by DP-SGD on Opacus: Poisson batches, gradients of each record clipped."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from bayesdp.guarantees.calibration import calibrate
from bayesdp.recipes.catalogue import ModelChoice
from bayesdp.recipes.datasets import Dataset, Rows
from bayesdp.recipes.dp_sgd import fit_model, predictions
from bayesdp.recipes.recipe_run import Fitted, RecipeRun
from bayesdp.recipes.sgd import SgdSettings


def fit(run: RecipeRun, choice: ModelChoice) -> Fitted:
    """Train on development rows, images [n, 1, 8, 8]; audit rows go into the ledger."""
    dataset = run.dataset
    noise = calibrate(
        target_epsilon=run.target_epsilon, sample_rate=choice.sample_rate, steps=choice.steps, delta=run.delta
    ).noise_multiplier
    settings = SgdSettings(
        steps=choice.steps,
        sample_rate=choice.sample_rate,
        clip=choice.clip,
        noise_multiplier=noise,
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
        arrays={name: one.numpy() for name, one in model.state_dict().items()},
        classify="argmax of bayesdp.recipes.model_recipe.network with this state, images [n, 1, 8, 8] from 0 to 1",
        accuracy=_accuracy(model, dataset.audit),
        baseline=lambda: _baseline(start, dataset, settings),
    )


def network(classes: int) -> nn.Module:
    """Two convolutions and a linear layer. Bounded activations: gradients then vary less (Papernot et al. 2021).

    The weights it starts with come from a seed of their own, which nobody needs to keep: they know nothing.
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
    """Not private: the same network without noise and clipping."""
    inputs, targets = _tensors(dataset.development)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loss: Any = nn.CrossEntropyLoss()
    for _ in range(settings.steps):
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()
        optimizer.step()
    return _accuracy(model, dataset.audit)
