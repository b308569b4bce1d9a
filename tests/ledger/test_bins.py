"""Bins: exact clip bounds and rates while there are few, rounded up once there are many."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bayesdp.ledger import exposure_grid as grid
from bayesdp.ledger.bins import OWN_CLIPS, OWN_RATES, Bins, bins_of

POSITIVE = st.floats(1e-5, 1e5)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20), POSITIVE, st.floats(1e-3, 1e3))
def test_exposure_is_never_below_norm_over_noise(norms: list[float], noise: float, multiple: float) -> None:
    """In exact arithmetic: the key's exposure is at least min(norm, clip) / noise, and at most the clip bound's."""
    clip = noise * multiple
    bins = Bins()
    place = bins.place(noise, 0.1, clip)
    exposures = bins.exposures(place.keys(np.array(norms)))
    bound = bins.exposures(np.array([place.clip_key]))[0]
    for norm, exposure in zip(norms, exposures.tolist(), strict=True):
        assert Fraction(exposure) >= Fraction(min(norm, clip)) / Fraction(noise)
        assert exposure <= bound
    assert math.isclose(bound, clip / noise, rel_tol=1e-14)
    assert bound >= clip / noise


def test_norms_above_the_clip_are_at_the_clip_and_zero_is_zero() -> None:
    bins = Bins()
    place = bins.place(2.0, 0.1, 3.0)
    keys = place.keys(np.array([0.0, 2.9999999, 3.0, 3.1, 1e300, math.inf]))
    assert keys.tolist() == [0, *[place.clip_key] * 5]
    assert place.clip_key == grid.FIRST_OWN


def test_without_a_clip_large_exposures_are_beyond() -> None:
    place = Bins().place(1.0, 0.1, None)
    assert place.keys(np.array([8.0, 8.1])).tolist() == [grid.LAST, grid.BEYOND]
    assert place.clip_key == grid.BEYOND


def test_a_clip_above_the_grid_has_its_own_key() -> None:
    bins = Bins()
    place = bins.place(0.1, 0.1, 1.0)
    keys = place.keys(np.array([0.79, 0.81, 5.0]))
    assert (keys[1:] == place.clip_key).all()
    assert bins.exposures(keys).tolist()[1:] == [bins.own[0]] * 2
    assert keys[0] <= grid.LAST


def test_many_clips_are_rounded_up() -> None:
    bins = Bins()
    for number in range(OWN_CLIPS + 20):
        noise = 1.0 + number / 1000
        place = bins.place(noise, 0.1, 1.0)
        bound = bins.exposures(np.array([place.clip_key]))[0]
        assert bound >= 1 / noise
        assert bound <= 1 / noise * (1 + 1 / 1024)
        assert (place.clip_key >= grid.FIRST_OWN) == (number < OWN_CLIPS)
        assert place.keys(np.array([0.5, 2.0])).tolist()[1] == place.clip_key
    assert len(bins.own) == OWN_CLIPS


def test_many_rates_are_rounded_up_and_stay_few() -> None:
    bins = Bins()
    rates = np.linspace(0.01, 0.02, 1000).tolist()
    for rate in rates:
        kept = bins.rates[bins.place(1.0, rate, 1.0).rate]
        assert rate <= kept <= rate * (1 + 1 / 16)
        assert bins.least_rate(bins.rates.index(kept)) <= rate
    assert bins.rates[:OWN_RATES] == rates[:OWN_RATES]
    assert len(bins.rates) <= OWN_RATES + 18
    assert bins.rates[bins.place(1.0, 1.0, 1.0).rate] == 1.0


def test_the_same_settings_have_the_same_place() -> None:
    bins = Bins()
    first = bins.place(1.0, 0.1, 1.0)
    bins.place(2.0, 0.2, 1.0)
    assert bins.place(1.0, 0.1, 1.0) == first


def test_moved_bins_keep_rate_and_exposure() -> None:
    ours, theirs = Bins(), Bins()
    for noise, rate in ((1.0, 0.1), (2.0, 0.2)):
        ours.place(noise, rate, 1.0)
    for noise, rate in ((3.0, 0.3), (2.0, 0.2), (1.0, 0.1)):
        theirs.place(noise, rate, 1.0)
    bins = np.concatenate([bins_of(0, np.array([5, grid.FIRST_OWN])), bins_of(1, np.array([7, grid.FIRST_OWN + 1]))])
    moved = ours.moved_to(theirs, bins)
    assert [theirs.rates[one >> 16] for one in moved.tolist()] == [ours.rates[one >> 16] for one in bins.tolist()]
    assert np.array_equal(theirs.exposures(moved & 0xFFFF), ours.exposures(bins & 0xFFFF))
