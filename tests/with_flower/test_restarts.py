"""A server that is killed and started again: no applied round is missing from the ledger."""

import json

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant

from bayesdp import InvalidInputError, Ledger, LedgerError
from bayesdp.flower import PoissonClients
from flower_kills import Kill, kill_storm
from flower_runs import arrays, grid_of, strategy


def test_no_applied_round_is_missing_after_kills(tmp_path):
    """Three kills here, 20 in benchmarks/flower_kills.py; of real processes: benchmarks/flower_process_kills.py."""
    kills = kill_storm(tmp_path, kills=3, rounds=30, seed=0)
    assert len(kills) == 3
    assert all(kill.models_seen > 0 for kill in kills)
    assert [kill.missing for kill in kills] == [0, 0, 0]
    ledger = Ledger.open(tmp_path / "run.ledger", write=False)
    assert ledger.steps == 30
    assert ledger.claims().everyone.kind == "proved"


def test_a_missing_round_would_be_found():
    assert Kill(steps=3, newest_round_sent=5, models_seen=3).missing == 1
    assert Kill(steps=3, newest_round_sent=4, models_seen=5).missing == 2
    assert Kill(steps=3, newest_round_sent=4, models_seen=3).missing == 0


def test_a_run_goes_on_with_model_and_ledger(tmp_path):
    whole = strategy(tmp_path / "whole.ledger")
    expected = whole.start(grid_of(6, 2), arrays(), num_rounds=6).arrays["w"].numpy()
    places = {"checkpoint": tmp_path / "model.npz", "ledger": tmp_path / "run.ledger"}
    first = strategy(**places)
    with pytest.raises(KeyboardInterrupt):
        first.start(grid_of(6, 2), arrays(), num_rounds=6, evaluate_fn=interrupt_after(3))
    first.ledger.close()
    rounds = []
    second = strategy(**places)
    result = second.start(grid_of(6, 2), arrays(), num_rounds=6, evaluate_fn=lambda n, _: rounds.append(n))
    np.testing.assert_array_equal(result.arrays["w"].numpy(), expected)
    assert rounds == [3, 4, 5, 6]
    assert second.ledger.claims().everyone.epsilon == whole.ledger.claims().everyone.epsilon
    third = strategy(**{**places, "ledger": second.ledger})
    np.testing.assert_array_equal(third.start(grid_of(6, 2), arrays(), num_rounds=6).arrays["w"].numpy(), expected)


def interrupt_after(rounds):
    def evaluate(number, model):
        if number == rounds:
            raise KeyboardInterrupt

    return evaluate


def test_the_step_is_on_disk_before_the_model_is(tmp_path, monkeypatch):
    """If the ledger cannot be written, there is no new model anywhere."""
    ran = strategy(tmp_path / "run.ledger", checkpoint=tmp_path / "model.npz")
    models = []
    ran.start(grid_of(4, 0), arrays(), num_rounds=2, evaluate_fn=lambda _, model: models.append(model))
    before = (tmp_path / "model.npz").read_bytes()
    ran.ledger.close()
    with pytest.raises(LedgerError, match="closed"):
        ran.start(grid_of(4, 0), arrays(), num_rounds=5, evaluate_fn=lambda _, model: models.append(model))
    assert (tmp_path / "model.npz").read_bytes() == before
    assert len(models) == 4  # two rounds and the models that each start began with


def test_a_model_without_its_ledger_is_refused(tmp_path):
    ran = strategy(tmp_path / "run.ledger", checkpoint=tmp_path / "model.npz")
    ran.start(grid_of(4, 0), arrays(), num_rounds=2)
    other = strategy(tmp_path / "other.ledger", checkpoint=tmp_path / "model.npz")
    with pytest.raises(LedgerError, match="the checkpoint of run"):
        other.start(grid_of(4, 0), arrays(), num_rounds=2)


@pytest.mark.parametrize("content", [b"", b"no model", json.dumps({}).encode()])
def test_a_file_that_is_no_model_is_refused(tmp_path, content):
    (tmp_path / "model.npz").write_bytes(content)
    with pytest.raises(InvalidInputError, match="expected a model that PrivateFedAvg wrote"):
        strategy(tmp_path / "run.ledger", checkpoint=tmp_path / "model.npz").start(
            grid_of(4, 0), arrays(), num_rounds=2
        )


def test_audit_clients_that_come_later_are_neither_trained_on_nor_counted(tmp_path):
    first = strategy(tmp_path / "run.ledger")
    first.start(grid_of(4, 2), arrays(), num_rounds=3)
    first.ledger.close()
    second = strategy(tmp_path / "run.ledger")
    second.start(grid_of(4, 5), arrays(), num_rounds=6)
    assert second.ledger.steps == 6
    assert second.ledger.audit_ids == ["4", "5"]


@pytest.mark.parametrize(
    "changes",
    [{"rounds": 9}, {"noise_multiplier": 0.8}, {"draws": PoissonClients(0.6)}, {"clip": 2.0}],
    ids=["more rounds", "less noise", "another rate", "another clip bound"],
)
def test_a_restart_with_other_settings_is_accounted_as_it_is(tmp_path, changes):
    """The plan is broken then: its epsilon is no longer claimed, and no figure is below that of the steps taken."""
    first = strategy(tmp_path / "run.ledger")
    first.start(grid_of(6, 2), arrays(), num_rounds=6, evaluate_fn=None)
    planned = first.ledger.claims().everyone.epsilon
    first.ledger.close()
    rounds = changes.pop("rounds", 8)
    second = strategy(tmp_path / "run.ledger", **changes)
    second.start(grid_of(6, 2), arrays(), num_rounds=rounds)
    everyone = second.ledger.claims().everyone
    noise, rate = changes.get("noise_multiplier", 1.0), second.draws.accounted_rate
    accountant = PLDAccountant()
    accountant.compose(PoissonSampledDpEvent(0.5, GaussianDpEvent(1.0)), 6)
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), rounds - 6)
    assert everyone.epsilon >= accountant.get_epsilon(1e-5) * (1 - 1e-6)
    assert everyone.epsilon > planned
    assert everyone.condition is not None or everyone.kind != "proved"
