"""A run with JAX Privacy that is being watched: a step is in the ledger before anybody gets its result.

Why ``grad_fn`` and ``privatizer`` have stand-ins
    JAX compiles a program from what Python functions do while they are traced, and knows nothing of objects. The
    stand-ins do what the originals do, and note while they are traced what goes through them: the norms and the padding
    of a batch, the parameters at which gradients are taken, and whether the gradient to which noise is added is the
    very sum that was clipped. A sum that was divided by the batch size on its way is another array, and is refused:
    its noise has another meaning (``normalize_by`` divides before noise is scaled).

Why ``Watch.jit`` stands in the place of ``jax.jit``
    A compiled program has no side effects, so nothing can be recorded from inside it. ``Watch.jit`` compiles the same
    function with the norms as further results, records them, and returns the function's own result only then. Nobody
    can use a step that is not on disk, whatever the loop looks like, and parameters may be donated.

Without ``jit``, every call of ``privatizer.update`` records its step before it returns.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp
import optax

from bayesdp.claims import RunClaims
from bayesdp.jax_privacy.audit import AuditRecords, split_arrays
from bayesdp.jax_privacy.clipped_gradient import ClippedGradient, function_field
from bayesdp.jax_privacy.noise_keys import NoiseKeys, keys_of
from bayesdp.jax_privacy.recording import EpochSteps, PoissonSteps, Released
from bayesdp.ledger import check_continues, position_of
from bayesdp.run_ledger import Ledger
from bayesdp.validation import refuse

_OPTIONS = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames", "keep_unused")


@dataclass(frozen=True, eq=False)
class Call:
    """A call of ``grad_fn``: what it was given, and what it returned."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    gradient: list[Any]
    "The arrays of the sum."
    norms: Any
    "One norm for each row of the batch, [b]; -1 for padding."

    def returned(self, gradient: Any) -> bool:
        """Return whether ``gradient`` is what this call returned, the very same arrays."""
        arrays = jax.tree.leaves(gradient)
        return len(arrays) == len(self.gradient) and all(
            one is other for one, other in zip(arrays, self.gradient, strict=True)
        )


