"""Counts by rate and exposure: every step above exposure 0 is in them, and costs follow from them."""

from __future__ import annotations

import numpy as np
import pytest

from bayesdp import Ledger
from bayesdp.ledger import StepCounts, histograms
from bayesdp.mechanisms.log_moments import log_moments

LAMBDAS = np.array([1.0, 4.0, 32.0])


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """Eleven audit records in slices of four; two rates, zeros, clipped norms, and steps without norms."""
    monkeypatch.setattr(histograms, "SLICE", 4)
    monkeypatch.setattr(histograms, "_SHORTEST", 8)
    monkeypatch.setattr(histograms, "_LONGEST", 8)
    rng = np.random.default_rng(0)
    ledger = Ledger(audit_ids=range(11))
    for number in range(30):
        norms = rng.lognormal(-1, 1, 11) * (np.arange(11) != 3)
        rate = 0.1 if number % 3 else 0.5
        ledger.step(noise_std=1.0, sample_rate=rate, clip=1.0, audit=norms if number % 7 else None)
    return ledger


def whole(counts: StepCounts) -> np.ndarray:
    """How often each audit record went through each kind of step, [K, m]."""
    table = np.zeros((len(counts.rates), counts.records), np.int64)
    for records, kinds, part in counts.slices():
        table[kinds, records] = part
    return table


def test_costs_follow_from_the_counts(ledger: Ledger) -> None:
    counts = ledger.step_counts()
    costs = whole(counts).T @ log_moments(counts.rates, counts.exposures, LAMBDAS)
    assert np.allclose(costs, ledger.costs(LAMBDAS), rtol=1e-9)


def test_every_step_above_zero_is_counted(ledger: Ledger) -> None:
    counts = ledger.step_counts()
    assert counts.records == 11
    assert (counts.exposures > 0).all()
    assert set(counts.rates.tolist()) == {0.1, 0.5}
    steps = whole(counts).sum(axis=0)
    assert steps[3] == 5  # its norms are 0: only the steps without norms, at the clip bound
    assert (np.delete(steps, 3) == 30).all()
    assert len({*zip(counts.rates.tolist(), counts.exposures.tolist(), strict=True)}) == len(counts.rates)


def test_exposure_counts_are_totals_over_rates_and_records(ledger: Ledger) -> None:
    counts = ledger.step_counts()
    exposures, totals = ledger.exposure_counts()
    assert (np.diff(exposures) > 0).all()
    assert exposures[0] == 0
    assert totals.sum() == 30 * 11
    per_kind = whole(counts).sum(axis=1)
    for exposure, total in zip(exposures[1:].tolist(), totals[1:].tolist(), strict=True):
        assert per_kind[counts.exposures == exposure].sum() == total


def test_beyond_the_grid_is_infinite() -> None:
    ledger = Ledger()
    ledger.step(noise_std=1.0, sample_rate=0.5, clip=None, audit=[8.5, 0.0])
    counts = ledger.step_counts()
    assert counts.exposures.tolist() == [np.inf]
    assert whole(counts).tolist() == [[1, 0]]


def test_without_audit_records_there_is_nothing() -> None:
    ledger = Ledger()
    ledger.step(noise_std=1.0, sample_rate=0.5, clip=1.0)
    counts = ledger.step_counts()
    assert (counts.records, list(counts.slices())) == (0, [])
    assert [part.tolist() for part in ledger.exposure_counts()] == [[], []]
