"""Audit records that are evidently rows of the training data are refused, whatever form they come in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, SubsetRandomSampler, TensorDataset

import bayesdp.opacus
from bayesdp import InvalidInputError, Ledger
from bayesdp.opacus.trained_rows import check_not_trained_on, check_one_row_each
from opacus_runs import Run, private_run, random_data, small_model

Data = TensorDataset


class Wrapped(Dataset[Any]):
    """A data set of somebody's own: what is in it is not known."""

    def __init__(self, data: Data) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, number: int) -> Any:
        return self.data[number]


class Unsized(Dataset[Any]):
    """A data set without a length."""

    def __getitem__(self, number: int) -> Any:
        return torch.zeros(12), 0


SAME: dict[str, Callable[[Data], tuple[Any, Any]]] = {
    "the data set": lambda data: (data, data),
    "a loader of it": lambda data: (DataLoader(data, batch_size=10), data),
    "a part of it": lambda data: (Subset(data, [3, 4]), data),
    "a part of a part": lambda data: (Subset(Subset(data, range(50, 100)), [0, 1]), Subset(data, range(51, 60))),
    "numbers from the end": lambda data: (Subset(data, [-1]), Subset(data, torch.tensor([199]))),
    "parts that overlap": lambda data: (Subset(data, range(101)), Subset(data, range(100, 200))),
    "among others": lambda data: (Subset(data, [7]), ConcatDataset([Data(*random_data(5)), data])),
    "a part of several": lambda data: (Subset(ConcatDataset([Data(*random_data(5)), data]), [5]), Subset(data, [0])),
    "its tensors": lambda data: (data.tensors, data),
    "rows of its tensors": lambda data: (tuple(tensor[150:] for tensor in data.tensors), Subset(data, range(160))),
    "the same inputs": lambda data: ((data.tensors[0][150:], data.tensors[1][150:] + 0), Subset(data, range(160))),
    "the same inputs in other places": lambda data: ((data.tensors[0][50:], data.tensors[1][:150]), data),
    "without a length": lambda data: (Subset(unsized := Unsized(), [1, 2]), Subset(unsized, [2, 3])),
    "its tensors again": lambda data: (Data(*data.tensors), data),
    "an object of somebody's own": lambda data: (Subset(wrapped := Wrapped(data), [0]), wrapped),
}
OTHERS: dict[str, Callable[[Data], tuple[Any, Any]]] = {
    "split": lambda data: tuple(reversed(bayesdp.opacus.split_audit(data, records=60))),
    "split twice": lambda data: (
        bayesdp.opacus.split_audit(half := Subset(data, range(100)), records=60)[1],
        ConcatDataset([Subset(data, range(100, 200)), Subset(half, [])]),
    ),
    "parts of parts": lambda data: (
        Subset(Subset(data, range(100)), [0]),
        Subset(Subset(data, range(1, 100)), [0]),
    ),
    "other rows of the tensors": lambda data: (
        tuple(t[:60] for t in data.tensors),
        Data(*(t[60:] for t in data.tensors)),
    ),
    "every other row": lambda data: (Data(*(t[::2] for t in data.tensors)), Data(*(t[1::2] for t in data.tensors))),
    "the same targets": lambda data: ((random_data(200, seed=5)[0], data.tensors[1]), data),
    "other inputs of the same tensors": lambda data: (
        (data.tensors[0][150:], data.tensors[1][150:] + 0),
        Subset(data, range(150)),
    ),
    "others without a length": lambda data: (Subset(unsized := Unsized(), [1, 2]), Subset(unsized, [3, 4])),
    "sparse inputs": lambda data: ((data.tensors[0].to_sparse(), data.tensors[1]), data),
    "copies": lambda data: (tuple(tensor.clone() for tensor in data.tensors), data),
    "other data": lambda data: (Data(*random_data(60, seed=9)), data),
    "records": lambda data: ([data[0]], [data[1]]),
    "numbers that are names": lambda data: (Subset(data, ["a"]), Subset(data, ["a"])),  # type: ignore[list-item]
}


@pytest.mark.parametrize("form", SAME)
def test_rows_of_the_training_data_are_refused(form: str) -> None:
    audit, dataset = SAME[form](Data(*random_data(200)))
    said = r"^audit='rows of the training data': expected people who are not trained on: train, audit = bayesdp\.opacus"
    with pytest.raises(InvalidInputError, match=said + r"\.split_audit\(data\), .* of train, not of data\.$"):
        check_not_trained_on(audit, dataset)


