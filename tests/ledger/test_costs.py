"""Costs from a ledger: never below those of the exact exposures, epsilon at most 1 % above."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesdp import Ledger, SubsampledGaussian
from bayesdp.ledger import exposure_grid as grid
from bayesdp.ledger.bins import Bins
from bayesdp.ledger.costs import BinCosts
from bayesdp.ledger.histograms import Histogram
from bayesdp.profiles.conversion import record_epsilons

LAMBDAS = np.arange(1.0, 129)


def exact_costs(norms: np.ndarray, noise: float, clip: float, rate: float, lambdas: np.ndarray) -> np.ndarray:
    """Every exposure of every record at every order, [m, L]; norms [T, m]."""
    exposures = np.minimum(norms, clip) / noise
    moments = SubsampledGaussian(sample_rate=rate).log_moment(exposures.ravel(), lambdas)
    return moments.reshape(*norms.shape, -1).sum(axis=0)


@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 12),
    records=st.integers(1, 5),
    median=st.floats(0.01, 4),
    spread=st.sampled_from([0.0, 0.1, 0.7, 2.0]),
    rate=st.floats(-3, 0).map(lambda power: 10**power),
    noise=st.sampled_from([0.25, 0.3, 1.0, 1.1, 7.0]),
    lambdas=st.sampled_from([LAMBDAS, LAMBDAS[:5], np.array([1.0, 7.0, 256.0])]),
)
def test_random_runs(
    seed: int, steps: int, records: int, median: float, spread: float, rate: float, noise: float, lambdas: np.ndarray
) -> None:
    """Each step stands for many like it, so that epsilon is one of a real run."""
    rng = np.random.default_rng(seed)
    norms = noise * median * np.exp(spread * rng.standard_normal((steps, records)))
    clip = 4 * noise
    ledger = Ledger()
    for row in norms:
        ledger.step(noise_std=noise, sample_rate=rate, clip=clip, audit=row)
    costs, exact = ledger.costs(lambdas), exact_costs(norms, noise, clip, rate, lambdas)
    assert (costs >= exact * (1 - 1e-12)).all()
    repeats = math.ceil(10 / (rate * steps))
    for delta in (1e-5, 1e-9):
        epsilon, truth = (record_epsilons(repeats * cost, lambdas, delta) for cost in (costs, exact))
        assert (epsilon >= truth * (1 - 1e-12)).all()
        sensible = (truth > 0.1) & (len(lambdas) > 100)
        assert (epsilon[sensible] <= truth[sensible] * 1.01).all()


@pytest.mark.slow
def test_one_per_cent_over_the_whole_range() -> None:
    """Every exposure sits just above a node, the worst there is; runs of at least one epoch, epsilon from 0.1 to 20."""
    rng = np.random.default_rng(0)
    lambdas = np.arange(1.0, 257)
    worst, seen = 0.0, 0
    for _ in range(3000):
        rate = 10 ** rng.uniform(-3, 0)
        repeats = 10 ** rng.uniform(-math.log10(rate), 5)
        delta = 10 ** rng.uniform(-10, -4)
        key = int(grid.round_up(np.array([2.0 ** rng.uniform(-6, 2)]))[0])
        bins = Bins()
        bins.number_of_rate(rate)
        present = np.array([key], np.uint32)
        table = BinCosts(bins, present, lambdas)
        costs = table.costs(Histogram(present, np.array([[1]])))
        exact = SubsampledGaussian(sample_rate=rate).log_moment([grid.VALUES[key - 1] * (1 + 1e-12)], lambdas)
        epsilon, truth = (record_epsilons(repeats * cost, lambdas, delta)[0] for cost in (costs, exact))
        assert epsilon >= truth
        if 0.1 <= truth <= 20:
            worst, seen = max(worst, epsilon / truth - 1), seen + 1
    assert seen > 1000
    assert worst <= 0.01


def test_clip_bound_and_zero_are_exact() -> None:
    ledger = Ledger()
    for _ in range(10):
        ledger.step(noise_std=1.3, sample_rate=0.02, clip=0.9, audit=[5.0, 0.0])
    exact = 10 * SubsampledGaussian(sample_rate=0.02).log_moment([0.9 / 1.3], LAMBDAS)
    costs = ledger.costs(LAMBDAS)
    assert np.allclose(costs[0], exact, rtol=1e-9)
    assert (costs[0] >= exact).all()
    assert (costs[1] == 0).all()


def test_beyond_the_grid_is_infinite() -> None:
    ledger = Ledger()
    ledger.step(noise_std=1.0, sample_rate=0.5, clip=None, audit=[8.5, 1.0])
    costs = ledger.costs(LAMBDAS)
    assert np.isinf(costs[0]).all()
    assert np.isfinite(costs[1]).all()
    assert np.isinf(ledger.snapshots()[1][0, 0]).all()


def test_several_rates_and_noises() -> None:
    """Costs of different settings add up; a step without norms is charged at the clip bound."""
    rng = np.random.default_rng(1)
    ledger, exact = Ledger(), np.zeros((4, len(LAMBDAS)))
    for noise, rate, clip in ((1.0, 0.1, 1.0), (2.0, 1.0, 1.5), (1.0, 0.1, 0.5)):
        norms = rng.exponential(0.5, (6, 4))
        for row in norms:
            ledger.step(noise_std=noise, sample_rate=rate, clip=clip, audit=row)
        ledger.step(noise_std=noise, sample_rate=rate, clip=clip)
        exact += exact_costs(np.concatenate([norms, np.full((1, 4), clip)]), noise, clip, rate, LAMBDAS)
    costs = ledger.costs(LAMBDAS)
    assert (costs >= exact * (1 - 1e-12)).all()
    assert (costs <= exact * 1.02).all()


def test_recording_steps_does_not_import_what_only_costs_need() -> None:
    """scipy.sparse takes a tenth of a second to import, which a program that only records need not wait for."""
    code = (
        "import sys; from bayesdp.ledger import MEMORY, LedgerFile, StoredLedger, new_settings\n"
        "ledger = StoredLedger(LedgerFile.create(MEMORY, new_settings()))\n"
        "ledger.step(noise_std=1.0, sample_rate=0.1, clip=1.0, audit=[0.5])\n"
        "print('scipy.sparse' in sys.modules, ledger.costs([1.0]).shape, 'scipy.sparse' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "False (1, 1) True"


def test_real_orders_without_sampling() -> None:
    ledger = Ledger()
    ledger.step(noise_std=1.0, sample_rate=1.0, clip=1.0, audit=[2.0])
    assert ledger.costs([0.5, 1.5])[0] == pytest.approx([0.5 * 1.5 / 2, 1.5 * 2.5 / 2])


def test_what_rounding_added_is_reported() -> None:
    rng = np.random.default_rng(2)
    ledger = Ledger()
    norms = np.exp(-1 + 0.7 * rng.standard_normal((200, 30)))
    for row in norms:
        ledger.step(noise_std=1.0, sample_rate=0.05, clip=1.0, audit=row)
    lambdas = np.arange(1.0, 513)
    exact = record_epsilons(exact_costs(norms, 1.0, 1.0, 0.05, lambdas), lambdas, 1e-5)
    added = (record_epsilons(ledger.costs(lambdas), lambdas, 1e-5) / exact - 1).max()
    assert 0 < added <= ledger.rounding(1e-5) <= 0.01
