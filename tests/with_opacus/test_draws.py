"""Which batch a gradient comes from: each draw counts once, and nothing else counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from scipy.stats import norm

from bayesdp import InvalidInputError, Ledger
from bayesdp.guarantees.clip_bound import ClipBound
from opacus_runs import RATE, batch_norms, private_run, random_data, settings
from opacus_runs import drawn as drawn_rate


def test_batches_from_elsewhere_are_refused(ledger: Ledger) -> None:
    run = private_run()
    run.watch(ledger)
    x, y = random_data(200)
    before = run.parameters
    with pytest.raises(InvalidInputError, match="data_loader='other batches'"):
        run.step(x, y)
    batch = next(iter(run.loader))
    with pytest.raises(InvalidInputError, match=r"len\(batch\)=.too many.: expected no more samples than"):
        run.step(x, y)
    assert np.array_equal(run.parameters, before)
    run.step(*batch)
    assert ledger.steps == 1


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_may_be_used_once(ledger: Ledger, workers: int, shuffle: bool) -> None:
    """Whatever was drawn ahead. A single batch that was left out may be used later, for loops that fetch ahead."""
    run = private_run(workers=workers, poisson_sampling=not shuffle, shuffle=shuffle)
    run.watch(ledger)
    batches = iter(run.loader)
    x, y = next(batches)
    run.step(x, y)
    before = run.parameters
    with pytest.raises(InvalidInputError, match="each in one step only"):
        run.step(x, y)
    x, y = next(batches)
    run.optimizer.zero_grad()
    run.model.allow_grad_accumulation()
    for _ in range(2):  # two views of the same records in one sum
        run.loss(run.model(x), y).backward()
    with pytest.raises(InvalidInputError, match="each in one step only"):
        run.optimizer.step()
    assert np.array_equal(run.parameters, before)
    kept = list(run.loader)
    run.step(*kept[-1])
    with pytest.raises(InvalidInputError, match=r"each in one step only|each record must be one sample"):
        run.train(loader=[kept[-1]] * 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_loops_that_fetch_one_batch_ahead(ledger: Ledger, workers: int) -> None:
    for shuffle in (False, True):
        run = private_run(workers=workers, poisson_sampling=not shuffle, shuffle=shuffle, seed=5 * shuffle)
        with run.watch(ledger):
            for _ in range(2):
                batches = iter(run.loader)
                ahead = next(batches, None)
                while ahead is not None:
                    now, ahead = ahead, next(batches, None)
                    run.step(*now)
    assert settings(ledger) == [(1.0, RATE, 1.0, 20), (1.0, 1.0, 1.0, 2)]


@pytest.mark.parametrize("virtual", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_evaluation_over_the_training_loader(ledger: Ledger, workers: int, virtual: bool, shuffle: bool) -> None:
    """Evaluation in the middle of an epoch changes nothing."""
    run = private_run(records=120, batch=40, workers=workers, poisson_sampling=not shuffle, shuffle=shuffle)
    run.watch(ledger)
    manager = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=9, optimizer=run.optimizer)
    for _ in range(2):
        for number, (x, y) in enumerate(manager.__enter__() if virtual else run.loader):
            run.step(x, y)
            if number == 1:
                run.model.eval()
                with torch.no_grad():
                    for inputs, _ in run.loader:
                        run.model(inputs)
                run.model.train()
    expected = [(1.0, 1.0, 1.0, 2)] if shuffle else [(1.0, pytest.approx(1 / 3), 1.0, 6)]
    assert settings(ledger) == expected
    assert ledger.history.caveats == (["zero-out"] if shuffle else [])


def test_batches_that_were_skipped_do_not_matter(ledger: Ledger) -> None:
    run = private_run()
    run.watch(ledger)
    used = []
    for number, (x, y) in enumerate(run.loader):
        if number % 3 == 0:
            used.append(len(x))
            run.step(x, y)
    assert [len(batch_norms(ledger, step)) for step in range(1, ledger.steps + 1)] == used


def test_several_samples_of_one_record_are_refused(ledger: Ledger) -> None:
    """Augmentation that adds rows: each of them would be clipped by itself."""
    run = private_run()
    run.watch(ledger)
    x, y = next(iter(run.loader))
    with pytest.raises(InvalidInputError, match="each record must be one sample, once"):
        run.step(x.repeat(2, 1), y.repeat(2))
    assert ledger.steps == 0


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_empty_batches(ledger: Ledger, mode: str) -> None:
    run = private_run(records=20, batch=1, mode=mode)
    run.watch(ledger)
    for x, y in run.loader:
        before = run.parameters
        run.optimizer.zero_grad()
        run.loss(run.model(x), y).backward()
        run.optimizer.step()
        assert not np.array_equal(run.parameters, before)  # noise is released
    drawn = [len(batch_norms(ledger, step)) for step in range(1, ledger.steps + 1)]
    assert ledger.steps == 20
    assert 0 in drawn
    assert settings(ledger) == [(1.0, drawn_rate(0.05), 1.0, 20)]


@pytest.mark.parametrize("virtual", [False, True])
def test_the_sample_invented_for_an_empty_batch_does_not_count(ledger: Ledger, virtual: bool) -> None:
    sizes = []
    run = private_run(records=20, batch=1, rand_on_empty=True)
    run.watch(ledger)
    manager = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=2, optimizer=run.optimizer)
    for x, y in manager.__enter__() if virtual else run.loader:
        sizes.append(len(x))
        run.step(x, y)
    drawn = [len(batch_norms(ledger, step)) for step in range(1, ledger.steps + 1)]
    assert min(sizes) == 1
    assert 0 in drawn
    assert sum(sizes) == sum(drawn) + drawn.count(0)
    assert ledger.history.caveats == ["zero-out"]  # an invented sample gives way to a record that joins
    assert {rate for _, rate, *_ in settings(ledger)} == {1.0}  # and shows that nobody was drawn


def test_an_invented_sample_undoes_the_amplification() -> None:
    """If nobody else is drawn: (1-q) N(r) + q N(x) against (1-q) N(r) + q N(0), with r = -x; by quadrature."""
    rate, epsilon = 0.01, 0.5
    at = np.linspace(-12, 12, 480_001)
    hidden, present, absent = norm.pdf(at, -1), norm.pdf(at, 1), norm.pdf(at)
    within, without = (1 - rate) * hidden + rate * present, (1 - rate) * hidden + rate * absent
    truth = float(np.maximum(within - np.exp(epsilon) * without, 0).sum() * (at[1] - at[0]))
    sampled = ClipBound.of([(1.0, rate, 1)]).deltas(np.array([epsilon]), 1e-9)[0]
    assert truth > 1000 * sampled
    assert truth <= ClipBound.of([(1.0, 1.0, 1)]).deltas(np.array([epsilon]), 1e-9)[0]


def test_invented_samples_that_never_come_are_not_mentioned(ledger: Ledger) -> None:
    run = private_run(records=1000, batch=100, rand_on_empty=True)
    run.watch(ledger)
    run.train(most=2)
    assert ledger.history.caveats == []


@pytest.mark.parametrize("skipped", [[1], [2, 3], []])
@pytest.mark.parametrize("after", ["drawing", "backward"])
def test_a_batch_that_the_loop_passes_over_is_named(ledger: Ledger, skipped: list[int], after: str) -> None:
    """What makes loops do that, such as a loss that is not finite, is in the data; a pass to evaluate is no skip."""
    run = private_run(records=120, batch=20)
    run.watch(ledger)
    for number, (x, y) in enumerate(run.loader):
        run.optimizer.zero_grad()
        if number in skipped and after == "drawing":
            continue
        run.loss(run.model(x), y).backward()
        if number not in skipped:
            run.optimizer.step()
    run.model.eval()
    for x, _ in run.loader:
        run.model(x)
    run.model.train()
    run.train(most=2)
    assert ledger.history.caveats == (["skipped-batches"] if skipped else [])
    claims = ledger.claims()
    assert claims.everyone.kind == "proved"
    assert any("left out a whole batch" in text for text in claims.everyone.assumptions) == bool(skipped)
