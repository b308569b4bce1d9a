"""How records come into batches: the law of the sampler is accounted, and compared with what is drawn."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from bayesdp import InvalidInputError, Ledger
from bayesdp.opacus import SamplingWarning
from bayesdp.opacus.draws import drawn_rate
from opacus_runs import RATE, drawn, private_run, random_data, settings, small_model


def with_sampler(sampler: Any) -> Any:
    """Return a run whose loader draws its batches with the given sampler."""
    x, y = random_data(200)
    loader = DataLoader(TensorDataset(x, y), batch_sampler=sampler)
    model = small_model()
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
    )
    run = private_run()
    run.model, run.optimizer, run.loader = made
    return run


def test_samplers_that_are_not_known_are_refused(ledger: Ledger) -> None:
    weighted = torch.utils.data.BatchSampler(WeightedRandomSampler([1.0] * 200, 200), 20, drop_last=False)
    with pytest.raises(InvalidInputError, match="data_loader='WeightedRandomSampler'"):
        with_sampler(weighted).watch(ledger)
    with pytest.raises(InvalidInputError, match="data_loader='list'"):
        with_sampler([[1, 2], [3, 4]]).watch(ledger)


def test_a_rate_that_opacus_gets_wrong_is_reported(ledger: Ledger) -> None:
    """Opacus accounts one over the number of batches, whatever the sampler's rate is."""
    run = with_sampler(UniformWithReplacementSampler(num_samples=200, sample_rate=0.3, steps=50))
    with pytest.warns(SamplingWarning, match=r"sample_rate=0\.3 is how records are drawn, but Opacus accounts 1/50"):
        run.watch(ledger)
    run.train(most=3)
    assert settings(ledger) == [(1.0, drawn(0.3), 1.0, 3)]


@pytest.mark.parametrize("size", [20, 60])
def test_batches_that_do_not_fit_the_rate_are_reported(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """A sampler that says it is Poisson and is not. How many records it drew is nobody's business."""

    def even_batches(self: Any) -> Iterator[list[int]]:
        for _ in range(70):
            yield torch.randperm(self.num_samples, generator=self.generator)[:size].tolist()

    monkeypatch.setattr(UniformWithReplacementSampler, "__iter__", even_batches)
    run = private_run(batch=20, noise_multiplier=4.0)
    run.watch(ledger)
    with pytest.warns(SamplingWarning, match=r"sample_rate=0\.1: the sizes of the batches do not fit") as warned:
        run.train()
    assert not any(str(size) in str(warning.message) for warning in warned)
    assert ledger.history.caveats == ["sampling-mismatch"]
    assert ledger.claims()[0].kind == "estimate"


def test_a_rate_that_changes_is_accounted_as_it_is_drawn(ledger: Ledger) -> None:
    run = private_run(batch=20)
    run.watch(ledger)
    run.train(most=2)
    run.loader.batch_sampler.sample_rate = 0.5
    run.train(most=2)
    assert [row[1] for row in settings(ledger)] == [RATE, 0.5]


def test_honest_batches_are_not_reported(ledger: Ledger) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", SamplingWarning)
        for seed in range(4):
            run = private_run(records=100, batch=2, seed=seed)
            with run.watch(ledger):
                run.train(3)
    assert ledger.steps == 600
    assert ledger.history.caveats == []


@pytest.mark.parametrize("rate", [1e-6, 0.1, 1 / 3, 0.5, 1.0])
def test_the_rate_is_the_one_with_which_the_sampler_draws(rate: float) -> None:
    """Every number that ``torch.rand`` can give near the rate, compared as Opacus compares it."""
    near = int(rate * 2**24) + np.arange(-3, 4)
    possible = near[near < 2**24]
    selected = torch.tensor(possible / 2**24, dtype=torch.float32) < rate
    exact = (int(possible[0]) + int(selected.sum())) / 2**24
    sampler = UniformWithReplacementSampler(num_samples=10, sample_rate=rate, steps=1)
    assert drawn_rate(sampler) == exact >= rate


def test_the_statement_does_not_name_a_number_of_records_that_changed(tmp_path: Path) -> None:
    """A ledger keeps the number with which it was created, and may go on with more records."""
    path = tmp_path / "run.ledger"
    for records, seed in ((200, 0), (200, 5), (260, 10)):
        run = private_run(records=records, seed=seed)
        ledger = Ledger.open(path) if path.exists() else path
        with run.watch(ledger) as watched:
            run.train(most=2)
            trained = watched.claims().overview().trained
            if isinstance(ledger, Ledger):
                ledger.close()
        assert (" on 200 rows" in trained) == (records == 200)
