"""Curves while a run is training: ``watch(log=...)``."""

import pytest
from torch import nn

from bayesdp import Ledger
from bayesdp.loggers import LiveCurves
from opacus_runs import private_run, random_data


def test_a_watched_run_draws_its_curves_as_it_goes_on(tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = private_run()
    with tensorboard.SummaryWriter(tmp_path) as writer, Ledger() as ledger:
        with run.watch(ledger, audit=random_data(30, seed=9), loss=nn.CrossEntropyLoss(), log=writer):
            run.train()
        claims = ledger.claims()
    events = EventAccumulator(str(tmp_path)).Reload()
    everyone, half = events.Scalars("epsilon"), events.Scalars("epsilon_half")
    assert (everyone[0].step, everyone[-1].step, half[-1].step) == (1, 10, 10)
    assert everyone[-1].value == pytest.approx(claims.everyone.epsilon, rel=1e-6)
    assert (tmp_path / "report.html").exists()


def test_a_dashboard_that_fails_ends_the_curves_and_not_the_run(tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    writer = tensorboard.SummaryWriter(tmp_path)
    ledger = Ledger()
    curves = LiveCurves(ledger, writer, clock=lambda: 0.0)
    writer.add_scalar = None
    ledger.step(noise_std=1.0, sample_rate=0.1, clip=1.0)
    with pytest.warns(UserWarning, match=r"log=TypeError: .*; the curves end at step 1"):
        curves.show()
    curves.show()
    writer.close()
