"""Populations of gradient norms with known figures (clip 1), [steps, records]."""

import numpy as np

from bayesdp.validation import FloatArray


def spread(records: int, *, seed: int, steps: int = 292) -> FloatArray:
    """Norms that differ much between records and between steps; noise multiplier 6, rate 4096/60000, 292 steps."""
    rng = np.random.default_rng(seed)
    level = np.exp(-1 + 0.9 * rng.standard_normal(records))
    return np.minimum(1.0, level * np.exp(0.5 * rng.standard_normal((steps, records))))


def easy(records: int, *, seed: int, steps: int = 1000) -> FloatArray:
    """Lognormal norms far below the clip for most; noise multiplier 1, rate .01, 1000 steps."""
    rng = np.random.default_rng(seed)
    level = 0.1 * np.exp(0.75 * rng.standard_normal(records))
    return np.minimum(1.0, level * np.exp(0.3 * rng.standard_normal((steps, records))))
