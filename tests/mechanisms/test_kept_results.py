"""Results that are kept: they are those of the same arguments, nobody can change them, and their room is bounded."""

import numpy as np
import pytest

from bayesdp.mechanisms.kept_results import KeptResults, fingerprint
from bayesdp.mechanisms.log_moments import _computed, log_moments
from bayesdp.profiles.record_profiles import ExposureCounts, Precision, profiles

ONES = np.ones(6)


@pytest.mark.parametrize(
    "other",
    [
        ([np.ones(5)], 0.1, "both"),
        ([np.ones((2, 3))], 0.1, "both"),
        ([np.ones(6, np.float32)], 0.1, "both"),
        ([np.nextafter(ONES, 2)], 0.1, "both"),
        ([ONES[:3], ONES[3:]], 0.1, "both"),
        ([ONES], np.nextafter(0.1, 1), "both"),
        ([ONES], 0.1, "record in"),
        ([ONES], 0.1),
    ],
)
def test_different_arguments_have_different_fingerprints(other):
    assert fingerprint(*other) != fingerprint([ONES], 0.1, "both")


def test_equal_arguments_have_equal_fingerprints():
    assert fingerprint([np.ones((6, 2))[:, 0]], 0.1) == fingerprint([ONES], 0.1)


def test_the_oldest_make_room_and_large_ones_are_not_kept():
    kept = KeptResults(800)
    for number in range(9):
        kept.keep(bytes([number]), number, 100)
        assert kept.find(b"\x00") == 0  # used again and again
    assert kept.find(b"\x01") is None
    assert [kept.find(bytes([number])) for number in range(2, 9)] == [*range(2, 9)]
    kept.keep(b"large", 1, 101)
    assert kept.find(b"large") is None
    kept.keep(b"\x00", 10, 50)  # another size
    kept.keep(b"small", 11, 50)
    assert kept.find(b"\x00") == 10
    assert kept.find(b"\x02") == 2
    kept.forget()
    assert kept.find(b"\x02") is None


@pytest.mark.parametrize("direction", ["both", "record in", "record out"])
@pytest.mark.parametrize("rate", [0.07, 1.0])
def test_log_moments_asked_for_again_are_the_same(rate, direction):
    exposures, orders = np.geomspace(1e-3, 30, 50), [1, 2, 5, 40]
    first = log_moments(rate, exposures, orders, direction)
    bits = first.tobytes()
    assert bits == _computed(rate, exposures, orders, direction).tobytes()
    first[:] = 0
    assert log_moments(rate, exposures, orders, direction).tobytes() == bits


def test_profiles_asked_for_again_are_the_same():
    given = ExposureCounts(np.array([0.1, 0.2]), np.array([0.5, 1.0]), np.array([[3.0, 4.0], [0.0, 9.0]]))
    first = profiles(given, 1e-5, epsilons=[0.5, 1.0])
    bits = {name: array.tobytes() for name, array in vars(first).items()}
    for array in vars(first).values():
        array[:] = 0
    again = profiles(given, 1e-5, epsilons=[0.5, 1.0])
    assert {name: array.tobytes() for name, array in vars(again).items()} == bits
    assert profiles(given, [1e-5], epsilons=[0.5, 1.0]).epsilon.tobytes() == again.epsilon.tobytes()
    assert (profiles(given, 1e-6).epsilon > again.epsilon).all()
    assert (profiles(given, 1e-5, precision=Precision(grid=1e-2)).epsilon != again.epsilon).any()
