"""Randomness that is not released: dropout, augmentation. A share that rests on one draw is an estimate."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from opacus.layers import DPMultiheadAttention
from scipy.stats import norm
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

from bayesdp import Gate, InvalidInputError, Ledger
from bayesdp.opacus.hidden_draws import loader_draws, own_copy
from opacus_runs import FEATURES, Run, audit_norms, private_run, random_data


def dropped_feature(records: int = 50) -> Run:
    """One weight and one feature that dropout silences half of the time: the gradient is 0 or clipped to 1."""
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(1, 1, bias=False))
    data = torch.ones(records, 1), torch.zeros(records)
    run = private_run(model, data=data, batch=records, noise_multiplier=1.0)
    run.loss = lambda output, target: (output[:, 0] - target).mean()
    return run


AUDIT = torch.ones(500, 1), torch.zeros(500)


def test_an_epsilon_from_one_draw_is_called_an_estimate() -> None:
    """One step: epsilon 0 for 40 % of people, whom the release contradicts with probability Phi(1/2) = .69."""
    torch.manual_seed(0)
    run, ledger = dropped_feature(), Ledger()
    watched = run.watch(ledger, audit=AUDIT, loss=run.loss)
    run.train(most=1)
    claims = watched.claims(shares=[0.4, 0.9])
    share = claims.share(0.4).ex_post
    assert share.epsilon == 0
    outside = np.linspace(-12, 12, 480_001)
    law, exposure = norm.pdf(outside), 1.0
    mixture = 0.5 * law + 0.5 * norm.pdf(outside - exposure)
    failure = float(np.sum(law * (law > mixture)) * (outside[1] - outside[0]))
    assert failure == pytest.approx(norm.cdf(0.5), abs=1e-4)
    assert share.kind == "estimate"  # the figure is no bound, and does not say that it is one
    assert any("one random draw" in text for text in share.assumptions)
    assert claims.share(0.9).ex_post.own_epsilon > claims.everyone.epsilon  # so it is no better than for everyone
    for claim in (*claims.members, *claims.levels):  # an epsilon of their own is an estimate, too
        assert claim.kind == "estimate" or claim.epsilon == claims.everyone.epsilon
    assert claims.everyone.kind == "proved"
    assert watched.random_draws == ("Dropout",)
    assert "one random draw" in claims.statement()


def test_audit_records_at_the_clip_bound_keep_shares_a_bound() -> None:
    torch.manual_seed(0)
    run, ledger = dropped_feature(), Ledger(keep_norms=True)
    watched = run.watch(ledger, audit=AUDIT, loss=run.loss, random_draws="clip")
    run.train(most=1)
    claims = watched.claims(shares=[0.4, 0.9])
    plain = Ledger()
    plain.step(noise_std=1.0, sample_rate=1.0, clip=1.0, audit=np.full(500, 7.0))
    expected = plain.claims(shares=[0.4]).share(0.4).ex_post
    for share in (0.4, 0.9):
        assert claims.share(share).ex_post.own_epsilon == expected.own_epsilon > claims.everyone.epsilon
        assert claims.share(share).ex_post.epsilon == claims.everyone.epsilon
    assert ledger.history.caveats == []
    assert np.array_equal(ledger.costs([1.0, 8.0]), plain.costs([1.0, 8.0]))


def test_a_gate_stays_proved() -> None:
    """By joint convexity: its delta is a mean over records and draws together."""
    gate = Gate(epsilon=6.0, delta=1e-5, share=0.5, gamma=0.01, records=500)
    run, ledger = dropped_feature(), Ledger(gate=gate)
    watched = run.watch(ledger, audit=AUDIT, loss=run.loss)
    run.train(most=1)
    claims = watched.claims(shares=[0.4])
    assert ledger.history.caveats == ["given-loss", "random-draws"]
    assert {claim.kind for claim in claims.gate} == {"proved"}
    assert claims.share(0.4).ex_post.kind == "estimate"


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = DPMultiheadAttention(4, 2, dropout=0.2, batch_first=True)
        self.out = nn.Linear(FEATURES, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.reshape(-1, 3, 4)
        return self.out(self.attention(x, x, x, need_weights=False)[0].flatten(1))


class Own(nn.Module):
    """Draws from anywhere: PyTorch, Python, NumPy, or a generator of its own."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.layer, self.source = nn.Linear(FEATURES, 3), source
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        drawn = {
            "functional": lambda: nn.functional.dropout(x, 0.5, self.training),
            "python": lambda: x * random.random(),
            "numpy": lambda: x * float(np.random.uniform()),  # noqa: NPY002
            "own": lambda: x * torch.rand((), generator=self.generator),
            "none": lambda: x,
        }
        return self.layer(drawn[self.source]())


