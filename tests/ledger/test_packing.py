"""What is packed comes back: counts to the last one, costs never below themselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bayesdp.ledger import packing

COUNTS = arrays(
    np.int64,
    st.tuples(st.integers(0, 7), st.integers(0, 9)),
    elements=st.sampled_from([0, 0, 1, 254, 255, 256, 70_000]),
)


@given(COUNTS, st.booleans())
def test_counts_come_back(counts: np.ndarray, tight: bool) -> None:
    data = packing.pack(counts, tight=tight)
    unpacked, rest = packing.unpack(data + b"more")
    assert np.array_equal(unpacked, counts)
    assert unpacked.shape == counts.shape
    assert rest == b"more"
    assert np.array_equal(packing.unpack(packing.loosen(data))[0], counts)


@given(arrays(np.int64, st.tuples(st.just(2), st.integers(0, 40)), elements=st.integers(0, (1 << 32) - 1)))
def test_small_numbers_come_back(numbers: np.ndarray) -> None:
    assert np.array_equal(packing.unpack_small(packing.pack_small(numbers)), numbers)


@given(st.one_of(st.floats(0, 1e38), st.floats(0, 1e-30)))
def test_costs_are_rounded_up_a_little(cost: float) -> None:
    kept = float(packing.unpack_costs(packing.pack_costs(np.array([cost])))[0])
    assert kept >= cost
    assert kept <= cost * (1 + 1 / 256) + 1e-40


@pytest.mark.parametrize(("cost", "kept"), [(0.0, 0.0), (np.inf, np.inf), (1e300, np.inf)])
def test_ends_of_costs(cost: float, kept: float) -> None:
    assert packing.unpack_costs(packing.pack_costs(np.array([cost])))[0] == kept
