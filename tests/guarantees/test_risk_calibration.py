"""Noise for a true-positive rate: on the private side of the target, close to it, and verified again."""

import math

import pytest
from scipy.stats import norm

import bayesdp


@pytest.mark.parametrize(
    ("tpr", "fpr", "rate", "steps"),
    [(0.05, 0.01, 0.1, 100), (0.002, 0.001, 0.0043, 2000), (0.9, 0.1, 0.5, 30), (0.0101, 0.01, 0.5, 10)],
)
def test_it_lands_on_the_private_side_and_close(tpr, fpr, rate, steps):
    found = bayesdp.calibrate_risk(tpr=tpr, fpr=fpr, sample_rate=rate, steps=steps)
    noise = found.noise_multiplier

    def reached(multiplier):
        return bayesdp.attack_risk(noise_multiplier=multiplier, sample_rate=rate, steps=steps, fpr=(fpr,)).tpr[0]

    assert reached(noise) == found.risk.tpr[0] <= tpr
    assert reached(0.99 * noise) > tpr
    again = bayesdp.epsilon(noise_multiplier=noise, sample_rate=rate, steps=steps)
    assert found.worst_case == again


@pytest.mark.parametrize(("tpr", "fpr", "steps"), [(0.05, 0.01, 1), (0.3, 0.001, 40), (0.99, 0.5, 7)])
def test_without_sampling_the_noise_is_a_formula(tpr, fpr, steps):
    found = bayesdp.calibrate_risk(tpr=tpr, fpr=fpr, sample_rate=1, steps=steps)
    exact = math.sqrt(steps) / (norm.ppf(tpr) - norm.ppf(fpr))
    assert exact <= found.noise_multiplier <= exact * (1 + 1e-6)
    assert found.risk.tpr[0] <= tpr


def test_a_target_that_sampling_alone_meets_needs_hardly_any_noise():
    found = bayesdp.calibrate_risk(tpr=0.2, fpr=0.1, sample_rate=0.001, steps=3)
    assert found.noise_multiplier == 0.01
    assert found.risk.tpr[0] <= 0.1 + 0.003


def test_printed_figures_stay_on_the_private_side():
    found = bayesdp.calibrate_risk(tpr=0.05, fpr=0.01, sample_rate=1, steps=10)
    words = found.statement().split()
    assert found.noise_multiplier <= float(words[2].rstrip(".")) <= found.noise_multiplier * (1 + 1e-5)
    assert "who accepts 1 % false alarms finds at most 5 % of the people" in found.statement()
    assert found.to_dict()["tpr"] == found.risk.tpr[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tpr": 0.01}, "tpr=0.01: expected a rate above fpr=0.01"),
        ({"tpr": 0.001}, "tpr=0.001"),
        ({"tpr": 1}, "tpr=1"),
        ({"fpr": 0}, "fpr=0"),
        ({"fpr": -0.1}, "fpr=-0.1"),
        ({"tpr": math.nan}, "tpr=nan"),
        ({"steps": 0}, "steps=0"),
        ({"sample_rate": 0}, "sample_rate=0"),
        ({"delta": 1}, "delta=1"),
        ({"tpr": 0.01 * (1 + 1e-12)}, "a noise multiplier below 1e"),
    ],
)
def test_bad_targets_are_refused(change, message):
    with pytest.raises(bayesdp.InvalidInputError, match=message):
        bayesdp.calibrate_risk(**{"tpr": 0.05, "fpr": 0.01, "sample_rate": 0.1, "steps": 10, **change})
