"""What a callable of ``jax_privacy.clipped_grad`` or ``clipped_fun`` does, read from the callable itself.

The callable is a frozen record of three fields: a function, its bound on the L2 norm, and whether it returns more than
the sum. How it clips, and what its norms are norms of, is kept in the variables that the function closes over, and is
read from there. Whatever is not known by name is refused, and the bound that follows from what was read is compared
with the bound that the callable states: a version that keeps its settings elsewhere is refused, never misread.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import jax
import jax.numpy as jnp
import jax_privacy
from jax_privacy.clipping import BoundedSensitivityCallable

from bayesdp.jax_privacy.norms_of_clipping import with_squares
from bayesdp.validation import refuse

_READ = {
    "batch_argnums",
    "dtype",
    "fun",
    "has_aux",
    "l2_clip_norm",
    "microbatch_size",
    "nan_safe",
    "normalize_by",
    "prng_argnum",
    "rescale_to_unit_norm",
    "return_norms",
}
_DOWN = 1 - 2.0**-50  # more than two products of floats lose
_IDENTITY: Any = jax_privacy.clipped_grad.__kwdefaults__["pre_clipping_transform"]


@dataclass(frozen=True, kw_only=True)
class ClippedGradient:
    """A sum of clipped gradients: how each is clipped and scaled, and where its norm is found.

    A gradient with norms n_l, one for each bound C_l (there is one bound unless layers are clipped apart), contributes
    sum_l min(n_l, C_l)^2 to the square of its norm in the sum. ``rescale_to_unit_norm`` divides each part by C_l, and
    ``normalize_by`` divides the sum.
    """

    function: Callable[..., Any]
    "What the callable calls: arguments of the loss in, the sum and whatever else is returned out."
    clips: tuple[float, ...]
    rescaled: bool
    normalize_by: float
    batch_argnums: tuple[int, ...]
    microbatch_size: int | None
    prng_argnum: int | None
    dtype: Any
    of_gradient: bool
    "Whether ``clipped_grad`` made it (norms are in ``grad_norms``) or ``clipped_fun``."
    nested: bool
    "Whether ``clipped_fun`` returns (value, (something, norms)) and not (value, norms): version 2.0 always does."
    with_norms: Callable[..., Any] | None = field(default=None, compare=False)
    "Returns also the norms by which it clips; None if they are those that it returns."

    @staticmethod
    def of(grad_fn: Any) -> ClippedGradient:
        """Read a callable; raise InvalidInputError, with what would be right, if its norms cannot be accounted."""
        if not isinstance(grad_fn, BoundedSensitivityCallable):
            raise refuse("grad_fn", grad_fn, "what jax_privacy.clipped_grad returned, before jax.jit")
        function = getattr(grad_fn, function_field(grad_fn))
        clipping = _closed_over(function)
        if "l2_clip_norm" not in clipping and callable(clipping.get("fun")):  # inside what adds a batch axis of size 1
            clipping = _closed_over(clipping["fun"])
        gradient = _closed_over(clipping.get("fun"))
        if gradient.keys() == {"fun"}:  # inside what returns an empty aux beside a plain gradient
            gradient = _closed_over(gradient["fun"])
        if not clipping.keys() >= _READ:
            raise refuse("grad_fn", grad_fn, "a callable of jax_privacy 2.0 to 2.3, whose settings can be read")
        of_gradient = "pre_clipping_transform" in gradient
        _check(clipping, gradient if of_gradient else None)
        read = ClippedGradient(
            function=function,
            clips=tuple(_bound(clip) for clip in jax.tree.leaves(clipping["l2_clip_norm"])),
            rescaled=bool(clipping["rescale_to_unit_norm"]),
            normalize_by=float(clipping["normalize_by"]),
            batch_argnums=_argnums(clipping["batch_argnums"]),
            microbatch_size=clipping["microbatch_size"],
            prng_argnum=clipping["prng_argnum"],
            dtype=clipping["dtype"],
            of_gradient=of_gradient,
            nested=bool(clipping["has_aux"]),
            with_norms=with_squares(function, clipping),
        )
        if not math.isclose(read.clip / read.scale, float(grad_fn.l2_norm_bound), rel_tol=1e-9):
            raise refuse("l2_norm_bound", grad_fn.l2_norm_bound, f"{read.clip / read.scale!r}, which its settings give")
        return read

    @property
    def clip(self) -> float:
        """The largest norm that ``contributions`` gives: the clip bound, or of several layers, of all together."""
        if len(self.clips) == 1:
            return self.clips[0]
        return math.sqrt(len(self.clips)) if self.rescaled else math.hypot(*self.clips)

    @property
    def scale(self) -> float:
        """What the sum of ``contributions`` has been divided by before noise is added."""
        return self.normalize_by * (self.clips[0] if self.rescaled and len(self.clips) == 1 else 1.0)

    def noise_std(self, stddev: float) -> float:
        """Return the noise in the units of ``contributions``, rounded down, for ``stddev`` on what is returned."""
        return stddev if self.scale == 1.0 else stddev * self.scale * _DOWN

    def contributions(self, norms: Any) -> jax.Array:
        """Return, for norms as the callable returns them, one norm for each record, [b]; NaN stays NaN."""
        leaves = jax.tree.leaves(norms)
        if len(leaves) != len(self.clips) or any(norm.ndim != 1 for norm in leaves):
            raise refuse("grad_norms", [norm.shape for norm in leaves], "one norm for each record and clip bound")
        if len(leaves) == 1:
            return leaves[0]
        parts = [
            jnp.minimum(norm, clip) / (clip if self.rescaled else 1.0)
            for norm, clip in zip(leaves, self.clips, strict=True)
        ]
        return jnp.linalg.norm(jnp.stack(parts), axis=0)

    def of_batch(self, *args: Any, **kwargs: Any) -> tuple[Any, jax.Array]:
        """Return what the callable returns, and what each record contributed at most, [b]: always finite.

        What is not finite contributes nothing: neither a coordinate (before version 2.3), nor any part of a gradient
        with such a coordinate (since then).
        """
        if self.with_norms is None:
            output = self.function(*args, **kwargs)
            norms = self.norms(output)
        else:
            output, norms = self.with_norms(*args, **kwargs)
            norms = self._exact(norms)
        _check_precision(output[0])
        return output, jnp.where(jnp.isfinite(norms), norms, self.clip)

    def norms(self, output: Any) -> jax.Array:
        """Return the contributions [b] of the records in what the callable returned; raise if they are not exact.

        NaN for a gradient that is not finite.
        """
        others = output[1]
        norms = others.grad_norms if self.of_gradient else others[1] if self.nested else others
        return self._exact(self.contributions(norms))

    def _exact(self, contributions: jax.Array) -> jax.Array:
        """Return the contributions; raise InvalidInputError if they, or what is summed, are in half precision."""
        wide = (jnp.float32, jnp.float64)
        if contributions.dtype not in wide:
            raise refuse("grad_norms.dtype", str(contributions.dtype), "gradients in float32 or float64: exact norms")
        if self.dtype is not None and jnp.dtype(self.dtype) != contributions.dtype:
            expected = f"{contributions.dtype}, the precision of the gradients whose norms are recorded"
            raise refuse("dtype", str(jnp.dtype(self.dtype)), expected)
        return contributions


def _check_precision(gradient: Any) -> None:
    """Raise InvalidInputError if some arrays of the sum are in half precision, whatever the norm over all is in."""
    for leaf in jax.tree.leaves(gradient):
        if leaf.dtype not in (jnp.float32, jnp.float64):
            expected = "all gradients in float32 or float64: norm, sum and noise are rounded otherwise"
            raise refuse("gradient.dtype", str(leaf.dtype), expected)


def function_field(grad_fn: Any) -> str:
    """Return the name of the field that holds the function: ``fun``, and ``bounded_sensitivity_fun`` since 2.3."""
    return fields(grad_fn)[0].name


def _closed_over(function: Any) -> dict[str, Any]:
    return dict(inspect.getclosurevars(function).nonlocals) if inspect.isfunction(function) else {}


def _check(clipping: dict[str, Any], gradient: dict[str, Any] | None) -> None:
    """Raise for settings with which the norms are not returned, or are not the norms of what is clipped."""
    if gradient is None and not clipping["return_norms"]:
        raise refuse("return_norms", clipping["return_norms"], "clipped_fun(..., return_norms=True)")
    if gradient is not None and not gradient.get("return_grad_norms"):
        raise refuse(
            "return_grad_norms", False, "clipped_grad(..., return_grad_norms=True): the ledger needs the norms"
        )
    if gradient is not None and gradient["pre_clipping_transform"] is not _IDENTITY:
        expected = "none: norms are of the gradient before it, and may be smaller than what is clipped and released"
        raise refuse("pre_clipping_transform", gradient["pre_clipping_transform"], expected)
    if not clipping["nan_safe"]:
        expected = "True: otherwise a record whose gradient is not finite is there for everyone to see"
        raise refuse("nan_safe", clipping["nan_safe"], expected)
    if clipping.get("grid_scale") is not None:
        raise refuse(
            "grid_scale", clipping["grid_scale"], "none: the ledger accounts Gaussian noise, not discrete noise"
        )


def _bound(clip: Any) -> float:
    try:
        bound = float(clip)
    except (TypeError, ValueError):  # a tracer, or an array of several
        bound = math.nan
    if not 0 < bound < math.inf:
        raise refuse("l2_clip_norm", clip, "a finite number above 0, fixed before the run")
    return bound


def _argnums(argnums: Any) -> tuple[int, ...]:
    return (argnums,) if isinstance(argnums, int) else tuple(argnums)