@pytest.mark.parametrize("form", OTHERS)
def test_other_rows_are_not_refused(form: str) -> None:
    check_not_trained_on(*OTHERS[form](Data(*random_data(200))))


def audit_of(run: Run, form: str) -> Any:
    if form == "split":
        return bayesdp.opacus.split_audit(run.loader.dataset, records=60)[1]
    return run.loader if form == "loader" else run.loader.dataset


@pytest.mark.parametrize("form", ["dataset", "loader", "split"])
def test_watch_refuses_what_it_trains_on_and_changes_nothing(form: str, ledger: Ledger) -> None:
    run = private_run()
    numbers = torch.get_rng_state()
    with pytest.raises(InvalidInputError, match="audit='rows of the training data'"):
        run.watch(ledger, audit=audit_of(run, form), loss=run.loss)
    assert torch.equal(torch.get_rng_state(), numbers)
    assert "pre_step" not in vars(run.optimizer)
    run.watch(ledger, audit=random_data(30, seed=9), loss=run.loss)


def test_one_by_one_refuses_them_too() -> None:
    run = private_run()

    def loss(model: Any, record: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(model(record[0]), record[1])

    with pytest.raises(InvalidInputError, match="audit='rows of the training data'"):
        bayesdp.opacus.OneByOne(run.model, run.optimizer, run.loader, audit=run.loader.dataset, loss=loss)


REPEATED: dict[str, Callable[[Data], Any]] = {
    "a row drawn again": lambda data: Subset(data, [*range(50), 7, 7]),
    "numbers from the end": lambda data: Subset(data, [3, -197]),
    "the data set twice": lambda data: ConcatDataset([data, data]),
    "its tensors again": lambda data: ConcatDataset([data, Data(*data.tensors)]),
    "parts that overlap": lambda data: ConcatDataset([Subset(data, range(101)), Subset(data, range(100, 200))]),
}


@pytest.mark.parametrize("form", REPEATED)
def test_a_row_that_is_there_twice_belongs_to_somebody_with_two(form: str) -> None:
    with pytest.raises(InvalidInputError, match=r"^unit='person': expected 'row': .* claims\(rows=k\)"):
        check_one_row_each(REPEATED[form](Data(*random_data(200))))


def test_rows_that_are_there_once_may_be_people() -> None:
    data = Data(*random_data(200))
    halves = [Subset(data, range(100)), Subset(data, range(100, 200))]
    for dataset in (data, ConcatDataset(halves), Subset(ConcatDataset(halves[::-1]), [5, 150, 3]), Wrapped(data)):
        check_one_row_each(dataset)


@pytest.mark.parametrize("given", ["path", "ledger"])
def test_watch_takes_the_unit_from_the_ledger(given: str, tmp_path: Path) -> None:
    """Each row counts by itself unless it is declared that it is a person."""
    model = small_model()
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(Subset(Data(*random_data(200)), [*range(200), 5]), batch_size=20),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    path = tmp_path / "run.ledger"
    options: dict[str, Any] = (
        {"ledger": path, "unit": "person"} if given == "path" else {"ledger": Ledger(unit="person")}
    )
    with pytest.raises(InvalidInputError, match="unit='person'"):
        bayesdp.opacus.watch(*made, **options)
    assert not path.exists()
    bayesdp.opacus.watch(*made, ledger=path).close()


def test_rows_that_a_sampler_held_back_are_trained_on(ledger: Ledger) -> None:
    """Opacus' Poisson sampling takes the place of a SubsetRandomSampler, and draws from all rows."""
    data = TensorDataset(*random_data(200))
    run = private_run()
    _, _, loader = PrivacyEngine().make_private(
        module=run.model,
        optimizer=run.optimizer,
        data_loader=DataLoader(data, batch_size=20, sampler=SubsetRandomSampler(range(160))),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    assert loader.batch_sampler.num_samples == 200
    held_back = DataLoader(data, batch_size=20, sampler=SubsetRandomSampler(range(160, 200)))
    with pytest.raises(InvalidInputError, match="audit='rows of the training data'"):
        bayesdp.opacus.watch(run.model, run.optimizer, loader, ledger=ledger, audit=held_back, loss=run.loss)
