"""Lower bounds beside claims: below what is known exactly, close to it, and below every claim."""

import numpy as np
import pytest

import bayesdp
from bayesdp import Ledger, Plan
from bayesdp.attack.lab import AttackOptions
from bayesdp.attack.tightness import attack, lowest_epsilon
from bayesdp.profiles import gaussian_epsilon


@pytest.mark.parametrize("direction", ["both", "record in", "record out"])
def test_without_sampling_it_is_just_below_the_gaussian_epsilon(direction):
    exact = gaussian_epsilon(np.sqrt(10 * 0.2**2 + 5 * 0.1**2), 1e-5)
    assert 0.995 * exact < lowest_epsilon([(0.2, 1.0, 10), (0.1, 1.0, 5)], 1e-5, direction) < exact


def test_with_sampling_it_is_just_below_the_worst_case():
    claimed = bayesdp.epsilon(noise_multiplier=2.0, sample_rate=0.1, steps=40, delta=1e-5).epsilon
    assert 0.98 * claimed < lowest_epsilon([(0.5, 0.1, 40)], 1e-5, "both") < claimed
    assert lowest_epsilon([(0.5, 0.1, 40)], 1e-5, "record out") < 0.9 * claimed
    assert lowest_epsilon([], 1e-5, "both") == 0


def test_claims_of_a_ledger_stand(tmp_path):
    rng = np.random.default_rng(0)
    settings = {"noise_std": 3.0, "sample_rate": 0.2, "clip": 1.0}
    people = rng.lognormal(-1.5, 0.5, 60)
    with Ledger.create(tmp_path / "run.ledger", plan=Plan(steps=20, **settings)) as ledger:
        for _ in range(20):
            ledger.step(**settings, audit=people)
    findings = list(attack(AttackOptions(ledger=tmp_path / "run.ledger", delta=1e-4)))
    assert [finding.line() for finding in findings if not finding.stands] == []
    assert [finding.claim for finding in findings][:2] == ["everyone", "everyone who was left out"]
    assert len(findings) > 3
    for finding in findings[:2]:
        assert finding.bound > 0.95 * finding.claimed
    for finding in findings[2:]:
        assert finding.bound > 0.5 * finding.claimed
