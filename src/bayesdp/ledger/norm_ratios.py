"""How far above their clip bound norms were: kept for audit records only, as advice about another clip bound.

A claim needs min(norm, clip), and a ledger that kept nothing else could not say what a larger clip bound would do. So
the key of an audit norm that reaches the clip bound says two things: the exposure of the clip bound, which is all that
costs and claims read of it, and the ratio of norm to clip bound, rounded up to 16 ratios per octave. Each of the first
``CLIPS`` clip bounds of a run has a block of ``RATIOS`` keys, from ``exposure_grid.FIRST_ABOVE`` on. A step without
norms of audit records has the key of the clip bound itself, which says nothing about norms.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bayesdp.ledger.exposure_grid import FIRST_ABOVE, FIRST_OWN, KEYS, KeyArray, Keys
from bayesdp.mechanisms.float_grid import node_below, node_values, nodes_above
from bayesdp.validation import FloatArray

_BITS = 4
RATIOS = 256
"""How many ratios are told apart: 16 per octave from 1 to almost 2^16, and everything above."""
CLIPS = (KEYS - FIRST_ABOVE) // RATIOS
"""How many clip bounds of a run have keys for ratios: 32."""
_ONE = node_below(_BITS, 1.0)
VALUES: FloatArray = np.append(node_values(_BITS, np.arange(RATIOS - 1) + _ONE), np.inf)
"""The ratio that each of a block's keys stands for, [RATIOS]: no ratio kept under it is larger."""


def first_key(clip_key: int) -> int | None:
    """Return the first key of the block of a clip bound, given by its key; None if it has no block."""
    number = clip_key - FIRST_OWN
    return FIRST_ABOVE + RATIOS * number if 0 <= number < CLIPS else None


def rounded_up(ratios: FloatArray) -> Keys:
    """Return the place of each ratio (at least 0, not NaN) in its block, [n]: 0 for ratios up to 1."""
    places = nodes_above(_BITS, np.maximum(ratios, 1.0), first=_ONE)
    return np.minimum(places, RATIOS - 1).astype(np.uint16)


def clip_keys(keys: KeyArray) -> NDArray[np.int64]:
    """Return keys without their ratios, [K]: keys of a block become that of its clip bound, others stay."""
    keys = keys.astype(np.int64)
    return np.where(keys >= FIRST_ABOVE, FIRST_OWN + (keys - FIRST_ABOVE) // RATIOS, keys)


def ratios_of(keys: KeyArray) -> FloatArray:
    """Return the ratio of norm to clip bound that each key stands for, [K]; NaN for keys that say nothing about it."""
    return np.where(keys >= FIRST_ABOVE, VALUES[(keys.astype(np.int64) - FIRST_ABOVE) % RATIOS], np.nan)
