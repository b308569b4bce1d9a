"""The norms by which JAX Privacy clips, taken from inside of the callable.

Before version 2.3 coordinates that are not finite become 0 before the norm is taken by which a gradient is clipped. The
norm that is returned is taken apart from it, and costs a further pass through all gradients. Here the same sum of
squares is computed a second time, in the same way: the compiler sees that it is the same, and computes it once. It is
the sum that is taken out, not the norm, and its root is drawn behind a barrier: a root that is also returned would no
longer be merged with the division by which a gradient is clipped, and results would differ in their last bits.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax_privacy import clipping

_FINITE_FIRST = "nan_safe" in inspect.signature(clipping.clip_pytree).parameters


def with_squares(function: Callable[..., Any], settings: dict[str, Any]) -> Callable[..., Any] | None:
    """Return a function that returns what ``function`` returns, and the norms [b] by which it clips.

    ``function`` is that of a callable of JAX Privacy, ``settings`` are the variables that its clipping closes over.
    Returns None where the norms that the callable returns are those by which it clips.
    """
    if not (_FINITE_FIRST and settings["has_aux"] and isinstance(settings["l2_clip_norm"], int | float)):
        return None
    inner = settings["fun"]

    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, aux = inner(*args, **kwargs)
        finite = jax.tree.map(lambda leaf: jnp.nan_to_num(leaf, nan=0.0, posinf=0.0, neginf=0.0), value)
        return value, (aux, optax.tree.norm(finite, squared=True))

    clipped = _with_inner(function, inner, gradient)

    def with_norms(*args: Any, **kwargs: Any) -> Any:
        value, others = clipped(*args, **kwargs)
        if settings["return_norms"]:
            (aux, squares), norms = others
            output = value, (aux, norms)
        else:
            aux, squares = others
            output = value, aux
        return output, jnp.sqrt(jax.lax.optimization_barrier(squares))

    return with_norms


def _with_inner(function: Any, old: Any, new: Any) -> Any:
    """Return a copy of ``function`` that closes over ``new`` where it, or the function inside, closes over ``old``."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))
    fun = cells["fun"].cell_contents
    cells["fun"] = types.CellType(new if fun is old else _with_inner(fun, old, new))
    copy = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, tuple(cells.values())
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