def layers(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), *middle, nn.Linear(8, 3))


RANDOM: dict[str, Any] = {
    "Dropout": lambda: layers(nn.Dropout(0.1)),
    "AlphaDropout": lambda: layers(nn.AlphaDropout(0.1)),
    "FeatureAlphaDropout": lambda: layers(nn.Unflatten(1, (4, 2)), nn.FeatureAlphaDropout(0.5), nn.Flatten()),
    "Dropout1d": lambda: layers(nn.Unflatten(1, (4, 2)), nn.Dropout1d(0.5), nn.Flatten()),
    "RReLU": lambda: layers(nn.RReLU()),
    "attention": Attention,
    **{source: lambda source=source: Own(source) for source in ("functional", "python", "numpy", "own")},
}


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_random_layers_are_found(name: str, mode: str) -> None:
    torch.manual_seed(0)
    run, ledger = private_run(RANDOM[name](), mode=mode), Ledger()
    watched = run.watch(ledger, audit=random_data(20, seed=9), loss=run.loss)
    assert watched.random_draws
    run.train(most=1)
    assert ledger.history.caveats == ["random-draws"]


@pytest.mark.parametrize(
    "make", [layers, lambda: layers(nn.Dropout(0.0)), lambda: layers(nn.Dropout(0.5).eval()), lambda: Own("none")]
)
def test_layers_that_are_not_random_are_not_suspected(make: Any) -> None:
    model = make()
    run, ledger = private_run(model), Ledger()
    watched = run.watch(ledger, audit=random_data(20, seed=9), loss=run.loss)
    run.train(most=2)
    assert watched.random_draws == ()
    assert ledger.history.caveats == []


@pytest.mark.parametrize("choice", ["estimate", "clip"])
def test_dropout_that_begins_later_is_noticed(choice: Any) -> None:
    model = layers(nn.Dropout(0.0))
    run, ledger = private_run(model, max_grad_norm=50.0), Ledger(keep_norms=True)
    watched = run.watch(ledger, audit=random_data(20, seed=9), loss=run.loss, random_draws=choice)
    run.train(most=1)
    assert watched.random_draws == ()
    model[1].p = 0.5
    run.train(most=1)
    assert watched.random_draws == ("Dropout",)
    assert ledger.history.caveats == ["random-draws"] * (choice == "estimate")
    assert (audit_norms(ledger, 2) >= 50.0).all() == (choice == "clip")
    assert not (audit_norms(ledger, 1) >= 50.0).any()


def test_a_model_that_is_in_evaluation_mode_at_first() -> None:
    run, ledger = private_run(layers(nn.Dropout(0.5))), Ledger()
    run.model.eval()
    watched = run.watch(ledger, audit=random_data(20, seed=9), loss=run.loss)
    run.model.train()
    run.train(most=1)
    assert watched.random_draws == ("Dropout",)


