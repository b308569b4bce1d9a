"""Fewer kinds of steps: never less than a record paid, and little more."""

import numpy as np
import pytest
from benchmarks.populations import spread
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesdp import Ledger, SubsampledGaussian
from bayesdp.claims.step_kinds import exposure_counts
from bayesdp.profiles.conversion import record_epsilons

LAMBDAS = np.array([1.0, 2.0, 8.0, 32.0, 128.0])


def coarse_costs(ledger: Ledger, kinds: int) -> np.ndarray:
    counts = exposure_counts(ledger.step_counts(), ledger.costs([8.0])[:, 0], 8.0, kinds)
    assert counts.counts.sum() <= ledger.steps * ledger.audit_records
    total = np.zeros((len(counts.counts), len(LAMBDAS)))
    for number, (rate, exposure) in enumerate(zip(counts.rates, counts.exposures, strict=True)):
        taken = counts.counts[:, number]
        if np.isinf(exposure):
            total[taken > 0] = np.inf
        else:
            total += taken[:, None] * SubsampledGaussian(sample_rate=float(rate)).log_moment([exposure], LAMBDAS)
    return total


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.sampled_from([1, 2, 7, 50]), st.booleans())
def test_never_below_whatever_the_run(seed, kinds, unclipped):
    rng = np.random.default_rng(seed)
    ledger = Ledger()
    for _ in range(12):
        norms = np.exp(rng.normal(-1, 1.5, 9)) * (rng.random(9) < 0.9)
        clip = None if unclipped and rng.random() < 0.3 else float(rng.choice([0.5, 1.0]))
        noise = float(rng.choice([0.7, 2.0, 5.0]))
        rate = float(rng.choice([0.01, 0.2, 1.0]))
        ledger.step(noise_std=noise, sample_rate=rate, clip=clip, audit=None if rng.random() < 0.1 and clip else norms)
    exact = ledger.costs(LAMBDAS)
    coarse = coarse_costs(ledger, kinds)
    assert (coarse >= exact * (1 - 1e-9)).all()


def test_adds_little_to_epsilon():
    ledger = Ledger()
    for norms in spread(600, seed=3):
        ledger.step(noise_std=6.0, sample_rate=4096 / 60000, clip=1.0, audit=norms)
    exact = record_epsilons(ledger.costs(LAMBDAS), LAMBDAS, 1e-5)
    added = record_epsilons(coarse_costs(ledger, 384), LAMBDAS, 1e-5) / exact - 1
    assert np.median(added) < 0.003
    assert added.max() < 0.02


def test_records_that_did_nothing():
    ledger = Ledger()
    ledger.step(noise_std=1.0, sample_rate=0.1, clip=1.0, audit=[0.0, 0.0])
    counts = exposure_counts(ledger.step_counts(), np.zeros(2), 8.0)
    assert counts.counts.shape == (2, 0)


def test_few_exposures_are_kept_as_they_are():
    ledger = Ledger()
    ledger.step(noise_std=4.0, sample_rate=0.1, clip=1.0, audit=[0.25, 1.0, 2.0])
    counts = exposure_counts(ledger.step_counts(), ledger.costs([8.0])[:, 0], 8.0)
    assert counts.exposures.tolist() == [0.0625, 0.25]
    assert counts.counts.tolist() == [[1, 0], [0, 1], [0, 1]]
    assert counts.rates == pytest.approx([0.1, 0.1])
