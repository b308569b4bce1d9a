"""Audit records that are read or collated at random: training is the same to the last bit all the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, default_collate

import bayesdp.opacus
from bayesdp import Ledger
from opacus_runs import Run, random_data, small_model


def drawn_from(source: str, generator: torch.Generator) -> float:
    draws: dict[str, Callable[[], float]] = {
        "torch": lambda: float(torch.rand(())),
        "numpy": lambda: float(np.random.uniform()),  # noqa: NPY002
        "python": random.random,
        "own": lambda: float(torch.rand((), generator=generator)),
        "none": lambda: 1.0,
    }
    return draws[source]()


class Shaken(Dataset[Any]):
    """Records that are transformed when they are read, by numbers from one of the generators that there are."""

    def __init__(self, source: str) -> None:
        self.data, self.source = random_data(230), source
        self.generator = torch.Generator().manual_seed(5)

    def __len__(self) -> int:
        return len(self.data[1])

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.data[0][number] * drawn_from(self.source, self.generator), self.data[1][number]


class Shaking:
    """A collate function that transforms a batch."""

    def __init__(self, source: str) -> None:
        self.source, self.generator = source, torch.Generator().manual_seed(5)

    def __call__(self, items: list[Any]) -> Any:
        x, y = default_collate(items)
        return x * drawn_from(self.source, self.generator), y


def shaken_run(reading: str, collating: str) -> tuple[Run, Dataset[Any]]:
    """Return a run and its audit set, which is read from the same data set."""
    everybody, engine = Shaken(reading), PrivacyEngine()
    model, draws = small_model(), torch.Generator().manual_seed(1)
    people = DataLoader(Subset(everybody, range(200)), batch_size=20, generator=draws, collate_fn=Shaking(collating))
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=people,
        noise_generator=torch.Generator().manual_seed(2),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    return Run(engine, model, optimizer, loader, nn.CrossEntropyLoss()), Subset(everybody, range(200, 230))


def given_as(way: str, run: Run, audit: Dataset[Any], collate: Any) -> Any:
    if way == "loader":
        return DataLoader(audit, batch_size=30, collate_fn=collate)
    if way == "one by one":

        def loss(model: Any, batch: Any) -> torch.Tensor:
            return run.loss(model(batch[0]), batch[1])

        return bayesdp.opacus.OneByOne(run.model, run.optimizer, run.loader, audit=audit, loss=loss)
    return audit


@pytest.mark.parametrize("where", ["reading", "collating"])
@pytest.mark.parametrize("source", ["torch", "numpy", "python", "own"])
@pytest.mark.parametrize("way", ["data set", "loader", "one by one"])
def test_training_is_the_same(where: str, source: str, way: str) -> None:
    results = []
    for watched in (False, True):
        torch.manual_seed(3)
        np.random.seed(3)  # noqa: NPY002
        random.seed(3)
        run, audit = shaken_run(*((source, "none") if where == "reading" else ("none", source)))
        if watched:
            given = given_as(way, run, audit, run.loader.collate_fn)
            run.watch(Ledger(), audit=given, loss=run.loss)
        run.train()
        numbers = float(torch.rand(())), float(np.random.uniform()), random.random()  # noqa: NPY002
        results.append((run.parameters.tobytes(), numbers))
    assert results[0] == results[1]
