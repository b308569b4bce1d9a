"""What a round does: who contributes what, what the ledger gets, and what is claimed."""

import numpy as np
import pytest

import bayesdp
from bayesdp import InvalidInputError, Ledger, Plan
from bayesdp.flower import FixedSizeClients, InProcessGrid, PoissonClients
from bayesdp.randomness import Seeded, gaussian, poisson_batch
from flower_runs import SIZE, arrays, client_app, grid_of, strategy, target


def test_a_round_is_the_noisy_sum_of_clipped_updates():
    """Against the formula, written out by hand from the same draws and noise."""
    ran = strategy(Ledger(audit_ids=["6"], keep_norms=True), server_rate=0.7)
    result = ran.start(grid_of(6, 1), arrays(), num_rounds=1)
    drawn = poisson_batch(Seeded(0), 6, 0.5, step=1)
    updates = [0.5 * target(i) for i in drawn]
    clipped = [update * min(1, 1 / np.linalg.norm(update)) for update in updates]
    noise = gaussian(Seeded(0), [SIZE], 1.0, step=1)
    np.testing.assert_allclose(result.arrays["w"].numpy(), 0.7 / 10 * (sum(clipped) + noise), rtol=1e-9)
    assert 0 < len(drawn) < 6
    assert any(np.linalg.norm(update) > 1 for update in updates)
    assert any(np.linalg.norm(update) < 1 for update in updates)
    _, batch = ran.ledger.private_norms(1)
    np.testing.assert_allclose(sorted(batch), sorted(np.linalg.norm(update) for update in updates))


def test_the_ledger_has_the_worst_case_of_dp_accounting(tmp_path):
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    ran = strategy(tmp_path / "run.ledger", draws=PoissonClients(0.25), noise_multiplier=1.5)
    ran.start(grid_of(8, 0), arrays(), num_rounds=12)
    accountant = PLDAccountant()
    accountant.compose(PoissonSampledDpEvent(0.25, GaussianDpEvent(1.5)), 12)
    everyone = ran.ledger.claims(delta=1e-5).everyone
    assert everyone.kind == "proved"
    assert everyone.epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)
    assert everyone.epsilon == float(bayesdp.epsilon(noise_multiplier=1.5, sample_rate=0.25, steps=12))


def test_audit_clients_are_measured_and_never_trained_on():
    seen = []

    def train(w, context):
        seen.append(context.node_config["partition-id"])
        return w + (100.0 if context.node_config["audit"] else 0.01)

    ledger = Ledger(audit_ids=["20", "21", "22"], keep_norms=True)
    ran = strategy(ledger, divisor=10.0, noise_multiplier=0.01)
    result = ran.start(grid_of(20, 3, client_app(train)), arrays(), num_rounds=1)
    assert {20, 21, 22} < set(seen)
    assert np.abs(result.arrays["w"].numpy()).max() < 0.1  # the hundreds are in no sum
    exposures, counts = ledger.exposure_counts()
    np.testing.assert_allclose(exposures, [100.0], rtol=1e-2)
    assert counts.tolist() == [3]


def test_norms_of_audit_clients_are_those_of_the_model_that_the_round_started_from():
    ledger = Ledger(audit_ids=["5"], keep_norms=True)
    models = []
    strategy(ledger).start(
        grid_of(5, 1), arrays(), num_rounds=3, evaluate_fn=lambda _, model: models.append(model["w"].numpy())
    )
    expected = [0.5 * np.linalg.norm(target(5) - model) for model in models[:3]]
    np.testing.assert_allclose([ledger.private_norms(step)[0][0] for step in (1, 2, 3)], expected, rtol=1e-9)


def test_shares_of_clients(tmp_path):
    """Typical clients move the model less than the clip bound allows, and get a smaller epsilon."""
    ran = strategy(tmp_path / "run.ledger", clip=2.0)
    ran.start(grid_of(20, 60), arrays(), num_rounds=20)
    claims = ran.ledger.claims(delta=1e-5, shares=[0.5, 0.9, 0.99], rows=3)
    assert claims.share(0.5).ex_post.epsilon < claims.share(0.9).ex_post.epsilon < claims.everyone.epsilon
    assert claims.share(0.99).ex_post.epsilon == np.inf  # 459 clients would be needed
    assert claims.for_rows.epsilon > 2 * claims.everyone.epsilon


