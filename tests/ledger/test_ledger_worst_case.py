"""Figures for everyone from a ledger: the worst case of its settings, and what rounding can have added."""

from __future__ import annotations

import math

import numpy as np
import pytest

import bayesdp
from bayesdp import Ledger
from bayesdp.guarantees.worst_case import rdp_epsilon
from bayesdp.profiles.conversion import record_epsilons


def test_worst_case_is_the_one_of_the_settings() -> None:
    ledger = Ledger()
    for number in range(30):
        ledger.step(noise_std=2.0 if number < 20 else 3.0, sample_rate=0.1, clip=2.0)
    expected = bayesdp.worst_case_of([(1.0, 0.1, 20), (1.5, 0.1, 10)], delta=1e-6)
    assert ledger.worst_case(1e-6).to_dict() == expected.to_dict()
    assert Ledger().worst_case().epsilon == 0


@pytest.mark.parametrize("different", [50, pytest.param(200, marks=pytest.mark.slow)])
def test_worst_case_of_a_noise_schedule_is_a_little_above(different: int) -> None:
    """200 steps with 50 or 200 different noises; RDP of all of them is the yardstick, and takes time for each."""
    noises = np.repeat(np.linspace(1.0, 1.25, different), 200 // different).tolist()
    ledger = Ledger()
    for noise in noises:
        ledger.step(noise_std=noise, sample_rate=0.01, clip=1.0)
    exact = rdp_epsilon([(noise, 0.01, 1) for noise in noises])
    worst = ledger.worst_case()
    assert exact <= worst.rdp_epsilon <= exact * 1.02
    assert worst.pld_epsilon is not None
    assert worst.epsilon == worst.pld_epsilon < exact


def test_a_step_without_clip_has_no_worst_case() -> None:
    ledger = Ledger()
    ledger.step(noise_std=1.0, sample_rate=0.1, clip=None, audit=[0.5])
    worst = ledger.worst_case()
    assert math.isinf(worst.epsilon)
    assert worst.to_dict()["reason"] == "a step without a clip bound has no worst case"
    assert np.isfinite(ledger.costs([1, 2])).all()


def test_many_different_settings_have_a_worst_case() -> None:
    ledger = Ledger()
    rng = np.random.default_rng(0)
    for noise, rate in zip(rng.uniform(1, 20, 60).tolist(), rng.uniform(0.001, 0.5, 60).tolist(), strict=True):
        ledger.step(noise_std=noise, sample_rate=rate, clip=1.0)
    ledger.step(noise_std=1e-6, sample_rate=0.01, clip=1.0)
    worst = ledger.worst_case()
    assert worst.accountant == "RDP"
    assert worst.epsilon > 0


def test_rounding_includes_rates_and_what_is_beyond_the_grid() -> None:
    ledger = Ledger()
    rates = np.linspace(0.1, 0.2, 60).tolist()
    for rate in rates:
        ledger.step(noise_std=1.0, sample_rate=rate, clip=1.0, audit=[0.5])
    lambdas = np.arange(1.0, 257)
    exact = sum(bayesdp.SubsampledGaussian(sample_rate=rate).log_moment([0.5], lambdas) for rate in rates)
    rounded, truth = (record_epsilons(np.asarray(costs), lambdas, 1e-5) for costs in (ledger.costs(lambdas), exact))
    assert 0.001 < rounded[0] / truth[0] - 1 <= ledger.rounding() < 0.1
    ledger.step(noise_std=1.0, sample_rate=0.1, clip=None, audit=[9.0])
    assert math.isinf(ledger.rounding())