def test_an_audit_of_your_own_that_draws() -> None:
    class Norms:
        records = 30

        def due(self) -> bool:
            return True

        def norms(self) -> torch.Tensor:
            return torch.rand(30)

    run, ledger = private_run(), Ledger()
    watched = run.watch(ledger, audit=Norms())
    torch.manual_seed(5)
    run.train(most=1)
    assert watched.random_draws == ("the model or the loss",)
    assert ledger.history.caveats == ["random-draws"]
    drawn = float(torch.rand(()))
    torch.manual_seed(5)
    assert drawn == float(torch.rand(()))  # random numbers of the run are left alone


def test_the_choice_is_checked() -> None:
    run = private_run()
    with pytest.raises(InvalidInputError, match="random_draws='mean': expected 'estimate' or 'clip'"):
        run.watch(Ledger(), random_draws="mean")  # type: ignore[arg-type]


class Augmented(Dataset[Any]):
    """Rows with a transform; ``read`` counts how often the data set itself was asked."""

    def __init__(self, transform: Any) -> None:
        self.rows, self.labels = random_data(200)
        self.transform, self.read = transform, 0

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.read += 1
        return self.transform(self.rows[index]), self.labels[index]


class Jitter:
    """A transform with a generator of its own."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)

    def __call__(self, row: torch.Tensor) -> torch.Tensor:
        return row + float(self.generator.normal())


def flip(row: torch.Tensor) -> torch.Tensor:
    return row.flip(0) if random.random() < 0.5 else row


TRANSFORMS: dict[str, tuple[Any, bool]] = {
    "none": (lambda row: row, False),
    "fixed": (lambda row: 2 * row, False),
    "PyTorch": (lambda row: row + torch.randn(len(row)), True),
    "Python": (flip, True),
    "NumPy": (lambda row: row * float(np.random.uniform()), True),  # noqa: NPY002
    "own generator": (Jitter(), True),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("wrapped", [False, True])
def test_loaders_that_transform_at_random_are_found(name: str, wrapped: bool) -> None:
    transform, is_random = TRANSFORMS[name]
    dataset = Augmented(transform)
    run, ledger = private_run(), Ledger()
    # make_private keeps the data set; the run's own is put in its place
    object.__setattr__(run.loader, "dataset", Subset(dataset, range(200)) if wrapped else dataset)
    state = own_copy(transform)
    numbers = torch.get_rng_state(), random.getstate()
    watched = run.watch(ledger, audit=random_data(20, seed=9), loss=run.loss)
    assert torch.equal(numbers[0], torch.get_rng_state())
    assert numbers[1] == random.getstate()
    assert dataset.read == 0  # a copy was asked
    if isinstance(transform, Jitter):
        assert transform.generator.normal() == state.generator.normal()
    run.train(most=1)
    assert watched.random_draws == ("the training data",) * is_random
    assert ledger.history.caveats == ["random-draws"] * is_random


def test_training_on_data_transformed_at_random_does_not_change() -> None:
    results = []
    for watched in (False, True):
        torch.manual_seed(1)
        run = private_run()
        object.__setattr__(run.loader, "dataset", Augmented(Jitter()))
        if watched:
            run.watch(Ledger(), audit=random_data(20, seed=9), loss=run.loss)
        run.train(2)
        results.append(run.parameters.tobytes())
    assert results[0] == results[1]


def test_collating_at_random_is_found() -> None:
    def collate(rows: list[Any]) -> torch.Tensor:
        return torch.stack([row * (torch.rand(len(row)) < 0.9) for row, _ in rows])

    assert loader_draws(DataLoader(Augmented(lambda row: row), collate_fn=collate))
    assert not loader_draws(DataLoader(Augmented(lambda row: row)))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_a_hostile_record_does_not_show_in_what_is_found(value: float) -> None:
    dataset = Augmented(lambda row: row)
    dataset.rows[0] = value
    assert not loader_draws(DataLoader(dataset))

    def fails(row: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(f"row of {value}")

    assert not loader_draws(DataLoader(Augmented(fails)))
