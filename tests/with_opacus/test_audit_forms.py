"""Audit records and losses of any form: dictionaries, data sets, loaders, models that return their loss."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, TensorDataset

from bayesdp import InvalidInputError, Ledger
from opacus_runs import CLASSES, FEATURES, audit_norms, batch_norms, private_run, random_data

RECORDS = 40


class Output(NamedTuple):
    loss: torch.Tensor
    logits: torch.Tensor


class KeywordOnly(nn.Module):
    """A model in the manner of Hugging Face: keywords in, an object with a loss out."""

    def __init__(self, *, form: str = "object") -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, CLASSES))
        self.form = form

    def forward(self, *, features: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.layers(features)
        if labels is None:
            return logits
        loss = nn.functional.cross_entropy(logits, labels)
        return {"object": Output(loss, logits), "dictionary": {"loss": loss}, "tuple": (loss, logits)}[self.form]


class Dictionaries(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, records: int, seed: int = 0) -> None:
        self.x, self.y = random_data(records, seed)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return {"features": self.x[number], "labels": self.y[number]}


def dictionary_run(form: str = "object", audit: Any = None, loss: Any = None) -> Ledger:
    """Train with dictionaries whose records are all drawn at each step; return the ledger of three steps."""
    from opacus import PrivacyEngine

    torch.manual_seed(0)
    model = KeywordOnly(form=form)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(Dictionaries(RECORDS), batch_size=RECORDS),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    ledger = Ledger(keep_norms=True)
    import bayesdp.opacus

    with bayesdp.opacus.watch(model, optimizer, loader, ledger=ledger, audit=audit, loss=loss):
        for _ in range(3):
            for batch in loader:
                optimizer.zero_grad()
                output = model(**batch)
                (output["loss"] if form == "dictionary" else output[0]).backward()
                optimizer.step()
    return ledger


def losses_by_record(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(features=batch["features"]), batch["labels"], reduction="none")


def whole(dataset: Dictionaries) -> dict[str, torch.Tensor]:
    return {"features": dataset.x, "labels": dataset.y}


@pytest.mark.parametrize(
    ("form", "audit", "loss"),
    [
        ("object", whole(Dictionaries(RECORDS)), None),
        ("dictionary", whole(Dictionaries(RECORDS)), None),
        ("tuple", whole(Dictionaries(RECORDS)), None),
        ("object", Dictionaries(RECORDS), None),
        ("object", DataLoader(Dictionaries(RECORDS), batch_size=7), None),
        ("object", whole(Dictionaries(RECORDS)), losses_by_record),
        ("object", Dictionaries(RECORDS), losses_by_record),
        ("object", ({"features": random_data(RECORDS)[0]}, random_data(RECORDS)[1]), nn.CrossEntropyLoss()),
    ],
)
def test_the_norms_are_those_of_the_batch(form: str, audit: Any, loss: Any) -> None:
    """The records that are trained on are the audit records too, so both must have the same norms."""
    ledger = dictionary_run(form, audit, loss)
    for step in (1, 2, 3):
        assert np.allclose(audit_norms(ledger, step), batch_norms(ledger, step), rtol=1e-4)


class Words(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Sequences of different lengths."""

    def __init__(self, records: int) -> None:
        generator = torch.Generator().manual_seed(0)
        lengths = torch.randint(2, 9, (records,), generator=generator)
        self.words = [torch.randint(1, 30, (int(n),), generator=generator) for n in lengths]
        self.labels = torch.randint(0, CLASSES, (records,), generator=generator)

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.words[number], self.labels[number]


