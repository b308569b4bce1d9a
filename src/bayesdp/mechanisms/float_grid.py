"""Grids whose nodes are floats with only the leading bits of the mantissa set: 2^bits nodes per octave.

A non-negative float64 read as a 64-bit integer grows with its value. Dropping the last 52 - ``bits`` bits of that
integer therefore rounds down to a node, and adding a mask of as many ones before dropping them rounds up. Rounding by
bits is exact, fast, and the same on every machine; logarithms and divisions would be none of these. A node is named by
its number, the integer that is left; consecutive numbers are consecutive nodes, across octaves too.

All functions need 0 <= bits <= 52 and float64 values of at least 0, neither NaN nor -0.0. They do not check, because
callers run them on every norm of every step. 0 and infinity are nodes of every grid.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bayesdp.validation import FloatArray

NodeNumbers = NDArray[np.int64]

MANTISSA = 52
"""Bits of the mantissa of a float64; a grid of this many has every float as a node."""


def node_values(bits: int, numbers: NodeNumbers) -> FloatArray:
    """Return the floats that the nodes ``numbers`` stand for, exactly; the inverse of rounding a node to itself."""
    return (numbers << (MANTISSA - bits)).view(np.float64)


def nodes_below(bits: int, values: FloatArray) -> NodeNumbers:
    """Return, for each value, the number of the largest node that is not above it."""
    return values.view(np.int64) >> (MANTISSA - bits)


def nodes_above(bits: int, values: FloatArray, first: int = 0) -> NodeNumbers:
    """Return, for each value, the number of the smallest node that is not below it, less ``first``.

    ``first`` makes numbers start at a node of the caller's choice at no extra pass over the values.
    """
    dropped = MANTISSA - bits
    numbers = values.view(np.int64) + (((1 << dropped) - 1) - (first << dropped))
    numbers >>= dropped
    return numbers


def fractions_above_node(bits: int, values: FloatArray) -> FloatArray:
    """Return where each value lies between the node below it (0) and the next node (1), in [0, 1).

    Exact: nodes are equally spaced within an octave, so value = below + fraction (above - below).
    """
    dropped = MANTISSA - bits
    return (values.view(np.int64) & ((1 << dropped) - 1)) * np.float64(2.0**-dropped)


def node_below(bits: int, value: float) -> int:
    """Return the number of the largest node that is not above a single value."""
    return int(nodes_below(bits, np.array([value]))[0])


def round_to_bits(value: float, bits: int, *, up: bool) -> float:
    """Return the nearest float above (``up``) or below ``value`` whose mantissa has ``bits`` bits; itself if it has."""
    nodes = nodes_above if up else nodes_below
    return float(node_values(bits, nodes(bits, np.array([value])))[0])
