"""Norms above the clip bound are kept for advice; costs and claims are those of norms that were clipped beforehand."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesdp import Ledger, compose
from bayesdp.ledger import NormCounts, norm_counts, norm_ratios
from bayesdp.ledger import exposure_grid as grid

STEP = {"noise_std": 2.0, "sample_rate": 0.1, "clip": 1.5}
HOSTILE = [0.0, 5e-324, 1.4999999999, 1.5, math.nextafter(1.5, 2), 1e5, 1e308]


@given(st.floats(0, 1e300))
def test_ratios_are_rounded_up_by_a_sixteenth_at_most(ratio):
    kept = norm_ratios.VALUES[norm_ratios.rounded_up(np.array([ratio]))[0]]
    assert kept >= ratio
    assert kept <= max(ratio, 1) * 17 / 16 or ratio > 0.9 * 2**16


def test_blocks_fill_the_keys_and_nothing_else():
    last = norm_ratios.first_key(grid.FIRST_OWN + norm_ratios.CLIPS - 1)
    assert last is not None
    assert last + norm_ratios.RATIOS == grid.KEYS
    assert norm_ratios.first_key(grid.FIRST_OWN + norm_ratios.CLIPS) is None
    assert norm_ratios.first_key(grid.BEYOND) is None
    keys = np.array([0, grid.LAST, grid.BEYOND, grid.FIRST_OWN, grid.FIRST_ABOVE, last, grid.KEYS - 1])
    assert norm_ratios.clip_keys(keys).tolist() == [
        0, grid.LAST, grid.BEYOND, grid.FIRST_OWN, grid.FIRST_OWN, *[grid.FIRST_OWN + norm_ratios.CLIPS - 1] * 2
    ]  # fmt: skip
    assert norm_ratios.ratios_of(keys[4:]).tolist() == [1.0, 1.0, math.inf]


def norms_of(step, records=40):
    loud = np.random.default_rng(step).lognormal(1.0, 1.5, records)
    loud[: len(HOSTILE)] = HOSTILE
    return loud


def run(ledger, steps, *, clipped_before=False):
    for step in range(steps):
        norms = norms_of(step)
        settings = {**STEP, "noise_std": 2.0 if step % 3 else 4.0, "clip": 1.5 if step % 3 else 3.0}
        ledger.step(**settings, audit=np.minimum(norms, settings["clip"]) if clipped_before else norms)
    return ledger


def kinds(ledger, factor):
    """Every audit record's exposures at a multiple of the clip bound, sorted."""
    counts = norm_counts(ledger)
    assert isinstance(counts, NormCounts)
    exposures, found = counts.exposures_at(factor), [[] for _ in range(counts.records)]
    for records, present, often in counts.slices():
        for number, column in enumerate(often.T):
            found[records.start + number] += np.repeat(exposures[present], column).tolist()
    return [sorted(record) for record in found]


def test_claims_do_not_depend_on_how_far_above_the_bound_norms_were():
    kept, clipped = (run(Ledger(), 30, clipped_before=before) for before in (False, True))
    assert np.array_equal(kept.costs(range(1, 65)), clipped.costs(range(1, 65)))
    for first, second in zip(kept.exposure_counts(), clipped.exposure_counts(), strict=True):
        assert np.array_equal(first, second)
    assert np.array_equal(kept.snapshots()[1], clipped.snapshots()[1])
    assert kept.claims() == clipped.claims()
    assert kept.rounding() == clipped.rounding()


@pytest.mark.parametrize("factor", [1.0, 1.5, 4.0, 64.0])
def test_exposures_at_another_bound_are_never_below_the_exact_ones(factor):
    """Within 1/16 above the clip bound, 1/256 below it."""
    found = kinds(run(Ledger(), 9), factor)
    for record, exposures in enumerate(found):
        exact = []
        for step in range(9):
            noise, clip = (2.0, 1.5) if step % 3 else (4.0, 3.0)
            exact.append(min(norms_of(step)[record], factor * clip) / (factor * noise))
        for kept, true in zip(exposures, sorted(exact), strict=True):
            assert kept >= true
            assert kept <= true * 17 / 16 * (1 + 1e-12) or true < 2**-29


