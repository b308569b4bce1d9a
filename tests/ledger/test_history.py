"""The history of a run: stretches of equal settings, and settings that are merged on the private side."""

from __future__ import annotations

import numpy as np
import pytest

from bayesdp import Ledger


def test_stretches_of_equal_settings() -> None:
    ledger = Ledger()
    for noise in (1.0, 1.0, 2.0, 1.0):
        ledger.step(noise_std=noise, sample_rate=0.1, clip=2.0)
    stretches = ledger.history.stretches
    assert [(stretch.noise_std, stretch.first, stretch.steps) for stretch in stretches] == [
        (1.0, 1, 2),
        (2.0, 3, 1),
        (1.0, 4, 1),
    ]
    assert sorted(ledger.history.repeated_steps()) == [(0.5, 0.1, 3), (1.0, 0.1, 1)]
    assert sorted(ledger.history.repeated_steps(more=(1.0, 0.1, 5))) == [(0.5, 0.1, 3), (1.0, 0.1, 6)]


@pytest.mark.parametrize("at_most", [100, 40, 10])
def test_merged_settings_are_never_more_private(at_most: int) -> None:
    """Every step stays, with at most as much noise and at least its rate, by no more than 1/16."""
    rng = np.random.default_rng(0)
    noises, rates = np.sort(rng.uniform(1.0, 1.3, 300)), np.full(300, 0.1)
    ledger = Ledger()
    for noise, rate in zip(noises.tolist(), rates.tolist(), strict=True):
        ledger.step(noise_std=noise, sample_rate=rate, clip=1.0)
    merged = sorted(ledger.history.repeated_steps(at_most))
    assert len(merged) <= at_most
    assert sum(steps for *_, steps in merged) == 300
    merged_noises = np.repeat([noise for noise, _, _ in merged], [steps for *_, steps in merged])
    assert (merged_noises <= noises).all()
    assert (merged_noises >= noises * (1 - 1 / 16)).all()
    assert all(0.1 <= rate <= 0.1 * (1 + 1 / 16) for _, rate, _ in merged)


def test_a_step_without_a_clip_bound_has_the_least_noise() -> None:
    ledger = Ledger()
    ledger.step(noise_std=5.0, sample_rate=0.1, clip=None)
    assert not ledger.history.clipped
    assert ledger.history.repeated_steps() == [(1e-6, 0.1, 1)]


def test_the_share_of_clipped_norms() -> None:
    ledger = Ledger()
    ledger.step(noise_std=1.0, sample_rate=0.1, clip=1.0, audit=[0.5, 2.0])
    ledger.step(noise_std=1.0, sample_rate=0.1, clip=1.0)
    ledger.step(noise_std=1.0, sample_rate=0.1, clip=1.0, audit=[0.5, 0.6])
    history = ledger.history
    assert [history.share_clipped(after, after + 1) for after in range(3)] == [0.5, None, 0.0]
    assert history.share_clipped(0, 3) == 0.25
