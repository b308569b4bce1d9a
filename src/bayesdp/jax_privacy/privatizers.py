"""The noise of a privatizer, read from the variables that its ``update`` closes over.

``gaussian_privatizer`` draws fresh noise at each step: that is a step of the ledger. A privatizer made from any other
matrix (BandMF and its relatives) releases sums of earlier noise. A record's cost is then not a sum over the steps it is
in, so norms step by step do not give it, and no ledger can.
"""

from __future__ import annotations

import inspect
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax_privacy import noise_addition

from bayesdp import validation
from bayesdp.validation import refuse

_INDEPENDENT: Any = noise_addition.gaussian_privatizer.args[0]
_LARGEST = 2048  # steps of a matrix that is looked at as a whole


def noise_stddev(privatizer: object, steps: int | None) -> float:
    """Return the standard deviation of what ``privatizer.update`` adds to each coordinate at each step.

    A matrix other than that of ``gaussian_privatizer`` passes if its first ``steps`` rows are a multiple of the
    identity (BandMF with one band). Raises InvalidInputError for correlated noise, for noise in half precision, and for
    an object that no privatizer of JAX Privacy is.
    """
    update = getattr(privatizer, "update", None)
    noise = dict(inspect.getclosurevars(update).nonlocals) if inspect.isfunction(update) else {}
    if not noise.keys() >= {"stddev", "noising_matrix", "dtype"}:
        expected = "what gaussian_privatizer returned; apply other transformations after it, in a step of their own"
        raise refuse("privatizer", privatizer, expected)
    if noise["dtype"] is not None and jnp.dtype(noise["dtype"]) not in (jnp.float32, jnp.float64):
        raise refuse("privatizer.dtype", str(jnp.dtype(noise["dtype"])), "noise in float32 or float64")
    stddev = validation.noise_std(noise["stddev"])
    factor = _factor(noise["noising_matrix"], steps)
    if factor is None:
        expected = (
            "gaussian_privatizer: correlated noise (BandMF) spreads the cost of a record over steps that it is not in, "
            "so a ledger of steps cannot account for it"
        )
        raise refuse("noising_matrix", type(noise["noising_matrix"]).__name__, expected)
    return stddev * factor


def _factor(matrix: Any, steps: int | None) -> float | None:
    """Return c if the matrix is c times the identity, as far as ``steps``; None if it is not, or is not known."""
    if matrix is _INDEPENDENT:
        return 1.0
    if steps is None or steps > _LARGEST or not hasattr(matrix, "materialize"):
        return None
    rows = np.asarray(matrix.materialize(steps))
    factor = float(rows[0, 0])
    return factor if factor > 0 and np.array_equal(rows, factor * np.eye(len(rows), dtype=rows.dtype)) else None
