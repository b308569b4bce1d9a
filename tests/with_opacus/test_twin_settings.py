"""Settings that change while a model is trained: audit records go through a copy that has them, too."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bayesdp import Ledger
from opacus_runs import audit_norms, batch_norms, private_run, random_data, small_model

DATA = random_data(40)


class Tempered(nn.Module):
    """A model whose outputs are multiplied by whatever it keeps."""

    def __init__(self, kept: Any, read: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layers, self.kept, self.read = small_model(), kept, read

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) * self.read(self.kept)


CHANGES: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], None]]] = {
    "a number": (1.0, lambda kept: kept, lambda model: setattr(model, "kept", 5.0)),
    "none": (None, lambda kept: kept or 1.0, lambda model: setattr(model, "kept", 5.0)),
    "a number of NumPy": (np.float64(1), float, lambda model: setattr(model, "kept", np.float64(5))),
    "a tensor": (torch.ones(()), lambda kept: kept, lambda model: setattr(model, "kept", torch.tensor(5.0))),
    "a tensor in place": (torch.ones(()), lambda kept: kept, lambda model: model.kept.fill_(5.0)),
    "a tuple": ((1.0, 2), lambda kept: kept[0], lambda model: setattr(model, "kept", (5.0, 2))),
    "a list": ([1.0, 2], lambda kept: kept[0], lambda model: model.kept.reverse()),
    "another list": ([1.0], lambda kept: kept[0], lambda model: setattr(model, "kept", [5.0])),
    "a dictionary": ({"by": 1.0}, lambda kept: kept["by"], lambda model: model.kept.update(by=5.0)),
    "a tensor in a dictionary": (
        {"by": torch.ones(())},
        lambda kept: kept["by"],
        lambda model: model.kept.update(by=torch.tensor(5.0)),
    ),
    "a configuration": (SimpleNamespace(by=1.0), lambda kept: kept.by, lambda model: setattr(model.kept, "by", 5.0)),
}


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("name", CHANGES)
def test_the_norms_are_those_of_the_batch_after_a_change(name: str, mode: str, ledger: Ledger) -> None:
    kept, read, change = CHANGES[name]
    run = private_run(Tempered(copy.deepcopy(kept), read), data=DATA, batch=len(DATA[0]), mode=mode, max_grad_norm=1e6)
    run.watch(ledger, audit=DATA, loss=run.loss)
    run.train()
    change(run.model._module)
    run.train(epochs=2)
    norms = [audit_norms(ledger, step) for step in (1, 2, 3)]
    assert np.allclose(norms, [batch_norms(ledger, step) for step in (1, 2, 3)], rtol=1e-4)
    assert norms[1].mean() > 1.5 * norms[0].mean()


class Recalls(nn.Module):
    """A model that keeps what its pass has made, with one row for each record."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = small_model()
        self.state: tuple[torch.Tensor, ...] | None = None
        self.last: torch.Tensor | None = None
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.state is None or len(self.state[0]) != len(x):
            self.state = (torch.zeros(len(x), 1),)
        self.last = outputs = self.layers(x) + 0 * self.state[0]
        self.state = (self.state[0] + 1,)
        self.seen.append(len(x))
        return outputs


def test_what_a_pass_keeps_is_its_own(ledger: Ledger) -> None:
    run = private_run(model := Recalls())
    run.watch(ledger, audit=random_data(7, 5), loss=run.loss)
    run.train()
    assert model.last is not None
    assert model.state is not None
    assert model.seen == [len(batch_norms(ledger, step)) for step in range(1, 11)]
    assert len(model.last) == len(model.state[0]) == model.seen[-1]
