"""Sums of several batches: BatchMemoryManager, accumulation of gradients, and parts that are left out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from opacus.utils.batch_memory_manager import BatchMemoryManager

import bayesdp.opacus
from bayesdp import Ledger
from opacus_runs import RATE, batch_norms, drawn, private_run, random_data, settings


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_virtual_steps(ledger: Ledger, mode: str, workers: int) -> None:
    """A step holds all of its physical batches, however they were fetched."""
    plain = Ledger(keep_norms=True)
    for virtual, recorded in ((False, plain), (True, ledger)):
        run = private_run(mode=mode, records=120, batch=40, workers=workers, noise_multiplier=4.0)
        run.watch(recorded)
        if virtual:
            manager = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=9, optimizer=run.optimizer)
            with manager as loader:
                run.train(2, loader=loader)
        else:
            run.train(2)
    assert ledger.steps == plain.steps == 6
    for step in range(1, 7):
        assert np.allclose(np.sort(batch_norms(ledger, step)), np.sort(batch_norms(plain, step)), rtol=1e-4)
    assert ledger.worst_case() == plain.worst_case()


@pytest.mark.parametrize("workers", [0, 2])
def test_small_virtual_batches(ledger: Ledger, workers: int) -> None:
    run = private_run(records=200, batch=8, workers=workers)
    run.watch(ledger)
    manager = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=4, optimizer=run.optimizer)
    with manager as loader:
        run.train(2, loader=loader)
    assert settings(ledger) == [(1.0, drawn(0.04), 1.0, 50)]
    assert ledger.history.caveats == []


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_an_early_break_out_of_a_virtual_batch(ledger: Ledger, mode: str, workers: int) -> None:
    """The unfinished sum is dropped, and so is what was signalled about batches that never came.

    Opacus would add it to the next sum, which could then hold a record twice; and which records are in a part of a
    batch depends on all of them. A loop that ends after a number of parts leaves large batches out, and claims name
    that.
    """
    run = private_run(records=120, batch=40, workers=workers, mode=mode)
    run.watch(ledger)
    manager = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=10, optimizer=run.optimizer)
    with manager as loader:
        for _ in range(3):
            run.train(loader=loader, most=2)  # two parts of the first draw
            assert ledger.steps == 0
        sizes = []
        for x, y in loader:
            sizes.append(len(x))
            run.step(x, y)
    assert settings(ledger) == [(1.0, pytest.approx(1 / 3), 1.0, 3)]
    assert sum(len(batch_norms(ledger, step)) for step in (1, 2, 3)) == sum(sizes)
    assert ledger.history.caveats == ["skipped-batches"]


@pytest.mark.parametrize("parts_of_the_last_draw", [0, 1])
def test_training_that_ends_within_a_draw_is_named(ledger: Ledger, parts_of_the_last_draw: int) -> None:
    """How many steps fit into a number of parts tells how many records were drawn, without noise."""
    run = private_run(records=120, batch=40)
    watched = run.watch(ledger, audit=random_data(12, seed=9), loss=run.loss)
    left = parts_of_the_last_draw
    with BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=10, optimizer=run.optimizer) as loader:
        for x, y in loader:
            left -= ledger.steps == 2
            run.step(x, y)
            if ledger.steps == 2 and not left:
                break
    costs = ledger.costs([1, 8])
    assert not ledger.history.caveats
    watched.close()
    assert ledger.steps == 2
    assert (ledger.costs([1, 8]) == costs).all()
    named = any("or ended within one" in text for text in ledger.claims().everyone.assumptions)
    assert named == (ledger.history.caveats == ["skipped-batches"]) == bool(parts_of_the_last_draw)


def test_a_clip_bound_that_shrinks_within_a_virtual_batch(ledger: Ledger) -> None:
    """The largest bound with which a part of the sum was clipped counts, and the noise at the end."""
    run = private_run(records=120, batch=40)
    run.watch(ledger)
    manager = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=10, optimizer=run.optimizer)
    with manager as loader:
        batches = iter(loader)
        while not ledger.steps:
            bound = run.optimizer.max_grad_norm
            run.step(*next(batches))
            run.optimizer.max_grad_norm *= 0.5
    assert bound < 1
    assert settings(ledger) == [(bound, pytest.approx(1 / 3), 1.0, 1)]


@pytest.mark.parametrize("how", ["cap", "skipped part"])
def test_records_that_were_drawn_and_left_out_are_named(ledger: Ledger, how: str) -> None:
    """Which records are left out may depend on the others, so claims are no more than estimates."""
    run = private_run(records=120, batch=40, noise_multiplier=4.0)
    run.watch(ledger)
    if how == "cap":
        for x, y in run.loader:
            run.step(x[:16], y[:16])
    else:
        manager = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=10, optimizer=run.optimizer)
        with manager as loader:
            for number, (x, y) in enumerate(loader):
                if number != 1:
                    run.step(x, y)
    assert ledger.steps == 3
    assert ledger.history.caveats == (["left-out"] if how == "cap" else ["left-out", "skipped-batches"])
    assert ledger.claims()[0].kind == "estimate"


def test_gradient_accumulation_of_draws(ledger: Ledger) -> None:
    """Opacus forbids it with Poisson sampling unless told otherwise, because the sum may hold a record twice."""
    run = private_run()
    run.watch(ledger)
    run.model.allow_grad_accumulation()
    batches = iter(run.loader)
    drawn = [next(batches), next(batches)]
    run.optimizer.zero_grad()
    for x, y in drawn:
        run.loss(run.model(x), y).backward()
    run.optimizer.step()
    assert settings(ledger) == [(pytest.approx(1 / math.sqrt(2)), RATE, 1.0, 2)]
    assert [len(batch_norms(ledger, step)) for step in (1, 2)] == [len(y) for _, y in drawn]


def test_a_record_that_is_in_the_sum_twice_costs_no_more_than_is_accounted() -> None:
    """A sum of two draws with noise s costs at most two steps with noise s / sqrt(2): quadrature, both directions."""
    rate, exposure = 0.3, 0.8
    grid = np.linspace(-40, 60, 400_001)
    log_step = math.log(grid[1] - grid[0])

    def log_density(mean: float) -> np.ndarray:
        return -((grid - mean) ** 2) / 2 - math.log(2 * math.pi) / 2

    without = log_density(0)
    weights = [(1 - rate) ** 2, 2 * rate * (1 - rate), rate**2]
    parts = [math.log(weight) + log_density(number * exposure) for number, weight in enumerate(weights)]
    with_record = np.logaddexp.reduce(parts)
    charged = bayesdp.SubsampledGaussian(sample_rate=rate).log_moment([exposure * math.sqrt(2)], range(1, 17))[0] * 2
    for order, bound in enumerate(charged.tolist(), start=1):
        forward = np.logaddexp.reduce((order + 1) * with_record - order * without) + log_step
        backward = np.logaddexp.reduce((order + 1) * without - order * with_record) + log_step
        assert 0 < max(forward, backward) <= bound
