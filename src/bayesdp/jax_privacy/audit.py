"""Norms that audit records would have had at a step: the same clipped gradient, at the same parameters.

They are computed by the callable that training uses, with audit records in the place of the batch and every other
argument as training gave it: by construction it is the same loss, and the same norm. That happens inside the program
that ``Watch.jit`` compiles, so nothing is traced or compiled again from step to step, and devices share the work as
they share that of the batch. What else the callable computes, the sum, is dropped by the compiler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bayesdp.jax_privacy.clipped_gradient import ClippedGradient
from bayesdp.validation import count, refuse

_RANDOM = ("random_bits", "random_gamma", "rng_", "threefry", "pure_callback", "io_callback")
"""What a program draws random numbers with, or calls Python with, which may draw them."""


class AuditRecords:
    """Audit records as ``grad_fn`` takes a batch, and the norms they have at given arguments of ``grad_fn``."""

    def __init__(self, audit: Any, gradient: ClippedGradient, *, every: int, audit_batch: int) -> None:
        """Check the records; raise InvalidInputError unless each batch argument has the same number of rows.

        ``audit`` is the batch itself if ``grad_fn`` has one batch argument, else a tuple with one entry for each.
        """
        self._gradient = gradient
        self._every = count("every", every, minimum=1)
        self._steps = 0
        arguments = len(gradient.batch_argnums)
        if arguments > 1 and (not isinstance(audit, tuple | list) or len(audit) != arguments):
            expected = f"a tuple of {arguments}, as batch_argnums={gradient.batch_argnums} has it"
            raise refuse("audit", type(audit).__name__, expected)
        batch = (audit,) if arguments == 1 else tuple(audit)
        leaves = jax.tree.leaves(batch)
        sizes = {jnp.shape(leaf)[0] if jnp.ndim(leaf) else 0 for leaf in leaves}
        if len(sizes) != 1 or min(sizes) < 1:
            raise refuse("audit", [jnp.shape(leaf) for leaf in leaves], "arrays with one row for each audit record")
        self.records = int(sizes.pop())
        chunk = min(self.records, count("audit_batch", audit_batch, minimum=1))
        chunk = _up(chunk, gradient.microbatch_size or 1)
        self._chunks = _up(self.records, chunk) // chunk
        filled = self._chunks * chunk
        self.batch: tuple[Any, ...] = jax.tree.map(lambda rows: _chunked(np.asarray(rows), filled, chunk), batch)
        "The records in chunks, [chunks, rows, ...]; the last is filled up with the first record."

    def due(self) -> bool:
        """Return whether norms are due at this step; ``count`` begins the next."""
        return self._steps % self._every == 0

    def count(self) -> None:
        """Count a step that was recorded."""
        self._steps += 1

    def norms(self, batch: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> jax.Array:
        """Return the norms [m] for ``batch``, which is ``self.batch`` as the compiled program got it.

        ``arguments`` and ``keywords`` are those with which training called ``grad_fn``.
        """
        # The barrier keeps the compiler from merging this with training, which stays as it was to the last bit.
        arrays, rest = split_arrays(arguments)
        arrays, batch = jax.lax.optimization_barrier((arrays, batch))
        filled = rest.with_arrays(arrays)
        keywords = {name: value for name, value in keywords.items() if name != "is_padding_example"}

        def of_chunk(chunk: Any) -> jax.Array:
            return self._gradient.norms(self._gradient.function(*self._in_place_of(filled, chunk), **keywords))

        if self._chunks == 1:
            norms = of_chunk(jax.tree.map(lambda rows: rows[0], batch))
        else:
            norms = jax.lax.map(of_chunk, batch).reshape(-1)
        return norms[: self.records]

    def draws_random_numbers(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
        """Return whether the gradient of a record depends on random numbers: whether its program draws any."""
        arrays, rest = split_arrays(arguments)
        shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
        program = jax.make_jaxpr(lambda given: self.norms(self.batch, rest.with_arrays(given), keywords))(shapes)
        return _draws(program.jaxpr)

    def check_like(self, arguments: tuple[Any, ...]) -> None:
        """Raise InvalidInputError unless audit records have the form of the records that training gave ``grad_fn``.

        Arrays of another shape or kind may be broadcast to a loss that nobody trains with.
        """
        trained = tuple(arguments[place] for place in self._gradient.batch_argnums)
        rows, of_audit = (jax.tree.map(_row, batch) for batch in (trained, jax.tree.map(lambda c: c[0], self.batch)))
        if jax.tree.flatten(rows) != jax.tree.flatten(of_audit):
            raise refuse("audit", of_audit, f"records like those that are trained on: {rows}")

    def _in_place_of(self, arguments: tuple[Any, ...], chunk: Any) -> list[Any]:
        replaced = list(arguments)
        for place, records in zip(self._gradient.batch_argnums, chunk, strict=True):
            replaced[place] = records
        return replaced


def _row(rows: Any) -> tuple[tuple[int, ...], str]:
    """Return the shape and the kind of a row: integers of any size are of one kind, and so are real numbers."""
    kind = "f" if jnp.issubdtype(rows.dtype, jnp.floating) else "i" if jnp.issubdtype(rows.dtype, jnp.integer) else "?"
    return tuple(rows.shape[1:]), kind


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _chunked(rows: Any, filled: int, chunk: int) -> jax.Array:
    whole = np.concatenate([rows, np.repeat(rows[:1], filled - len(rows), axis=0)])
    return jnp.asarray(whole.reshape(-1, chunk, *rows.shape[1:]))


@dataclass(frozen=True)
class WithoutArrays:
    """Arguments without their arrays: the structure, and whatever else they hold, such as flags."""

    structure: Any
    others: tuple[Any, ...]
    "For each leaf, None where there was an array."

    def with_arrays(self, arrays: list[Any]) -> Any:
        """Return the arguments with these arrays in the places where ``split_arrays`` took them from."""
        given = iter(arrays)
        leaves = [next(given) if other is None else other for other in self.others]
        return jax.tree.unflatten(self.structure, leaves)


def split_arrays(arguments: Any) -> tuple[list[Any], WithoutArrays]:
    """Split arguments into their arrays, which a program takes, and the rest, for which it is compiled."""
    leaves, structure = jax.tree.flatten(arguments)
    is_array = [isinstance(leaf, jax.Array | np.ndarray | np.generic) for leaf in leaves]
    arrays = [leaf for leaf, array in zip(leaves, is_array, strict=True) if array]
    others = tuple(None if array else leaf for leaf, array in zip(leaves, is_array, strict=True))
    return arrays, WithoutArrays(structure, others)


def _draws(program: Any) -> bool:
    for equation in program.eqns:
        if equation.primitive.name.startswith(_RANDOM):
            return True
        for parameter in jax.tree.leaves(list(equation.params.values()), is_leaf=_inner):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns") and _draws(inner):
                return True
    return False


def _inner(parameter: object) -> bool:
    return hasattr(parameter, "jaxpr") or hasattr(parameter, "eqns")