def test_share_clipped_is_counted_exactly():
    ledger = run(Ledger(), 9)
    counts = norm_counts(ledger)
    assert isinstance(counts, NormCounts)
    for factor in (1.0, 1.5, 2.0, 64.0):
        above = counts.clipped_at(factor)
        found = sum(often[above[present]].sum() for _, present, often in counts.slices())
        exact = sum((norms_of(t) > factor * (1.5 if t % 3 else 3.0)).sum() for t in range(9))
        assert found == exact
    assert ledger.history.audit_clipped == sum((norms_of(t) > (1.5 if t % 3 else 3.0)).sum() for t in range(9))


def test_steps_without_norms_stay_at_the_bound():
    ledger = Ledger()
    ledger.step(**STEP, audit=[0.75, 12.0])
    ledger.step(**STEP)
    assert kinds(ledger, 4.0) == [[pytest.approx(0.75 / 8, rel=1 / 200), 0.75], [0.75, 0.75]]
    assert kinds(ledger, 16.0)[1] == [pytest.approx(12 / 32), 0.75]


def test_folding_closing_and_a_crash_keep_them(tmp_path):
    path = tmp_path / "run.ledger"
    ledger = run(Ledger.create(path), 1500)
    before = [kinds(ledger, factor) for factor in (1.0, 8.0)]
    ledger.storage.abandon()  # as a kill leaves it
    with Ledger.open(path) as opened:
        assert [kinds(opened, factor) for factor in (1.0, 8.0)] == before
    with Ledger.open(path, write=False) as opened:
        assert [kinds(opened, factor) for factor in (1.0, 8.0)] == before


def test_amended_norms_replace_those_of_the_step():
    ledger = Ledger()
    number = ledger.step(**STEP, audit=[6.0, 3.0])
    ledger.amend(number, audit=[3.0, 24.0])
    assert kinds(ledger, 4.0) == [[3 / 8], [0.75]]
    ledger.amend(number)
    assert norm_counts(ledger) == "there are no norms of audit records"


def test_composed_runs_keep_them_by_id():
    first, second = Ledger(audit_ids=["a", "b"]), Ledger(audit_ids=["b", "a"])
    first.step(**STEP, audit=[6.0, 1.5])
    second.step(**{**STEP, "noise_std": 4.0}, audit=[12.0, 3.0])
    assert kinds(compose([first, second]), 8.0) == [
        [pytest.approx(3 / 32), pytest.approx(6 / 16)],
        [pytest.approx(1.5 / 16), pytest.approx(12 / 32)],
    ]


@pytest.fixture
def earlier(tmp_path):
    folder = Path(__file__).parent / "written_by_0_1_0"
    shutil.copy(folder / "full_batch.ledger", tmp_path)
    return tmp_path / "full_batch.ledger"


def test_a_ledger_of_an_earlier_version_stays_one(earlier):
    """Continued or composed, it has no key that the earlier version does not know, and says why there is no advice."""
    with Ledger.open(earlier) as ledger:
        ledger.step(noise_std=2.0, sample_rate=1.0, clip=1.0, audit=np.full(ledger.audit_records, 50.0))
        assert ledger.audit.bins_with_ratios().max() & 0xFFFF < grid.FIRST_ABOVE
        reason = norm_counts(ledger)
        assert reason == "the ledger was begun by a version that kept no norms above the clip bound"
        ids = ledger.audit_ids
        other = Ledger(audit_ids=ids, data=ledger.data)
        other.step(noise_std=2.0, sample_rate=1.0, clip=1.0, audit=np.full(ledger.audit_records, 50.0))
        together = compose([ledger, other])
        assert norm_counts(together) in (reason, "there are no norms of audit records")
        assert together.audit.bins_with_ratios().max(initial=0) & 0xFFFF < grid.FIRST_ABOVE
        assert together.storage.settings()["grid"] == "1"


def test_why_norms_are_not_known():
    ledger = Ledger()
    ledger.step(noise_std=1.0, sample_rate=0.1, clip=None, audit=[1.0, 2.0])
    assert norm_counts(ledger) == "a step had no clip bound"
    ledger = Ledger()
    for number in range(norm_ratios.CLIPS + 1):
        ledger.step(noise_std=1.0 + number, sample_rate=0.1, clip=1.0, audit=[1.0, 2.0])
    assert norm_counts(ledger) == "noise over clip bound took more than 32 different values"
    assert json.dumps(ledger.claims().to_dict(), allow_nan=False)
