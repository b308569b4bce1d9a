"""Grids whose nodes are floats with only the leading bits of the mantissa set: 2^bits nodes per octave.

A positive float64 read as a 64-bit integer grows with its value. Dropping the last 52 - ``bits`` bits of that integer
therefore rounds down to a node, and adding a mask before rounds up. Rounding by bits is exact, fast, and the same on
every machine; logarithms and divisions would be none of these. A node is named by its number, the integer that is left.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bayesdp.validation import FloatArray

NodeNumbers = NDArray[np.int64]

MANTISSA = 52


def node_values(bits: int, numbers: NodeNumbers) -> FloatArray:
    """Return the floats that are the nodes ``numbers``."""
    return (numbers << (MANTISSA - bits)).view(np.float64)


def nodes_below(bits: int, values: FloatArray) -> NodeNumbers:
    """Return the number of the largest node that is not above each value (above 0, not NaN)."""
    return values.view(np.int64) >> (MANTISSA - bits)


def nodes_above(bits: int, values: FloatArray, first: int = 0) -> NodeNumbers:
    """Return the number of the smallest node that is not below each value (at least 0, not NaN), less ``first``."""
    dropped = MANTISSA - bits
    numbers = values.view(np.int64) + (((1 << dropped) - 1) - (first << dropped))
    numbers >>= dropped
    return numbers


def fractions_above_node(bits: int, values: FloatArray) -> FloatArray:
    """Return where each value lies between the node below it (0) and the next one (1), in [0, 1)."""
    dropped = MANTISSA - bits
    return (values.view(np.int64) & ((1 << dropped) - 1)) * np.float64(2.0**-dropped)


def node_below(bits: int, value: float) -> int:
    """Return the number of the largest node that is not above one value."""
    return int(nodes_below(bits, np.array([value]))[0])


def round_to_bits(value: float, bits: int, *, up: bool) -> float:
    """Round a number above 0 up or down to a mantissa of so many bits."""
    nodes = nodes_above if up else nodes_below
    return float(node_values(bits, nodes(bits, np.array([value])))[0])