def test_no_metric_of_a_training_client_comes_back(tmp_path):
    result = strategy(tmp_path / "run.ledger").start(grid_of(6, 1), arrays(), num_rounds=2)
    assert not result.train_metrics_clientapp
    assert not result.evaluate_metrics_clientapp


def test_empty_rounds_are_released_too(tmp_path):
    ran = strategy(tmp_path / "run.ledger", draws=PoissonClients(1e-9))
    result = ran.start(grid_of(3, 0), arrays(), num_rounds=2)
    assert ran.ledger.steps == 2
    assert (result.arrays["w"].numpy() != 0).all()


def test_fixed_size_rounds_are_accounted_without_amplification(tmp_path):
    ran = strategy(tmp_path / "run.ledger", draws=FixedSizeClients(4))
    sizes = []
    grid = grid_of(12, 2, answers=lambda node, message: sizes.append(node) or True)
    ran.start(grid, arrays(), num_rounds=5)
    everyone = ran.ledger.claims(delta=1e-5).everyone
    assert everyone.epsilon == float(bayesdp.epsilon(noise_multiplier=1.0, sample_rate=1.0, steps=5))
    assert any("zero-out" in text for text in everyone.assumptions)
    assert len(sizes) == 14 + 5 * (4 + 2)
    assert ran.ledger.plan == (Plan(steps=5, noise_std=1.0, sample_rate=1.0, clip=1.0),)


def test_every_set_of_a_fixed_size_is_equally_likely():
    draws = FixedSizeClients(2)
    found = [tuple(draws.draw(Seeded(7), [10, 11, 12, 13], step=step)) for step in range(6000)]
    counts = np.unique(found, axis=0, return_counts=True)[1]
    assert len(counts) == 6
    assert abs(counts - 1000).max() < 5 * np.sqrt(1000)


def test_claims_name_what_a_federated_run_rests_on(tmp_path):
    ran = strategy(tmp_path / "run.ledger")
    ran.start(grid_of(6, 2), arrays(), num_rounds=2)
    assumptions = " ".join(ran.ledger.claims().everyone.assumptions)
    assert "whether a client answered in time did not depend on the data of other clients" in assumptions
    assert "NOT FOR RELEASE" in assumptions  # the tests use a seed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip": 0}, "clip=0: expected a finite number above 0"),
        ({"noise_multiplier": -1}, "noise_multiplier=-1: expected a noise multiplier"),
        ({"divisor": float("inf")}, "divisor=inf: expected a finite number above 0"),
        ({"server_rate": 0}, "server_rate=0: expected"),
        ({"wait_for": 0}, "wait_for=0: expected a whole number of at least 1"),
        ({"local_draws": "no"}, "local_draws='no': expected"),
    ],
)
def test_bad_settings_are_refused(tmp_path, changes, message):
    with pytest.raises(InvalidInputError, match=message):
        strategy(tmp_path / "run.ledger", **changes)
    assert not list(tmp_path.iterdir())


def test_arrays_that_cannot_have_noise_are_refused(tmp_path):
    with pytest.raises(InvalidInputError, match=r"initial_arrays\['w'\]='int64': expected floating-point"):
        strategy(tmp_path / "run.ledger").start(grid_of(3, 0), arrays(np.zeros(SIZE, int)), num_rounds=1)
    assert not list(tmp_path.iterdir())


def test_an_app_without_the_mod_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match=r"mods=\[bayesdp.flower.AuditMod\(\)\]"):
        strategy(tmp_path / "run.ledger").start(grid_of(3, 0, client_app(mods=[])), arrays(), num_rounds=1)
    assert not list(tmp_path.iterdir())


def test_a_grid_needs_clients():
    with pytest.raises(InvalidInputError, match="clients="):
        InProcessGrid(client_app(), [])