def padded(items: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    return pad_sequence([words for words, _ in items], batch_first=True), torch.stack([label for _, label in items])


class Bag(nn.Module):
    """The mean of embeddings; padding does not count."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(30, 8, padding_idx=0), nn.Linear(8, CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        there = (words > 0).unsqueeze(2)
        return self.out((self.words(words) * there).sum(1) / there.sum(1))


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_sequences_of_different_lengths_are_collated_as_in_training(mode: str) -> None:
    from opacus import PrivacyEngine

    import bayesdp.opacus

    torch.manual_seed(0)
    data, audit, model, criterion = Words(RECORDS), Words(RECORDS), Bag(), nn.CrossEntropyLoss()
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=RECORDS, collate_fn=padded),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode=mode,
        criterion=criterion,
    )
    model, optimizer, *criteria, loader = made
    loss: Any = criteria[0] if criteria else criterion
    ledger = Ledger(keep_norms=True)
    with bayesdp.opacus.watch(model, optimizer, loader, ledger=ledger, audit=audit, loss=criterion, audit_batch=7):
        for words, labels in loader:
            optimizer.zero_grad()
            loss(model(words), labels).backward()
            optimizer.step()
    assert np.allclose(audit_norms(ledger, 1), batch_norms(ledger, 1), rtol=1e-4)


def test_a_data_set_of_tensors_is_read_with_the_loaders_collate_function() -> None:
    data = random_data(RECORDS)
    run, ledger = private_run(data=data, batch=RECORDS), Ledger(keep_norms=True)
    run.watch(ledger, audit=TensorDataset(*data), loss=run.loss)
    run.train(most=1)
    assert np.allclose(audit_norms(ledger, 1), batch_norms(ledger, 1), rtol=1e-5)


class Streamed(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([])


def wrong_shape(model: Any, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


@pytest.mark.parametrize(
    ("audit", "loss", "message"),
    [
        ({"words": random_data(20)[0]}, None, r"audit=dict: the model or the loss fails on it \(TypeError: .*'words'"),
        ({"input": random_data(20)[0]}, None, r"model\(\*\*audit\)='no loss': expected a model that returns its loss"),
        ({"input": random_data(20)[0]}, nn.CrossEntropyLoss(), "loss='CrossEntropyLoss': expected the criterion"),
        (random_data(20), wrong_shape, r"loss\(model, batch\)\.shape=\(\): expected \(2,\): one loss for each record"),
        ((random_data(20)[0].numpy(), random_data(20)[1]), nn.CrossEntropyLoss(), "audit='NumPy arrays': expected"),
        (
            (random_data(20)[0], random_data(20)[1].double()),
            nn.CrossEntropyLoss(),
            r"fails on it \(RuntimeError.*a function loss\(m",
        ),
        (DataLoader(Streamed()), nn.CrossEntropyLoss(), "audit='Streamed': expected a loader of a data set"),
        (TensorDataset(*random_data(0)), nn.CrossEntropyLoss(), r"audit=\[\]: expected at least one record"),
        ("people.csv", nn.CrossEntropyLoss(), "audit='str': expected what the loader yields"),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_what_cannot_work_is_refused_by_watch(audit: Any, loss: Any, message: str, training: bool) -> None:
    """Also if the model is put into training mode only later; nothing of the run changes."""
    run, ledger = private_run(), Ledger()
    run.model.train(training)
    before, state = run.parameters, torch.get_rng_state()
    with pytest.raises(InvalidInputError, match=message):
        run.watch(ledger, audit=audit, loss=loss)
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(run.parameters, before)
    run.model.train()
    run.train(most=1)
    assert ledger.steps == 0


def test_a_loss_of_another_model_is_refused() -> None:
    """As of the model that is trained, which a function may have from outside."""
    run = private_run()

    def losses(model: Any, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(run.model(batch[0]), batch[1], reduction="none")

    with pytest.raises(InvalidInputError, match="loss='without a gradient': expected a loss that depends on"):
        run.watch(Ledger(), audit=random_data(20), loss=losses)


def test_a_model_may_come_into_training_mode_later() -> None:
    data = random_data(RECORDS)
    run, ledger = private_run(data=data, batch=RECORDS), Ledger(keep_norms=True)
    run.model.eval()
    run.watch(ledger, audit=data, loss=run.loss)
    run.model.train()
    run.train(most=1)
    assert np.allclose(audit_norms(ledger, 1), batch_norms(ledger, 1), rtol=1e-5)


def test_a_loss_that_weighs_classes_inside_a_function_is_found_in_sorted_data() -> None:
    """The dry run compares records from all over the audit set: in sorted data the first are all of one class."""
    weights = torch.tensor([1.0, 5.0, 25.0])

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output, target, weight=weights)

    run = private_run()
    x, y = random_data(300, seed=9)
    order = torch.argsort(y)
    with pytest.raises(InvalidInputError, match="norms depend on the other records"):
        run.watch(Ledger(), audit=(x[order], y[order]), loss=loss)


def unnamed(m: Any, b: Any) -> torch.Tensor:
    return losses_by_record(m, b)


def items(audit: Any) -> list[Any]:
    return [audit[number] for number in range(len(audit))]


@pytest.mark.parametrize(
    ("audit", "loss"),
    [
        (whole(Dictionaries(RECORDS)), unnamed),
        (whole(Dictionaries(RECORDS)), lambda net_of_mine, b: losses_by_record(net_of_mine, b)),
        (items(Dictionaries(RECORDS)), None),
        (items(Dictionaries(RECORDS)), unnamed),
    ],
)
def test_functions_with_other_names_and_lists_of_records(audit: Any, loss: Any) -> None:
    ledger = dictionary_run(audit=audit, loss=loss)
    assert np.allclose(audit_norms(ledger, 1), batch_norms(ledger, 1), rtol=1e-4)


@pytest.mark.parametrize("form", [tuple, list])
@pytest.mark.parametrize("target", [int, torch.clone])
@pytest.mark.parametrize("records", [20, 2])
def test_a_list_of_records_is_a_data_set(form: Any, target: Any, records: int) -> None:
    x, y = random_data(records, seed=9)
    audits: list[Any] = [(x, y), [form([row, target(label)]) for row, label in zip(x, y, strict=True)]]
    costs = []
    for audit in audits:
        run, ledger = private_run(), Ledger()
        run.watch(ledger, audit=audit, loss=run.loss)
        run.train(most=2)
        assert ledger.audit_records == records
        costs.append(ledger.costs([1, 8]))
    assert np.array_equal(*costs)


def test_a_list_of_two_tuples_is_inputs_and_targets() -> None:
    x, y = random_data(20, seed=9)
    run, ledger = private_run(), Ledger()
    run.watch(ledger, audit=[(x,), (y,)], loss=lambda output, target: nn.functional.cross_entropy(output, target[0]))
    run.train(most=1)
    assert ledger.audit_records == 20


def test_a_function_of_the_model_with_another_name_is_told_from_a_criterion() -> None:
    run = private_run()

    def by_record(m: Any, b: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(m(b[0]), b[1], reduction="none")

    said = r"loss='a function of \(m, b\)': expected a criterion of \(outputs, targets\); or .* parameter called model,"
    with pytest.raises(InvalidInputError, match=said):
        run.watch(Ledger(), audit=random_data(20, seed=9), loss=by_record)


@pytest.mark.parametrize("form", [tuple, list, lambda pair: {"x": pair[0], "y": pair[1]}])
def test_numpy_arrays_are_named(form: Any) -> None:
    audit = form([array.numpy() for array in random_data(20, seed=9)])
    with pytest.raises(InvalidInputError, match=r"audit='NumPy arrays': expected tensors: torch\.from_numpy\(array\)"):
        private_run().watch(Ledger(), audit=audit, loss=losses_by_record)
