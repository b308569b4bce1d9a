"""Loaders that are shuffled: an epoch is recorded before it begins, and amended when it is over."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opacus.schedulers import ExponentialNoise

import bayesdp.opacus
from bayesdp import Gate, InvalidInputError, Ledger, StopWhen
from opacus_runs import audit_norms, private_run, some_data


def shuffled(ledger: Ledger, records: int = 40, **options: Any) -> tuple[Any, bayesdp.opacus.Watch]:
    run = private_run(poisson_sampling=False, shuffle=True)
    audit = some_data(records, seed=9)
    watched = bayesdp.opacus.watch(
        run.model, run.optimizer, run.loader, ledger=ledger, audit=audit, loss=run.loss, **options
    )
    return run, watched


def test_an_epoch_that_was_asked_about_goes_back_to_the_clip_bound() -> None:
    """Before another of its batches is released; what is on disk is never too small."""
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


def test_gradients_that_are_not_finite_are_refused_and_forgotten() -> None:
    x, y = some_data(200)
    x[7] = torch.nan
    run, ledger = private_run(data=(x, y), poisson_sampling=False, shuffle=True), Ledger()
    watched = bayesdp.opacus.watch(run.model, run.optimizer, run.loader, ledger=ledger)
    with pytest.raises(InvalidInputError, match=r"batch\[\d+\]=nan"):
        run.train()
    assert np.isfinite(run.parameters).all()
    run.train(most=1)
    watched.claims()
    watched.close()


def test_norms_of_an_earlier_step_are_named_whenever_they_were_used() -> None:
    ledger = Ledger()
    run, watched = shuffled(ledger, every=10, between="last")
    run.train(2)
    watched.close()
    assert ledger.history.caveats == ["earlier-norms", "zero-out"]


def test_noise_that_falls_within_an_epoch_is_made_up_for() -> None:
    """An epoch costs what its least noise costs; audit records no less than they were exposed."""
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
        watched = bayesdp.opacus.watch(
            run.model, run.optimizer, run.loader, ledger=ledger, audit=some_data(20, seed=9), loss=run.loss
        )
        run.train()
        run.train(most=3)
        run.engine.save_checkpoint(path=tmp_path / "saved", module=run.model, optimizer=run.optimizer)
        run.train(most=3)
        watched.close()
    again = private_run(accountant="bayesdp", poisson_sampling=False, shuffle=True)
    with Ledger.open(tmp_path / "run.ledger") as ledger:
        bayesdp.opacus.watch(again.model, again.optimizer, again.loader, ledger=ledger)
        again.engine.load_checkpoint(path=tmp_path / "saved", module=again.model, optimizer=again.optimizer)
        again.train(most=1)
        assert ledger.steps == 4


@pytest.mark.parametrize("late", [False, True])
def test_a_gate_does_not_hold_amended_steps_against_the_run(late: bool) -> None:
    """Steps that were at the clip bound first count with their norms as soon as these are known."""
    gate = Gate(epsilon=3.0, delta=1e-5, share=0.5, gamma=0.01, records=100)
    run, ledger = private_run(max_grad_norm=20.0), Ledger(gate=gate)
    budget = StopWhen(ledger, gate=True)
    watched = bayesdp.opacus.watch(
        run.model,
        run.optimizer,
        run.loader,
        ledger=ledger,
        audit=some_data(100, seed=9),
        loss=run.loss,
        budget=budget,
    )
    watched._steps._late = late
    run.train(3)
    assert not watched.stopped
    watched.close()
    assert ledger.steps == 30
    assert gate.met(ledger.costs([gate.at])[:, 0])
    assert math.isclose(budget._costs._now().sum(), ledger.costs([gate.at]).sum(), rel_tol=1e-6)
