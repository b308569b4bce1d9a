"""Noise has the law that is accounted; seeds repeat it, the cryptographic generator never does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bayesdp import randomness as module
from bayesdp.randomness import Secure, Seeded, gaussian, poisson_batch, random_mask, source


@pytest.mark.parametrize("randomness", [Seeded(3), Secure()], ids=["seeded", "secure"])
def test_noise_is_gaussian_with_the_standard_deviation_that_was_asked_for(randomness):
    noise = gaussian(randomness, (400, 500), 7.0, step=0).ravel() / 7.0
    assert stats.kstest(noise, "norm").pvalue > 1e-6
    assert len(noise) * noise.var() == pytest.approx(len(noise), abs=6 * np.sqrt(2 * len(noise)))
    assert abs(noise.mean()) < 6 / np.sqrt(len(noise))
    assert 3.9 < np.abs(noise).max() < 7
    assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 6 / np.sqrt(len(noise))


def test_noise_is_made_in_parts_that_differ(monkeypatch):
    monkeypatch.setattr(module, "_AT_ONCE", 7)
    noise = gaussian(Seeded(0), (20,), 1.0, step=0)
    assert len(np.unique(noise)) == 20


def test_the_extremes_of_the_generator_give_finite_noise():
    class Constant:
        reproducible = True

        def __init__(self, byte):
            self.byte = byte

        def bytes(self, count, *, step, purpose, part=0):
            return bytes([self.byte]) * count

    assert np.isfinite(gaussian(Constant(0), (5,), 1.0, step=0)).all()
    assert np.isfinite(gaussian(Constant(255), (5,), 1.0, step=0)).all()


def test_a_seed_repeats_and_streams_are_apart():
    first = gaussian(Seeded(1), (50,), 1.0, step=4)
    assert np.array_equal(first, gaussian(Seeded(1), (50,), 1.0, step=4))
    others = [
        gaussian(Seeded(1), (50,), 1.0, step=5),
        gaussian(Seeded(2), (50,), 1.0, step=4),
        gaussian(Seeded(1), (50,), 1.0, step=4, purpose="posterior"),
    ]
    for other in others:
        assert not np.isin(first, other).any()


def test_the_secure_generator_never_repeats():
    assert not np.isin(gaussian(Secure(), (50,), 1.0, step=0), gaussian(Secure(), (50,), 1.0, step=0)).any()
    assert isinstance(source(5, reproducible=False), Secure)
    assert source(5, reproducible=True).seed == 5


@given(st.floats(1e-6, 1.0), st.integers(0, 2**32 - 1))
def test_records_are_drawn_at_the_rate_or_just_below(rate, draw):
    class One:
        def bytes(self, count, *, step, purpose, part=0):
            return np.array([draw], "<u4").tobytes()

    drawn = len(poisson_batch(One(), 1, rate, step=0))
    assert drawn == (draw < int(rate * 2**32))  # this many of 2^32 numbers: a share of at most the rate
    assert int(rate * 2**32) / 2**32 <= rate


def test_batches_are_poisson():
    sizes = [len(poisson_batch(Seeded(0), 2000, 0.1, step=step)) for step in range(400)]
    assert np.mean(sizes) == pytest.approx(200, abs=6 * np.sqrt(180 / 400))
    assert np.var(sizes) == pytest.approx(180, rel=0.4)
    seen = np.bincount(np.concatenate([poisson_batch(Seeded(0), 50, 0.3, step=step) for step in range(400)]))
    assert stats.chisquare(seen).pvalue > 1e-6


def test_masks_keep_their_share_and_change():
    masks = [random_mask(Seeded(0), (100, 200), 0.1, step=step) for step in (0, 1)]
    assert all(0.09 < mask.mean() < 0.11 for mask in masks)
    assert (masks[0] != masks[1]).any()
