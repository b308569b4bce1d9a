"""The grid rounds up, by so much and no more, and its chords lie above what is convex in the squared exposure."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesdp import SubsampledGaussian
from bayesdp.ledger import exposure_grid as grid

EXPOSURES = st.one_of(
    st.floats(0, 8.5), st.floats(0, 1e-8), st.floats(8, 1e300), st.sampled_from(grid.VALUES[:-1].tolist())
)


def test_versions_never_change() -> None:
    """Files of versions 1 and 2 mean these exposures by their keys, for ever; version 1 ends at FIRST_ABOVE."""
    assert grid.KNOWN_VERSIONS == (1, 2)
    assert (grid.LAST, grid.BEYOND, grid.FIRST_OWN) == (12801, 12802, 13312)
    assert (grid.FIRST_ABOVE, grid.KEYS) == (16384, 24576)
    assert hashlib.sha256(grid.VALUES.astype("<f8").tobytes()).hexdigest() == (
        "c8ba36ae6340744a0c109a4ed92d0528692bb0f125d48a906a391c34a2885365"
    )


@given(EXPOSURES)
def test_rounds_up_to_the_next_node(exposure: float) -> None:
    key = int(grid.round_up(np.array([exposure]))[0])
    assert grid.VALUES[key] >= exposure
    if key:
        assert grid.VALUES[key - 1] < exposure or key == 1
    assert (key == 0) == (exposure == 0)
    assert (key == grid.BEYOND) == (exposure > grid.TOP)


@pytest.mark.parametrize(
    ("exposure", "key"),
    [
        (0.0, 0),
        (5e-324, 1),
        (2.0**-30, 1),
        (8.0, grid.LAST),
        (math.nextafter(8, 9), grid.BEYOND),
        (math.inf, grid.BEYOND),
    ],
)
def test_ends(exposure: float, key: int) -> None:
    assert grid.round_up(np.array([exposure]))[0] == key


def test_nodes_stand_for_themselves() -> None:
    assert np.array_equal(grid.round_up(grid.VALUES.copy()), np.arange(len(grid.VALUES)))


def test_resolution() -> None:
    relative = np.diff(grid.VALUES[1:-1]) / grid.VALUES[1:-2]
    assert relative.max() <= 1 / 256
    assert relative[grid.VALUES[1:-2] >= 0.5].max() <= 1 / 1024


@given(st.lists(st.integers(0, grid.LAST), min_size=1, max_size=30, unique=True))
def test_chords_keep_the_squared_exposure(keys: list[int]) -> None:
    chosen = np.sort(np.array(keys))
    nodes, weights = grid.chords(chosen)
    dense = weights.toarray()
    assert (dense >= 0).all()
    assert np.allclose(dense.sum(axis=1), 1, rtol=1e-15)
    assert np.allclose(dense @ grid.VALUES[nodes] ** 2, grid.VALUES[chosen] ** 2, rtol=1e-14)


@pytest.mark.parametrize("rate", [1.0, 0.3, 0.01, 1e-4])
def test_chords_lie_above_kappa_and_close(rate: float) -> None:
    """Above at every key and order; within 0.2 % where a cost grows with at most the 15th power of the exposure."""
    keys = np.unique(np.random.default_rng(0).integers(0, grid.LAST + 1, 600))
    nodes, weights = grid.chords(keys)
    mechanism, lambdas = SubsampledGaussian(sample_rate=rate), [1, 2, 5, 17, 64, 256]
    exact = mechanism.log_moment(grid.VALUES[keys], lambdas)
    chord = weights @ mechanism.log_moment(grid.VALUES[nodes], lambdas)
    assert (chord >= exact * (1 - 1e-12)).all()
    further = mechanism.log_moment(grid.VALUES[keys] * 1.001, lambdas)
    power = np.log(further / np.maximum(exact, 1e-300)) / math.log(1.001)
    moderate = (exact > 0) & (power < 15)
    assert moderate.any(axis=0).all()
    assert (chord / np.maximum(exact, 1e-300) - 1)[moderate].max() < 2e-3
