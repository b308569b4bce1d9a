"""Counts are whole, complete, and the same however they are folded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesdp import Ledger
from bayesdp.ledger import histograms
from bayesdp.ledger.bins import bins_of
from bayesdp.ledger.histograms import AuditHistograms, Entry, Histogram, add_entries, total


def random_entries(rng: np.random.Generator, steps: int, records: int) -> list[Entry]:
    return [
        Entry(
            int(rng.integers(3)),
            int(rng.integers(9)) if rng.random() < 0.2 else rng.integers(0, 40, records, np.uint16),
        )
        for _ in range(steps)
    ]


def by_hand(entries: list[Entry], records: int) -> dict[tuple[int, int], int]:
    """(bin, record) -> count, one at a time."""
    counts: dict[tuple[int, int], int] = {}
    for entry in entries:
        for record in range(records):
            key = entry.keys if isinstance(entry.keys, int) else int(entry.keys[record])
            cell = (int(bins_of(entry.rate_number, np.array([key]))[0]), record)
            counts[cell] = counts.get(cell, 0) + 1
    return counts


def as_dictionary(histogram: Histogram) -> dict[tuple[int, int], int]:
    rows, records = np.nonzero(histogram.counts)
    return {
        (int(histogram.bins[row]), int(record)): int(histogram.counts[row, record])
        for row, record in zip(rows, records, strict=True)
    }


@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 6), st.integers(0, 30))
def test_counts_by_hand_and_in_any_grouping(seed: int, steps: int, records: int, split: int) -> None:
    entries = random_entries(np.random.default_rng(seed), steps, records)
    everyone, none = slice(0, records), Histogram.empty(records)
    whole = add_entries(none, everyone, entries)
    assert as_dictionary(whole) == by_hand(entries, records)
    assert (whole.counts.sum(axis=0) == steps).all()
    first, second = (add_entries(none, everyone, part) for part in (entries[:split], entries[split:]))
    for parts in ([first, second], [second, first], [none, second, first]):
        assert as_dictionary(total(parts)) == as_dictionary(whole)
    assert as_dictionary(add_entries(first, everyone, entries[split:])) == as_dictionary(whole)
    assert as_dictionary(Histogram.unpack(whole.pack(tight=True))) == as_dictionary(whole)


def test_counts_beyond_16_bits() -> None:
    start = Histogram(np.array([3], np.uint32), np.array([[65_535]], np.uint16))
    after = add_entries(start, slice(0, 1), [Entry(0, 3)] * 3)
    assert after.counts.tolist() == [[65_538]]
    assert Histogram.unpack(after.pack(tight=False)).counts.tolist() == [[65_538]]


def test_equal_names_are_added() -> None:
    histogram = Histogram(np.array([1, 2, 5], np.uint32), np.array([[1, 0], [2, 3], [4, 4]]))
    moved = histogram.moved(np.array([7, 6, 7], np.uint32))
    assert (moved.bins.tolist(), moved.counts.tolist()) == ([6, 7], [[2, 3], [5, 4]])


def test_folding_never_changes_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same steps, folded every 16 steps in slices of 8 records, or not at all."""
    rng = np.random.default_rng(0)
    norms = rng.lognormal(-1, 0.7, (150, 37))
    plain = Ledger()
    for row in norms:
        plain.step(noise_std=1.0, sample_rate=0.1, clip=1.0, audit=row)
    monkeypatch.setattr(histograms, "SLICE", 8)
    monkeypatch.setattr(histograms, "_SHORTEST", 16)
    monkeypatch.setattr(histograms, "_LONGEST", 16)
    folded = Ledger()
    for number, row in enumerate(norms, start=1):
        folded.step(noise_std=1.0, sample_rate=0.1, clip=1.0, audit=row)
        assert len(folded.audit.journal) <= 16 + 2 + 1
        assert min(part.through for part in folded.audit.slices) >= number - 16 - 2 - 1
    assert len(folded.audit.slices) == 5
    assert np.allclose(folded.costs(range(1, 9)), plain.costs(range(1, 9)), rtol=1e-14)
    for counts, expected in zip(folded.exposure_counts(), plain.exposure_counts(), strict=True):
        assert np.array_equal(counts, expected)


@pytest.mark.parametrize("records", [1, 511, 512, 513, 10_000, 3_000_000])
def test_every_round_ends_before_the_next(records: int) -> None:
    """Whatever the number of records: by the end of a round all slices are due, and some wait at its start."""
    audit = AuditHistograms()
    audit.set_records(records)
    audit.steps = 2 * audit.interval + audit.interval // 8
    assert audit.due() == list(range(len(audit.slices)))
    audit.steps = 2 * audit.interval
    assert 1 <= len(audit.due()) <= 1 + 8 * len(audit.slices) // audit.interval
