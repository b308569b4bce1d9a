"""Losses that look at the whole batch are found, however they are wrapped and however rare what gives them away."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from bayesdp import InvalidInputError, Ledger
from opacus_runs import CLASSES, FEATURES, audit_norms, batch_norms, private_run, random_data

WEIGHTS = torch.tensor([1.0, 5.0, 25.0])
WRAPPED: dict[str, Any] = {
    "partial": partial(nn.functional.cross_entropy, weight=WEIGHTS),
    "lambda": lambda output, target: nn.functional.cross_entropy(output, target, weight=WEIGHTS),
    "own module": type("Weighted", (nn.CrossEntropyLoss,), {})(weight=WEIGHTS),
}
FOUND = r"loss='coupled records': .* a function loss\(model, batch\) that returns one loss|loss\.weight='a tensor'"


def with_a_rare_class(records: int = 300) -> tuple[torch.Tensor, torch.Tensor]:
    """All records have class 0, except one in the middle."""
    x, y = random_data(records, seed=9)
    y = torch.zeros_like(y)
    y[records // 2 + 5] = 2
    return x, y


@pytest.mark.parametrize("form", ["tensors", "data set"])
@pytest.mark.parametrize("wrapped", WRAPPED)
def test_weights_are_found_if_a_single_record_has_another(wrapped: str, form: str) -> None:
    audit = with_a_rare_class()
    with pytest.raises(InvalidInputError, match=FOUND):
        private_run().watch(
            Ledger(), audit=audit if form == "tensors" else TensorDataset(*audit), loss=WRAPPED[wrapped]
        )


def losses(model: Any, batch: Any) -> torch.Tensor:
    inputs, targets = batch
    return WEIGHTS[targets] * nn.functional.cross_entropy(model(inputs), targets, reduction="none")


def test_weights_of_each_records_own_loss_are_fine() -> None:
    data = random_data(30)
    run, ledger = private_run(data=data, batch=30), Ledger(keep_norms=True)
    run.watch(ledger, audit=data, loss=losses)
    for batch in run.loader:
        run.optimizer.zero_grad()
        losses(run.model, batch).mean().backward()
        run.optimizer.step()
    assert np.allclose(audit_norms(ledger, 1), batch_norms(ledger, 1), rtol=1e-4)


class Tagger(nn.Module):
    """Gives each of four words a class."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES // 4, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.unflatten(1, (4, -1)))


def tagged(records: int, ignored: dict[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return words and classes; of some records, the last ``ignored`` classes do not count."""
    x, _ = random_data(records)
    y = torch.randint(0, CLASSES, (records, 4), generator=torch.Generator().manual_seed(1))
    for record, words in ignored.items():
        y[record, 4 - words :] = -100
    return x, y


def mean_over_words(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


@pytest.mark.parametrize("ignored", [{}, {131: 3}])
def test_a_mean_over_words_is_found_if_one_record_ignores_some(ignored: dict[int, int]) -> None:
    run = private_run(Tagger(), data=tagged(200, {}))
    audit = tagged(200, ignored)
    if not ignored:
        run.watch(Ledger(), audit=audit, loss=mean_over_words)
        return
    with pytest.raises(InvalidInputError, match="loss='coupled records'"):
        run.watch(Ledger(), audit=audit, loss=mean_over_words)
