"""Centre and shape of features: how much one record changes them, and what they do."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesdp import Ledger
from bayesdp.randomness import Seeded
from bayesdp.recipes.release import NoisySums
from bayesdp.recipes.whitening import Whitening, release_centre, release_shape


class Released(NoisySums):
    """Real noisy sums that also keep what they released."""

    def release(self, total, *, step, audit=None, mask=None):
        noisy = super().release(total, step=step, audit=audit, mask=mask)
        self.ledger.seen = noisy
        return noisy


def sums(noise=1.0, clip=1.0, **options):
    return Released(
        ledger=Ledger(keep_norms=True),
        randomness=Seeded(0),
        clip=clip,
        noise_multiplier=noise,
        sample_rate=1.0,
        source="test",
        **options,
    )


def rows(n=300, d=8, seed=0, stretch=1.0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, d)) * np.r_[stretch, np.ones(d - 1)] + 1.0
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


@given(st.integers(0, 10**6), st.floats(0.01, 100), st.floats(-3, 3))
def test_one_record_changes_either_sum_by_the_clip_at_most(seed, clip, log_length):
    x = rows(50, seed=seed) * 10.0**log_length  # longer than 1 too: lengths must not be taken for granted
    whitening = Whitening(x.mean(axis=0).astype(np.float64), None)
    changed = x.copy()
    changed[7] = 0.0  # adds nothing to the sum of features; from the sum of outer products it is left out
    with_record, without = sums(1.0, clip), sums(1.0, clip)
    release_centre(x, with_record, step=0, audit=None)
    release_centre(changed, without, step=0, audit=None)
    assert np.linalg.norm(with_record.ledger.seen - without.ledger.seen) <= clip  # the same seeded noise in both
    with_record, without = sums(1.0, clip), sums(1.0, clip)
    release_shape(x, whitening, with_record, floor=1.0, step=0, audit=None)
    release_shape(np.delete(x, 7, axis=0), whitening, without, floor=1.0, step=0, audit=None)
    assert np.linalg.norm(with_record.ledger.seen - without.ledger.seen) <= clip


def test_audit_norms_are_what_a_record_would_add():
    x, audit = rows(), rows(20, seed=4) * 0.7
    centre = sums()
    whitening = release_centre(x, centre, step=0, audit=audit)
    np.testing.assert_allclose(centre.ledger.private_norms(1)[0], np.linalg.norm(audit, axis=1), rtol=1e-5)
    shape = sums()
    release_shape(x, whitening, shape, floor=1.0, step=1, audit=audit)
    np.testing.assert_allclose(shape.ledger.private_norms(1)[0], 1.0, rtol=1e-5)
    assert np.ptp(shape.ledger.costs([4])) == 0  # all at the bound


def test_with_little_noise_directions_vary_alike():
    x = rows(4000, stretch=6.0)
    centred = release_centre(x, sums(1e-3), step=0, audit=None)
    np.testing.assert_allclose(centred.centre, x.mean(axis=0), atol=2e-3)
    whitened = release_shape(x, centred, sums(1e-3), floor=1e-6, step=1, audit=None).apply(x)
    np.testing.assert_allclose(np.linalg.norm(whitened, axis=1), 1.0, rtol=1e-5)
    before, after = (np.linalg.eigvalsh(rows.T @ rows / len(x)) for rows in (centred.apply(x), whitened))
    assert before[-1] > 5 * before[0]
    assert after[-1] < 2.5 * after[0]  # not 1: rows are scaled to length 1 after the matrix


def test_noise_hides_the_shape_and_the_floor_stands_in():
    whitening = release_shape(rows(), Whitening(np.zeros(8), None), sums(1e6), floor=1.0, step=0, audit=None)
    values = np.linalg.eigvalsh(whitening.matrix.astype(np.float64))
    assert values[-1] < 3 * values[0]  # noise alone lies within its radius: no direction is blown up


def test_noise_on_the_second_moments_is_that_of_the_ledger():
    x = rows(200, d=60)
    quiet, loud = sums(1e-6), sums(50.0)
    for noisy in (quiet, loud):
        release_shape(x, Whitening(np.zeros(60), None), noisy, floor=1.0, step=0, audit=None)
    noise = loud.ledger.seen - quiet.ledger.seen
    assert noise.size == 60 * 61 / 2
    assert noise.std() == pytest.approx(loud.ledger.history.stretches[0].noise_std, rel=6 / np.sqrt(2 * noise.size))


def test_removing_a_record_moves_the_others_and_changes_little():
    """Blocks are cut at fixed places, so all later records may change their block."""
    x = rows(20_000, d=4)
    whitening = Whitening(np.full(4, 0.2), None)
    with_record, without = sums(), sums()
    release_shape(x, whitening, with_record, floor=1.0, step=0, audit=None)
    release_shape(x[1:], whitening, without, floor=1.0, step=0, audit=None)
    assert np.linalg.norm(with_record.ledger.seen - without.ledger.seen) <= 1 - 0.9e-3


@pytest.mark.parametrize("value", [3e37, np.inf, np.nan])
def test_a_hostile_row_stops_nobody(value):
    x = rows()
    x[3] = value
    centred = release_centre(x, sums(1e6), step=0, audit=None)
    whitening = release_shape(x, centred, sums(1e6), floor=1.0, step=1, audit=None)
    assert np.isfinite(whitening.apply(x)).all()
