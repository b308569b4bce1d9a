"""Real SuperLink and SuperNode processes: 20 clients, and a server that is killed on the way."""

import pytest

import bayesdp
from bayesdp import Ledger
from flower_processes import Federation


@pytest.mark.slow
def test_twenty_clients_and_a_server_that_is_killed(tmp_path):
    with Federation(tmp_path / "federation", clients=20, audit=3) as federation:
        federation.run(rounds=4, rate=0.15)
        federation.wait_for_steps(2, 300)
        assert federation.kill_server()
        recorded = federation.steps()
        newest, models = federation.seen()
        assert newest - 1 <= recorded
        assert models <= recorded
        federation.run(rounds=4, rate=0.15)
        federation.wait_until_done(400)
        newest, models = federation.seen()
    ledger = Ledger.open(tmp_path / "federation" / "run" / "run.ledger", write=False)
    assert ledger.steps == 4
    assert newest == 4
    assert models <= 3  # the last model was sent to nobody; a round that was recorded and lost made no model
    assert ledger.audit_ids == ["17", "18", "19"]
    claims = ledger.claims(delta=1e-5, shares=[0.5])
    assert claims.everyone.kind == "proved"
    assert claims.everyone.epsilon == float(bayesdp.epsilon(noise_multiplier=1.0, sample_rate=0.15, steps=4))
