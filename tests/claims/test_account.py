"""``bayesdp.account``: from norms to figures."""

import json
import math

import numpy as np
import pytest

import bayesdp
from kept import forget_results

RNG = np.random.default_rng(0)
NORMS = np.minimum(5, np.exp(-1 + 0.5 * RNG.standard_normal((20, 60))))
SETTINGS = {"noise_std": 3.0, "clip": 1.0, "sample_rate": 0.05, "delta": 1e-5}


def test_equals_the_claims_of_a_ledger_with_the_same_steps():
    result = bayesdp.account(NORMS, **SETTINGS)
    ledger = bayesdp.Ledger()
    for row in NORMS:
        ledger.step(noise_std=3.0, sample_rate=0.05, clip=1.0, audit=row)
    forget_results()
    assert result == ledger.claims(1e-5)
    assert not result.bayesian.private
    expected = bayesdp.epsilon(noise_multiplier=3.0, sample_rate=0.05, steps=20, delta=1e-5)
    assert result.worst_case.to_dict() == expected.to_dict()
    json.dumps(result.to_dict(), allow_nan=False)


def test_the_figure_called_bayesian_is_one_number_everywhere(tmp_path):
    result = bayesdp.account(NORMS, **SETTINGS, ledger=tmp_path / "run.ledger")
    with bayesdp.Ledger.open(tmp_path / "run.ledger", write=False) as ledger:
        forget_results()
        claims = ledger.claims(1e-5)
    assert math.isfinite(result.bayesian.epsilon)
    assert claims.bayesian == result.bayesian
    assert claims.to_dict()["bayesian"] == result.to_dict()["bayesian"]


def test_noise_multiplier_is_noise_over_clip():
    scaled = bayesdp.account(2 * NORMS, clip=2.0, noise_multiplier=3.0, sample_rate=0.05)
    assert scaled.bayesian.epsilon == pytest.approx(bayesdp.account(NORMS, **SETTINGS).bayesian.epsilon, rel=1e-12)


def test_typical_records_lose_less_than_the_moments_accountant_says():
    claim = bayesdp.account(0.2 * NORMS, **SETTINGS).bayesian
    assert claim.epsilon < claim.worst_case.epsilon


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clip": 0}, "clip=0"),
        ({"sample_rate": -1}, "sample_rate=-1"),
        ({"noise_std": None}, "noise_std, noise_multiplier='neither'"),
        ({"noise_multiplier": 1.0}, "noise_std, noise_multiplier='both'"),
        ({"gamma": 0}, "gamma=0"),
        ({"shares": [1.5]}, "shares=1.5"),
        ({"shares": ["half"]}, "shares='half'"),
        ({"paper_gamma": 0}, "paper_gamma=0"),
    ],
)
def test_bad_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        bayesdp.account(NORMS, **{**SETTINGS, **change})


@pytest.mark.parametrize("norms", [[], [1.0, 2.0], np.zeros((0, 3)), np.zeros((3, 0)), [[1.0, "x"]]])
def test_bad_norms_are_refused(norms):
    with pytest.raises(ValueError, match="norms"):
        bayesdp.account(norms, **SETTINGS)


def test_noise_that_a_ledger_refuses_leaves_no_file(tmp_path):
    with pytest.raises(bayesdp.InvalidInputError, match="noise_std=1e-120: expected a number from 1e-100"):
        bayesdp.account([[1e-120]], clip=1e-120, sample_rate=0.1, noise_std=1e-120, ledger=tmp_path / "kept.ledger")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_stopped_early_is_accounted_at_its_plan():
    result = bayesdp.account(NORMS, **SETTINGS, planned_steps=50)
    planned = bayesdp.epsilon(noise_multiplier=3.0, sample_rate=0.05, steps=50, delta=1e-5)
    assert result.everyone.epsilon == planned.epsilon
    assert result.everyone.condition is None
    assert result.anytime is None
    assert bayesdp.account(NORMS, **SETTINGS).everyone.condition is not None


def test_more_norms_than_were_planned_leave_the_plan():
    result = bayesdp.account(NORMS, **SETTINGS, planned_steps=10)
    assert "The run left its plan: 20 steps were taken, 10 were planned." in result.statement()
    assert result.everyone.condition is not None


@pytest.mark.parametrize("planned", [0, -3, 2.5])
def test_no_plan_has_so_many_steps(planned, tmp_path):
    with pytest.raises(bayesdp.InvalidInputError, match=f"planned_steps={planned}"):
        bayesdp.account(NORMS, **SETTINGS, planned_steps=planned, ledger=tmp_path / "run.ledger")
    assert not list(tmp_path.iterdir())
