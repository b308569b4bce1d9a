"""Bins: exact clip bounds and rates while there are few, rounded up once there are many."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesdp import Ledger
from bayesdp.ledger import composed_file
from bayesdp.ledger import exposure_grid as grid
from bayesdp.ledger.bins import OWN_CLIPS, OWN_RATES, Bins, Place, bins_of, keys_of, rate_numbers_of

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
        kept = bins.rates[bins.place(1.0, rate, 1.0).rate_number]
        assert rate <= kept <= rate * (1 + 1 / 16)
        assert bins.least_rate(bins.rates.index(kept)) <= rate
    assert bins.rates[:OWN_RATES] == rates[:OWN_RATES]
    assert len(bins.rates) <= OWN_RATES + 18
    assert bins.rates[bins.place(1.0, 1.0, 1.0).rate_number] == 1.0


def test_the_same_settings_have_the_same_place() -> None:
    bins = Bins()
    first = bins.place(1.0, 0.1, 1.0)
    bins.place(2.0, 0.2, 1.0)
    assert bins.place(1.0, 0.1, 1.0) == first


def test_moved_bins_keep_rate_and_exposure() -> None:
    first, second = Bins(), Bins()
    for noise, rate in ((1.0, 0.1), (2.0, 0.2)):
        first.place(noise, rate, 1.0)
    for noise, rate in ((3.0, 0.3), (2.0, 0.2), (1.0, 0.1)):
        second.place(noise, rate, 1.0)
    bins = np.concatenate([bins_of(0, np.array([5, grid.FIRST_OWN])), bins_of(1, np.array([7, grid.FIRST_OWN + 1]))])
    moved = first.moved_to(second, bins)
    assert second.rates_of(moved).tolist() == first.rates_of(bins).tolist() == [0.1, 0.1, 0.2, 0.2]
    assert np.array_equal(second.exposures_of(moved), first.exposures_of(bins))
    assert first.exposures_of(bins).tolist() == [grid.VALUES[5], 1.0, grid.VALUES[7], 0.5]


def test_bins_are_numbers_that_files_contain() -> None:
    """The rate in the upper 16 bits, the key in the lower: files of format 2 mean this, for ever."""
    bins = bins_of(3, np.array([0, 5, grid.FIRST_OWN]))
    assert bins.tolist() == [3 * 65_536, 3 * 65_536 + 5, 3 * 65_536 + grid.FIRST_OWN]
    assert keys_of(bins).tolist() == [0, 5, grid.FIRST_OWN]
    assert rate_numbers_of(bins).tolist() == [3, 3, 3]


@given(st.lists(st.floats(0, 9), min_size=1, max_size=20))
def test_exposures_lie_between_the_ends_of_their_bin(norms: list[float]) -> None:
    bins = Bins()
    place = bins.place(1.0, 0.1, 3.0)
    counted = bins_of(place.rate_number, place.keys(np.array(norms)))
    exposures = np.minimum(norms, 3.0)
    assert (exposures <= bins.exposures_of(counted)).all()
    below = bins.exposures_below(counted)
    assert ((below < exposures) | (exposures == 0)).all()
    assert (below[exposures == 0] == 0).all()


def count_places(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float, float | None]]:
    """Return a list to which every call of ``Bins.place`` adds its settings."""
    calls: list[tuple[float, float, float | None]] = []
    place = Bins.place

    def counted(self: Bins, noise_std: float, sample_rate: float, clip: float | None) -> Place:
        calls.append((noise_std, sample_rate, clip))
        return place(self, noise_std, sample_rate, clip)

    monkeypatch.setattr(Bins, "place", counted)
    return calls


def test_every_step_is_placed_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """When it is recorded, amended, loaded or composed: once each, in the order of the steps."""
    calls = count_places(monkeypatch)
    settings = [(1.0 + number, 0.1, 1.0) for number in range(4)]
    with Ledger.create(tmp_path / "run.ledger", audit_ids=["a", "b"]) as ledger:
        for noise, rate, clip in settings:
            before = len(calls)
            ledger.step(noise_std=noise, sample_rate=rate, clip=clip, audit=[0.5, 2.0], batch=[0.1])
            assert calls[before:] == [(noise, rate, clip)]
        calls.clear()
        ledger.amend(4, audit=[0.1, 0.2], batch=[0.3])
        assert calls == settings[-1:]
        ledger.costs([1, 2])
        ledger.snapshots()
        calls.clear()
    assert calls == []  # closing and reading place nothing
    with Ledger.open(tmp_path / "run.ledger") as ledger:
        assert calls == settings
        other = Ledger(audit_ids=["a", "b"])
        other.step(noise_std=9.0, sample_rate=0.5, clip=1.0, audit=[0.5, 0.5])
        calls.clear()
        file = composed_file([ledger, other], None)
        assert calls == [*settings, (9.0, 0.5, 1.0)]
    assert Ledger.from_file(file).steps == 5
