"""Grids that round by the bits of a float: exact nodes, the right side, nothing in between."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesdp.mechanisms.float_grid import (
    MANTISSA,
    fractions_above_node,
    node_below,
    node_values,
    nodes_above,
    nodes_below,
    round_to_bits,
)

LARGEST = float(np.finfo(np.float64).max)
SMALLEST = math.ulp(0.0)
grids = st.integers(0, MANTISSA)
values = st.one_of(
    st.floats(0.0, LARGEST),
    st.floats(-300, 300).map(lambda exponent: 10.0**exponent),
    st.sampled_from([0.0, SMALLEST, 1 - 2.0**-53, 1.0, 1 + 2.0**-52, 1.5, LARGEST]),
).map(abs)  # -0.0 is not a value of any grid


def exact(value):
    return 2 * Fraction(LARGEST) if value == math.inf else Fraction(value)


@given(grids, st.lists(values, min_size=1, max_size=20))
def test_nodes_are_on_the_side_they_say_and_the_nearest_there(bits, listed):
    array = np.array(listed)
    below, above = nodes_below(bits, array), nodes_above(bits, array)
    assert (node_values(bits, below) <= array).all()
    assert (node_values(bits, below + 1) > array).all()
    assert (node_values(bits, above) >= array).all()
    assert (node_values(bits, above - 1) < array)[above > 0].all()
    assert ((above - below) == (node_values(bits, below) != array)).all()


@given(grids, st.data())
def test_nodes_are_rounded_to_themselves(bits, data):
    infinity = int(nodes_below(bits, np.array([math.inf]))[0])
    numbers = np.array(data.draw(st.lists(st.integers(0, infinity), min_size=1, max_size=20)), np.int64)
    nodes = node_values(bits, numbers)
    for rounded in (nodes_below(bits, nodes), nodes_above(bits, nodes)):
        np.testing.assert_array_equal(rounded, numbers)
    assert (fractions_above_node(bits, nodes) == 0).all()


@pytest.mark.parametrize("bits", [0, 1, 8, 10, 12])
def test_an_octave_has_two_to_the_bits_equally_spaced_nodes(bits):
    first, last = nodes_below(bits, np.array([1.0, 2.0]))
    assert last - first == 2**bits
    expected = [1 + Fraction(k, 2**bits) for k in range(2**bits)]
    assert [Fraction(node) for node in node_values(bits, np.arange(first, last))] == expected


@given(grids, st.floats(1e-300, 1e300))
def test_rounding_adds_less_than_one_part_in_two_to_the_bits(bits, value):
    up, down = (Fraction(round_to_bits(value, bits, up=side)) for side in (True, False))
    part = Fraction(value) / 2**bits
    assert 0 <= up - Fraction(value) < part
    assert 0 <= Fraction(value) - down < part


@given(grids, values)
def test_a_fraction_gives_the_value_back_exactly(bits, value):
    array = np.array([value])
    number = nodes_below(bits, array)
    low, high = (exact(float(node_values(bits, nodes)[0])) for nodes in (number, number + 1))
    if high > Fraction(LARGEST):
        return  # the last cell ends at infinity, whose place as a number is that of 2^1024
    fraction = Fraction(float(fractions_above_node(bits, array)[0]))
    assert 0 <= fraction < 1
    assert low + fraction * (high - low) == Fraction(value)


@given(grids, st.lists(values, min_size=1, max_size=20), values)
def test_numbers_may_start_anywhere(bits, listed, start):
    array, first = np.array(listed), node_below(bits, start)
    np.testing.assert_array_equal(nodes_above(bits, array, first=first), nodes_above(bits, array) - first)


@given(grids, st.lists(values, min_size=2, max_size=20))
def test_rounding_keeps_the_order(bits, listed):
    ascending = np.sort(listed)
    for rounded in (nodes_below(bits, ascending), nodes_above(bits, ascending)):
        assert (np.diff(rounded) >= 0).all()


@given(grids, values)
def test_single_values_are_rounded_as_arrays_are(bits, value):
    array = np.array([value])
    assert node_below(bits, value) == nodes_below(bits, array)[0]
    assert round_to_bits(value, bits, up=True) == node_values(bits, nodes_above(bits, array))[0]
    assert round_to_bits(value, bits, up=False) == node_values(bits, nodes_below(bits, array))[0]


@pytest.mark.parametrize("bits", [0, 8, MANTISSA])
def test_zero_and_infinity_are_nodes(bits):
    ends = np.array([0.0, math.inf])
    for rounded in (nodes_below(bits, ends), nodes_above(bits, ends)):
        np.testing.assert_array_equal(node_values(bits, rounded), ends)


@pytest.mark.parametrize(
    ("value", "up", "expected"), [(0.3, True, 0.3125), (0.3, False, 0.296875), (0.3125, True, 0.3125)]
)
def test_by_hand(value, up, expected):
    """With four bits the nodes of [1/4, 1/2) are 1/64 apart."""
    assert round_to_bits(value, 4, up=up) == expected


def test_every_float_is_a_node_of_the_finest_grid():
    array = np.array([0.1, 1 / 3, 1e-310, 7e200])
    np.testing.assert_array_equal(node_values(MANTISSA, nodes_above(MANTISSA, array)), array)
    np.testing.assert_array_equal(node_values(MANTISSA, nodes_below(MANTISSA, array)), array)


def test_values_are_not_changed():
    array = np.array([0.3, 0.7])
    before = array.copy()
    nodes_above(8, array, first=3)
    nodes_below(8, array)
    fractions_above_node(8, array)
    np.testing.assert_array_equal(array, before)
