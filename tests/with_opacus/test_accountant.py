"""The registered accountant: its epsilon is the worst case, as Opacus asks for it; claims have their own name."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from opacus.accountants import create_accountant
from opacus.schedulers import ExponentialNoise
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesdp
import bayesdp.opacus
from bayesdp import InvalidInputError, Ledger, LedgerError
from bayesdp.opacus import Accountant
from opacus_runs import private_run, random_data, small_model


def test_epsilon_before_and_after_steps() -> None:
    accountant = create_accountant("bayesdp")
    assert isinstance(accountant, Accountant)
    assert accountant.get_epsilon(1e-5) == 0
    for _ in range(30):
        accountant.step(noise_multiplier=2.2, sample_rate=0.2)
    for _ in range(10):
        accountant.step(noise_multiplier=1.8, sample_rate=0.2)
    assert len(accountant) == 40
    assert accountant.history == [(2.2, 0.2, 30), (1.8, 0.2, 10)]
    expected = bayesdp.worst_case_of([(2.2, 0.2, 30), (1.8, 0.2, 10)], delta=1e-5).epsilon
    assert accountant.get_epsilon(1e-5) == expected
    others = [create_accountant(name) for name in ("prv", "rdp")]
    for other in others:
        other.history = accountant.history
    prv, rdp = (other.get_epsilon(delta=1e-5) for other in others)
    assert expected == pytest.approx(prv, rel=0.02)
    assert expected < rdp
    with pytest.raises(InvalidInputError, match="ledger=None"):
        accountant.claims()


def test_make_private_with_epsilon() -> None:
    """Opacus searches for the noise by asking the accountant; the noise it finds keeps to the target."""
    model, (x, y) = small_model(), random_data(200)
    engine = PrivacyEngine(accountant="bayesdp")
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=20),
        target_epsilon=0.5,
        target_delta=1e-5,
        epochs=2,
        max_grad_norm=1.0,
    )
    ledger = Ledger()
    bayesdp.opacus.watch(model, optimizer, loader, ledger=ledger)
    assert engine.get_epsilon(1e-5) == 0
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert 0.49 <= engine.get_epsilon(1e-5) <= 0.5  # Opacus searches to within 0.01
    assert engine.get_epsilon(1e-5) == ledger.worst_case(1e-5).epsilon


def test_with_a_watch_epsilon_is_that_of_the_ledger() -> None:
    """For a shuffled loader Opacus tells its accountants of amplification by sampling that did not happen."""
    run = private_run(accountant="bayesdp", noise_multiplier=3.0, poisson_sampling=False, shuffle=True)
    ledger = Ledger()
    run.watch(ledger, audit=random_data(500), loss=run.loss)
    run.train(2)
    assert run.engine.get_epsilon(1e-5) == ledger.worst_case(1e-5).epsilon
    assert run.engine.get_epsilon(1e-5) > 1.5 * bayesdp.worst_case_of(run.engine.accountant.history).epsilon
    assert [claim.kind for claim in run.engine.accountant.claims(shares=[0.5])[:2]] == ["proved", "ex-post"]


def test_steps_that_are_in_no_ledger_count_as_well(tmp_path: Path) -> None:
    """Steps before watch, after the watch was closed, in another ledger, in a checkpoint without a ledger."""

    def worst(steps: int) -> float:
        return bayesdp.worst_case_of([(4.0, 0.1, steps)]).epsilon

    run = private_run(accountant="bayesdp", noise_multiplier=4.0)
    run.train(most=3)
    with run.watch(Ledger()):
        run.train(most=2)
        assert run.engine.get_epsilon(1e-5) == pytest.approx(worst(5))
    run.train(most=4)
    assert run.engine.get_epsilon(1e-5) == pytest.approx(worst(9))
    with run.watch(Ledger()):
        run.train(most=1)
        assert run.engine.get_epsilon(1e-5) == pytest.approx(worst(10))
    run = private_run(accountant="bayesdp", noise_multiplier=4.0)
    run.train(most=3)
    checkpoint(run, tmp_path / "saved")
    run = private_run(accountant="bayesdp", noise_multiplier=4.0)
    load(run, tmp_path / "saved")
    run.watch(Ledger())
    run.train(most=2)
    assert run.engine.get_epsilon(1e-5) == pytest.approx(worst(5))


@pytest.mark.parametrize("accountant", ["prv", "rdp"])
def test_other_accountants_report_what_they_did_before(accountant: str) -> None:
    epsilons = []
    for watched in (False, True):
        run = private_run(accountant=accountant)
        if watched:
            run.watch(Ledger())
        run.train()
        epsilons.append(run.engine.get_epsilon(1e-5))
    assert epsilons[0] == epsilons[1]


def checkpoint(run: Any, path: Path, **more: Any) -> None:
    run.engine.save_checkpoint(path=path, module=run.model, optimizer=run.optimizer, **more)


def load(run: Any, path: Path, **more: Any) -> Any:
    return run.engine.load_checkpoint(path=path, module=run.model, optimizer=run.optimizer, **more)


def test_checkpoints_and_the_ledger_go_on_together(tmp_path: Path) -> None:
    """Save after an epoch, take two more steps, crash, load: the two steps were released and stay in the ledger."""
    run = private_run(accountant="bayesdp", noise_multiplier=4.0)
    ledger = Ledger.create(tmp_path / "run.ledger")
    run.watch(ledger)
    run.train()
    checkpoint(run, tmp_path / "saved")
    saved = run.parameters
    run.train(most=2)
    del run, ledger
    gc.collect()  # gives up the lock, as the end of the process does

    for seed, first in ((5, "load"), (6, "watch")):
        run = private_run(accountant="bayesdp", noise_multiplier=4.0, seed=seed)
        with Ledger.open(tmp_path / "run.ledger") as ledger:
            before = ledger.steps
            if first == "load":
                load(run, tmp_path / "saved")
            watched = run.watch(ledger)
            if first == "watch":
                load(run, tmp_path / "saved")
            assert np.array_equal(run.parameters, saved)
            assert run.engine.get_epsilon(1e-5) == ledger.worst_case().epsilon
            run.train(most=1)
            assert ledger.steps == before + 1
            watched.close()
    with Ledger.open(tmp_path / "run.ledger", write=False) as ledger:
        assert ledger.steps == 10 + 2 + 1 + 1


def test_a_new_ledger_for_a_checkpoint_is_refused(tmp_path: Path) -> None:
    run = private_run(accountant="bayesdp", noise_multiplier=4.0)
    with run.watch(tmp_path / "run.ledger"):
        run.train(most=2)
        checkpoint(run, tmp_path / "saved")
    assert run.engine.get_epsilon(1e-5) > 0  # also when the ledger is closed
    run = private_run(accountant="bayesdp", noise_multiplier=4.0)
    load(run, tmp_path / "saved")
    with pytest.raises(InvalidInputError, match=r"ledger='a new one': expected Ledger\.open"):
        run.watch(tmp_path / "new.ledger")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.ledger", "saved"]


@pytest.mark.parametrize("first", ["load", "watch"])
def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path, first: str) -> None:
    run = private_run(accountant="bayesdp")
    run.watch(Ledger())
    run.train(most=2)
    checkpoint(run, tmp_path / "saved")
    other = private_run(accountant="bayesdp")
    if first == "load":
        load(other, tmp_path / "saved")
        with pytest.raises(LedgerError, match=r"is of run .*, the checkpoint of run"):
            other.watch(Ledger())
    else:
        other.watch(Ledger())
        with pytest.raises(LedgerError, match=r"is of run .*, the checkpoint of run"):
            load(other, tmp_path / "saved")
        assert other.engine.accountant.history == []


def test_a_ledger_without_the_steps_of_a_checkpoint_is_refused(tmp_path: Path) -> None:
    """As when an old copy of it was put back."""
    run = private_run(accountant="bayesdp")
    with Ledger.create(tmp_path / "run.ledger") as ledger:
        run.watch(ledger).close()
    old = (tmp_path / "run.ledger").read_bytes()
    with Ledger.open(tmp_path / "run.ledger") as ledger:
        watched = run.watch(ledger)
        run.train(most=3)
        state = watched.state_dict()
        watched.load_state_dict(state)
    (tmp_path / "run.ledger").write_bytes(old)
    run = private_run()
    with Ledger.open(tmp_path / "run.ledger") as ledger:
        watched = run.watch(ledger)
        with pytest.raises(LedgerError, match="does not contain the 3 steps before the checkpoint"):
            watched.load_state_dict(state)
        with pytest.raises(InvalidInputError, match="expected what state_dict gave"):
            watched.load_state_dict({"run": ledger.run})


def test_a_resumed_noise_schedule_that_fell_back_to_its_start(tmp_path: Path) -> None:
    """Opacus keeps where the schedule was, but not the noise it had come to. What is used is accounted, and said."""
    run = private_run(accountant="bayesdp", noise_multiplier=4.0)
    schedule = ExponentialNoise(run.optimizer, gamma=0.5)
    with Ledger.create(tmp_path / "run.ledger") as ledger:
        watched = run.watch(ledger)
        for _ in range(2):
            run.train(most=2)
            schedule.step()
        checkpoint(run, tmp_path / "saved", noise_scheduler=schedule)
        watched.close()
    run = private_run(accountant="bayesdp", noise_multiplier=4.0, seed=5)
    schedule = ExponentialNoise(run.optimizer, gamma=0.5)
    with Ledger.open(tmp_path / "run.ledger") as ledger:
        load(run, tmp_path / "saved", noise_scheduler=schedule)
        assert schedule.last_epoch == 2
        assert run.optimizer.noise_multiplier == 4.0  # it should be 1
        run.watch(ledger)
        with pytest.warns(UserWarning, match="noise_multiplier=4 at the first step after resuming, 2 at the last"):
            run.train(most=2)
        assert [stretch.noise_std for stretch in ledger.history.stretches] == [4.0, 2.0, 4.0]
        assert [stretch.steps for stretch in ledger.history.stretches] == [2, 2, 2]