class Trace:
    """What the stand-ins note while a function is traced, or between two releases without ``jit``."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.released: Call | None = None
        self.keys: tuple[Any, Any] = (None, None)
        "Of the noise that was released: its key, and the key that follows."


class Watch:
    """A run that is being watched; ``watch`` returns it.

    Train with ``grad_fn`` and ``privatizer`` of this object, in a function that ``jit`` compiles. ``claims`` and
    ``statement`` may be asked at any time. ``close``, or the end of a ``with`` block, closes the ledger if ``watch``
    created it. A checkpoint should contain ``state_dict()``.
    """

    def __init__(
        self,
        grad_fn: Any,
        privatizer: Any,
        gradient: ClippedGradient,
        recorder: PoissonSteps | EpochSteps,
        ledger: Ledger,
        audit: AuditRecords | None,
        *,
        random_draws: Literal["estimate", "clip"],
        owned: bool,
    ) -> None:
        self.ledger = ledger
        self.grad_fn: Any = replace(grad_fn, **{function_field(grad_fn): self._clipped_gradient})
        "Stands for the ``grad_fn`` that was given to ``watch``."
        self.privatizer = optax.GradientTransformation(privatizer.init, self._add_noise)
        "Stands for the privatizer that was given to ``watch``."
        self.at_close: Callable[[], None] | None = None
        "Called once when the run is closed."
        self.compilations = 0
        "How many programs ``jit`` has traced: one for each shape of a batch, two with ``every`` above 1."
        self.gradient = gradient
        "How ``grad_fn`` clips."
        self._noise, self._recorder = privatizer.update, recorder
        self._audit, self._random_draws, self._owned = audit, random_draws, owned
        self._trace: Trace | None = None
        self._outside = Trace()
        self._random: bool | None = None
        self._noise_keys = NoiseKeys()
        self._audit_programs: dict[Any, Any] = {}

    # What is claimed

    def claims(self, delta: float = 1e-5, **options: Any) -> RunClaims:
        """Return all claims about the run so far, as ``Ledger.claims`` does with the same options."""
        self.settle()
        return self.ledger.claims(delta, **options)

    def statement(self, delta: float = 1e-5, **options: Any) -> str:
        """Return the claims in words; options are those of ``Ledger.claims``."""
        return self.claims(delta, **options).statement()

    @property
    def random_draws(self) -> bool | None:
        """Whether the gradient of a record depends on random numbers, such as those of dropout; None if not known yet.

        It is known after the first audit. If it is True, claims about shares are estimates, or audit records are
        charged at the clip bound: ``random_draws`` of ``watch`` decides.
        """
        return self._random

    def settle(self) -> None:
        """Give the ledger what is not in it yet: norms of the epoch, or of the last step."""
        self._recorder.settle()

    def close(self) -> None:
        """Stop watching; the ledger is closed too if ``watch`` created it. A second call does nothing."""
        if self.at_close is not None:
            at_close, self.at_close = self.at_close, None
            at_close()
        if self.ledger.closed:
            return
        self.settle()
        if self._owned:
            self.ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """Return for a checkpoint which ledger has the steps before it, and a fingerprint of the noise to come."""
        self.settle()
        return {**position_of(self.ledger), "following_noise": self._noise_keys.following()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Check that the ledger contains the steps of a checkpoint; raise LedgerError if it does not.

        If steps were recorded after the checkpoint, its noise state has been used: a step with it is refused.
        """
        check_continues(self.ledger, state)
        following = state.get("following_noise")
        if following is not None and self.ledger.steps > int(state["steps"]):
            self._noise_keys.used_before(str(following))

    # Training

    def jit(self, function: Callable[..., Any] | None = None, **options: Any) -> Callable[..., Any]:
        """Compile a training step as ``jax.jit`` does; each call records its step before it returns the result.

        ``function`` calls ``grad_fn`` and ``privatizer.update`` once each, with the sum of the first given to the
        second as it is. Options are those of ``jax.jit`` for static and donated arguments. If a call raises, nothing
        was recorded and nothing released, except that an argument which was donated is gone.

        Raises InvalidInputError if ``function`` is compiled already, and when it is first called if it does anything
        else than described: noise added to something else than the clipped sum, or a step inside of a loop, a shard_map
        or another jit, whose norms cannot be seen from outside.
        """
        if function is None:
            return functools.partial(self.jit, **options)
        if hasattr(function, "lower"):
            raise refuse("function", getattr(function, "__name__", function), "the function without jax.jit")
        for name, value in options.items():
            if name not in _OPTIONS:
                raise refuse(name, value, f"options among {', '.join(_OPTIONS)}; place arrays with jax.device_put")
        programs = {due: self._program(function, options, audited=due) for due in (True, False)}

        @functools.wraps(function)
        def step(*args: Any, **kwargs: Any) -> Any:
            due = self.audit_due
            result, norms = programs[due](self._audit.batch if self._audit is not None and due else (), *args, **kwargs)
            self.record(*norms)
            return result

        return step

    def _program(self, function: Callable[..., Any], options: dict[str, Any], *, audited: bool) -> Callable[..., Any]:
        name = getattr(function, "__name__", repr(function))

        def traced(audit: Any, /, *args: Any, **kwargs: Any) -> Any:
            self.compilations += 1
            with self.tracing() as trace:
                result = function(*args, **kwargs)
            return result, self.norms_of(trace, name, audit, audited=audited)

        first = inspect.Parameter("bayesdp_audit", inspect.Parameter.POSITIONAL_ONLY)
        parameters = [first, *inspect.signature(function).parameters.values()]
        traced.__name__ = name
        traced.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        shifted = {name: _after_the_first(value) if name.endswith("nums") else value for name, value in options.items()}
        program = jax.jit(traced, **shifted)

        def called(*args: Any, **kwargs: Any) -> Any:
            try:
                return program(*args, **kwargs)
            except jax.errors.UnexpectedTracerError:
                expected = (
                    "grad_fn and privatizer.update in it directly, not inside of a loop, a shard_map or another jit"
                )
                raise refuse("function", name, expected) from None

        return called

    @contextmanager
    def tracing(self) -> Generator[Trace]:
        """Note in a new ``Trace`` what the stand-ins see inside the block."""
        before, self._trace = self._trace, Trace()
        try:
            yield self._trace
        finally:
            self._trace = before

    # What the stand-ins do

    def _clipped_gradient(self, *args: Any, **kwargs: Any) -> Any:
        """Stand in for the function of ``grad_fn``."""
        output, norms = self.gradient.of_batch(*args, **kwargs)
        padding = kwargs.get("is_padding_example")
        if padding is not None:
            norms = jnp.where(padding, -1.0, norms)
        if self._audit is not None:
            self._audit.check_like(args)
        call = Call(args, kwargs, jax.tree.leaves(output[0]), norms)
        if self._trace is not None:
            self._trace.calls.append(call)
        elif not isinstance(norms, jax.core.Tracer):
            self._outside.calls = [call]
        return output

    def _add_noise(self, updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        """Stand in for ``update`` of the privatizer."""
        trace = self._outside if self._trace is None else self._trace
        call = next((call for call in trace.calls if call.returned(updates)), None)
        if call is None:
            expected = (
                "the gradient as watched.grad_fn returned it, in the same function compiled by watched.jit: a sum that "
                "is divided by hand gets the noise of another sum (clipped_grad(normalize_by=...) divides it)"
            )
            raise refuse("sum_of_clipped_grads", "another gradient", expected)
        if trace.released is not None:
            raise refuse("privatizer.update", "called twice", "one release in a step")
        result = self._noise(updates, state, params, **extra)
        trace.keys = keys_of(state), keys_of(result[1])
        if self._trace is not None:
            trace.released = call
            return result
        self.record(self._audit_outside(call) if self.audit_due else None, call.norms, *trace.keys)
        trace.calls = []
        return result

    def norms_of(self, trace: Trace, name: str, audit: Any = None, *, audited: bool) -> tuple[Any, ...]:
        """Return, in the program that is traced, what ``record`` takes.

        These are the norms of audit records, [m] or None, those of the batch, [b], and the keys of the noise. ``audit``
        are the audit records as the program got them; without it they become a part of the program. Raises
        InvalidInputError if the function, called ``name``, has released nothing.
        """
        call = trace.released
        if call is None:
            expected = "a function that gives the sum of watched.grad_fn to watched.privatizer.update"
            raise refuse("function", name, expected)
        return self._audit_norms(call, audit) if audited else None, call.norms, *trace.keys

    def _audit_norms(self, call: Call, batch: Any) -> Any:
        if self._audit is None:
            return None
        if not self._random:  # another program may have switched dropout on
            self._random = self._audit.draws_random_numbers(call.arguments, call.keywords)
        return self._audit.norms(self._audit.batch if batch is None else batch, call.arguments, call.keywords)

    def _audit_outside(self, call: Call) -> Any:
        """Return the norms of audit records for a call that was not traced; compiled once for each kind of call."""
        assert self._audit is not None
        arguments = [None if place in self.gradient.batch_argnums else a for place, a in enumerate(call.arguments)]
        keywords = {name: value for name, value in call.keywords.items() if name != "is_padding_example"}
        arrays, rest = split_arrays((tuple(arguments), keywords))
        if rest not in self._audit_programs:

            def norms(batch: Any, arrays: list[Any]) -> Any:
                given, named = rest.with_arrays(arrays)
                return self._audit_norms(Call(given, named, [], None), batch)

            self._audit_programs[rest] = jax.jit(norms)
        return self._audit_programs[rest](self._audit.batch, arrays)

    def record(self, audit: Any, batch: Any, key: Any = None, following: Any = None) -> None:
        """Record a step; it is on disk when this returns.

        ``key`` is that of its noise, ``following`` that of the state it returned. Raises InvalidInputError, and records
        nothing, if the key was used before.
        """
        if isinstance(batch, jax.core.Tracer):
            raise refuse("function", "inside of another jit", "steps of watched.jit in a loop of Python")
        at_clip = self._at_clip_bound
        drawn = audit is not None and bool(self._random) and not at_clip
        released = Released(None if at_clip else audit, batch)
        with self._noise_keys.use(key, following):
            self._recorder.record(released, frozenset(["random-draws"] if drawn else []))
        if self._audit is not None:
            self._audit.count()

    @property
    def audit_due(self) -> bool:
        """Whether norms of audit records are to be computed at the next step."""
        return self._audit is not None and self._audit.due() and not self._at_clip_bound

    def begin_epoch(self) -> None:
        """Say that a pass through the data begins, which matters without Poisson sampling only.

        A record is then in at most one batch until this is called again. Never calling it is right too if every epoch
        has as many batches as were declared.
        """
        if isinstance(self._recorder, EpochSteps):
            self._recorder.begin_epoch()

    @property
    def _at_clip_bound(self) -> bool:
        return self._random_draws == "clip" and bool(self._random)


def _after_the_first(argnums: Any) -> Any:
    """Return positions of arguments, moved by one for the audit records that come first."""
    if isinstance(argnums, int):
        return argnums + 1 if argnums >= 0 else argnums
    return tuple(_after_the_first(argnum) for argnum in argnums)
