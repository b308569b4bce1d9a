"""Shuffled loaders: no amplification; an epoch is recorded before it begins, and amended when it is over."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opacus.schedulers import ExponentialNoise

import bayesdp.opacus
from bayesdp import Gate, Ledger, StopWhen
from opacus_runs import audit_norms, batch_norms, norms_by_autograd, private_run, random_data, settings


def test_shuffled_loaders_get_no_amplification(ledger: Ledger) -> None:
    """One step with rate 1 for each epoch, audit records at their largest norm in it; and the claims say so."""
    run = private_run(noise_multiplier=3.0, poisson_sampling=False, shuffle=True)
    audit = random_data(60, seed=9)
    watched = run.watch(ledger, audit=audit, loss=run.loss)
    most: list[np.ndarray] = []
    for _ in range(3):
        norms = []
        for x, y in run.loader:
            norms.append(np.linalg.norm(norms_by_autograd(run.model._module, *audit), axis=1))
            run.step(x, y)
        most.append(np.max(norms, axis=0))
    claims = watched.claims(shares=[0.5])
    assert settings(ledger) == [(3.0, 1.0, 1.0, 3)]
    for epoch in range(3):
        assert np.allclose(audit_norms(ledger, epoch + 1), most[epoch], rtol=1e-5)
        assert len(batch_norms(ledger, epoch + 1)) == 200
    assert ledger.worst_case().epsilon == bayesdp.worst_case_of([(3.0, 1.0, 3)]).epsilon
    for claim in claims:
        assert any("contribution becomes zero" in text for text in claim.assumptions)


def test_a_shuffled_epoch_is_on_disk_before_its_first_update(ledger: Ledger) -> None:
    """Until the epoch is over, audit records are charged at the clip bound."""
    run = private_run(poisson_sampling=False, shuffle=True)
    watched = run.watch(ledger, audit=random_data(20, seed=9), loss=run.loss)
    run.train(most=1)
    assert ledger.steps == 1
    assert ledger.history.audited_steps == 0
    run.train(most=3)  # left early, so that a new order begins: another epoch
    assert ledger.steps == 2
    watched.close()
    assert ledger.history.audited_steps == 2
    assert [len(batch_norms(ledger, step)) for step in (1, 2)] == [20, 60]


def test_accumulation_over_a_shuffled_loader(ledger: Ledger) -> None:
    """Several batches of an epoch in one sum hold a record once; batches of two epochs may hold it twice."""
    run = private_run(poisson_sampling=False, shuffle=True, batch=50)
    run.watch(ledger)
    for number, (x, y) in enumerate(run.loader):
        run.loss(run.model(x), y).backward()
        if number % 2:
            run.optimizer.step()
            run.optimizer.zero_grad()
    assert settings(ledger) == [(1.0, 1.0, 1.0, 1)]
    for _ in range(2):
        x, y = next(iter(run.loader))
        run.loss(run.model(x), y).backward()
    run.optimizer.step()
    assert settings(ledger)[1:] == [(pytest.approx(1 / math.sqrt(2)), 1.0, 1.0, 2)]


def test_a_shuffled_epoch_with_a_changing_noise(ledger: Ledger) -> None:
    run = private_run(poisson_sampling=False, shuffle=True)
    run.watch(ledger)
    schedule = ExponentialNoise(run.optimizer, gamma=0.5)
    run.train(most=2)
    schedule.step()
    run.train(most=2)
    assert [row[0] for row in settings(ledger)] == [1.0, 0.5]


def shuffled(ledger: Ledger, records: int = 40, **options: Any) -> tuple[Any, bayesdp.opacus.Watch]:
    run = private_run(poisson_sampling=False, shuffle=True)
    audit = random_data(records, seed=9)
    return run, run.watch(ledger, audit=audit, loss=run.loss, **options)


def test_an_epoch_that_was_asked_about_goes_back_to_the_clip_bound() -> None:
    """It does so before another of its batches is released: what is on disk is never too small."""
    ledger = Ledger(keep_norms=True)
    run, watched = shuffled(ledger)
    batches = iter(run.loader)
    run.step(*next(batches))
    watched.claims(shares=[0.5])
    assert ledger.history.audited_steps == 1
    run.step(*next(batches))
    assert ledger.history.audited_steps == 0
    watched.claims(shares=[0.5])
    first = audit_norms(ledger, 1)
    for batch in batches:
        run.step(*batch)
    watched.settle()
    assert (audit_norms(ledger, 1) >= first).all()
    assert ledger.steps == 1


def test_another_step_in_the_same_ledger_is_left_alone() -> None:
    ledger = Ledger()
    run, watched = shuffled(ledger)
    run.train(most=2)
    ledger.step(noise_std=1.0, sample_rate=1.0, clip=1.0)
    watched.settle()
    assert ledger.history.audited_steps == 0  # neither is known, so both are at the clip bound
    run.train(most=1)
    watched.close()
    assert ledger.steps == 3
    assert ledger.history.audited_steps == 1


def test_an_epoch_that_was_settled_before_another_step_is_paid_anew() -> None:
    ledger = Ledger()
    run, watched = shuffled(ledger)
    batches = iter(run.loader)
    run.step(*next(batches))
    watched.settle()
    ledger.step(noise_std=1.0, sample_rate=1.0, clip=1.0)
    run.step(*next(batches))
    assert ledger.steps == 3


def test_gradients_that_are_not_finite_contribute_nothing() -> None:
    x, y = random_data(200)
    x[7] = torch.nan
    run, ledger = private_run(data=(x, y), poisson_sampling=False, shuffle=True), Ledger()
    watched = run.watch(ledger)
    run.train()
    assert np.isfinite(run.parameters).all()
    assert watched.claims().everyone.epsilon > 0
    watched.close()


def test_norms_of_an_earlier_step_are_named_whenever_they_were_used() -> None:
    ledger = Ledger()
    run, watched = shuffled(ledger, every=10, between="last")
    run.train(2)
    watched.close()
    assert ledger.history.caveats == ["earlier-norms", "zero-out"]


def test_noise_that_falls_within_an_epoch_is_made_up_for() -> None:
    """An epoch costs what its least noise costs, and audit records pay no less than their exposure."""
    ledger = Ledger()
    run, watched = shuffled(ledger)
    schedule = ExponentialNoise(run.optimizer, gamma=0.9)
    least = []
    for _ in range(2):
        for x, y in run.loader:
            run.step(x, y)
            least.append(run.optimizer.noise_multiplier)
            schedule.step()
    watched.close()
    expected = bayesdp.worst_case_of([(least[9], 1.0, 1), (least[19], 1.0, 1)]).epsilon
    assert ledger.worst_case().epsilon == pytest.approx(expected, rel=1e-5)
    assert ledger.worst_case().epsilon >= expected * (1 - 1e-7)  # two ways of rounding up
    exposure = 2 * ledger.costs([1.0])[:, 0] / 2  # lambda (lambda + 1) e^2 / 2 at lambda 1
    assert (exposure <= (1 / least[9]) ** 2 + (1 / least[19]) ** 2 + 1e-4).all()


def test_audit_records_pay_their_largest_exposure_when_noise_rises() -> None:
    ledger = Ledger(keep_norms=True)
    run, watched = shuffled(ledger)
    schedule = ExponentialNoise(run.optimizer, gamma=1.25)
    most = np.zeros(40)
    for x, y in run.loader:
        noise = run.optimizer.noise_multiplier
        run.step(x, y)
        most = np.maximum(most, watched._audit_norms.numpy() / noise)
        schedule.step()
    watched.close()
    assert ledger.steps == 1
    assert np.allclose(audit_norms(ledger, 1), most, rtol=1e-5)  # the noise of the ledger's step is 1
    assert (audit_norms(ledger, 1) >= most).all()


def test_checkpoints_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    run = private_run(accountant="bayesdp", poisson_sampling=False, shuffle=True)
    with Ledger.create(tmp_path / "run.ledger") as ledger:
        watched = run.watch(ledger, audit=random_data(20, seed=9), loss=run.loss)
        run.train()
        run.train(most=3)
        run.engine.save_checkpoint(path=tmp_path / "saved", module=run.model, optimizer=run.optimizer)
        run.train(most=3)
        watched.close()
    again = private_run(accountant="bayesdp", poisson_sampling=False, shuffle=True, seed=5)
    with Ledger.open(tmp_path / "run.ledger") as ledger:
        again.watch(ledger)
        again.engine.load_checkpoint(path=tmp_path / "saved", module=again.model, optimizer=again.optimizer)
        again.train(most=1)
        assert ledger.steps == 4


@pytest.mark.parametrize("late", [False, True])
def test_a_gate_does_not_hold_amended_steps_against_the_run(late: bool) -> None:
    """Steps that were recorded at the clip bound count with their norms as soon as these are known."""
    gate = Gate(epsilon=3.0, delta=1e-5, share=0.5, gamma=0.01, records=100)
    run, ledger = private_run(max_grad_norm=20.0), Ledger(gate=gate)
    budget = StopWhen(ledger, gate=True)
    watched = run.watch(ledger, audit=random_data(100, seed=9), loss=run.loss, budget=budget)
    watched._recorder._late = late
    run.train(3)
    assert not watched.stopped
    watched.close()
    assert ledger.steps == 30
    assert gate.met(ledger.costs([gate.chosen_order])[:, 0])
    assert math.isclose(budget._costs._now().sum(), ledger.costs([gate.chosen_order]).sum(), rel_tol=1e-6)
