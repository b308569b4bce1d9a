"""Watch a Keras model that ``jax_privacy.keras_api.make_private`` made private.

Why three methods of the model are replaced
    ``make_private`` builds ``clipped_grad`` and the privatizer anew while Keras traces ``train_step``. While that runs,
    and only then, the modules that keras_api knows by name hand out the stand-ins of a ``Watch`` instead, so that the
    same checks apply as in a loop of your own. ``make_train_function`` compiles ``train_step``; around the function
    that it makes, norms are taken out of the logs and recorded before Keras gets the new state. ``fit`` tells where an
    epoch begins, and has the data that are trained on.

What would break this: a keras_api that gets ``clipped_grad`` or ``gaussian_privatizer`` by another way than from a
module of jax_privacy. The first step is then refused, as it releases nothing that was watched.
"""

from __future__ import annotations

import inspect
import math
import types
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax_privacy import batch_selection, clipping, noise_addition

from bayesdp.jax_privacy.attaching import watch
from bayesdp.jax_privacy.clipped_gradient import ClippedGradient
from bayesdp.jax_privacy.sampling import Epochs, SamplingWarning
from bayesdp.jax_privacy.watched_run import Watch
from bayesdp.optional import needs
from bayesdp.run_ledger import Ledger
from bayesdp.validation import refuse

_NORMS = "norms of bayesdp"


def watch_keras(
    model: Any,
    *,
    ledger: Ledger | str | Path,
    audit: Any = None,
    every: int = 1,
    audit_batch: int = 128,
    batches: Epochs | None = None,
    random_draws: Literal["estimate", "clip"] = "estimate",
    **declared: Any,
) -> Watch:
    """Record every step of ``model.fit``; call it once, after ``make_private`` and ``compile``, before training.

    Noise, clip bound and planned steps are those of the model's ``DPKerasConfig``; guarantees and arguments are those
    of ``watch``. With ``poisson_sampling_in_fit=True`` batches are Poisson samples. Otherwise ``fit`` goes through the
    data once an epoch, for which JAX Privacy accounts as if it were Poisson sampling: bayesdp does not, and warns.

    Arguments:
        model: The model that ``make_private`` returned.
        audit: (x, y) or (x, y, sample_weight) of people who are not trained on.
        batches: For data that are not arrays (a generator, a data set of TensorFlow), in how many batches a record is
            at most once. Arrays need no declaration: an epoch is one pass.

    Raises InvalidInputError for what cannot be accounted: a model that is not private, ``steps_per_execution`` above 1,
    by ``fit``, data or steps per epoch of which it is not known how often a record is used, and ``train_on_batch``
    unless ``batches`` says that.
    """
    with needs("keras", "bayesdp.jax_privacy.watch_keras"):
        from jax_privacy import keras_api
    config = getattr(model, "_dp_params", None)
    if config is None:
        raise refuse("model", type(model).__name__, "the model that keras_api.make_private returned")
    if getattr(model, "steps_per_execution", 1) != 1:
        raise refuse(
            "steps_per_execution", model.steps_per_execution, "1: each step is recorded before the next begins"
        )
    poisson = bool(config.poisson_sampling_in_fit)
    if poisson and batches is not None:
        raise refuse("batches", batches, "none with poisson_sampling_in_fit=True")
    noise_multiplier = float(keras_api.get_noise_multiplier(model))
    grad_fn = clipping.clipped_grad(
        model.compute_loss_and_updates,
        has_aux=True,
        return_values=True,
        return_grad_norms=True,
        l2_clip_norm=config.clipping_norm,
        rescale_to_unit_norm=config.rescale_to_unit_norm,
        normalize_by=config.batch_size,
        batch_argnums=(3, 4, 5),
        microbatch_size=config.microbatch_size,
    )
    stddev = noise_multiplier * grad_fn.l2_norm_bound / math.sqrt(config.gradient_accumulation_steps)
    steps = config.train_steps * config.gradient_accumulation_steps
    if poisson:
        rate = config.batch_size / config.train_size
        selection: Any = batch_selection.CyclicPoissonSampling(sampling_prob=rate, iterations=steps)
    else:
        selection = batches or Epochs(max(config.train_size // config.batch_size, 1))
    watched = watch(
        grad_fn,
        noise_addition.gaussian_privatizer(stddev=stddev, prng_key=0),
        selection,
        ledger=ledger,
        audit=None if audit is None else _whole(audit, weighted=poisson),
        every=every,
        audit_batch=audit_batch,
        steps=None if isinstance(ledger, Ledger) else steps,
        records=config.train_size if poisson else None,
        random_draws=random_draws,
        **declared,
    )
    if not poisson:
        warnings.warn(
            "poisson_sampling_in_fit=False: JAX Privacy accounts for Poisson sampling, but fit does not sample. Its "
            "epsilon is for other batches; bayesdp accounts for an epoch without amplification by sampling.",
            SamplingWarning,
            stacklevel=2,
        )
    _KerasFit(model, watched, keras_api, stddev, sampled=poisson, declared=batches is not None).attach()
    return watched


def _whole(audit: Any, *, weighted: bool) -> tuple[Any, ...]:
    """Return (x, y, sample_weight); weights of 1 if training has weights, which mark padding with 0."""
    if not isinstance(audit, tuple | list) or len(audit) not in (2, 3):
        raise refuse("audit", type(audit).__name__, "(x, y) or (x, y, sample_weight)")
    if len(audit) == 3 or not weighted:
        return (*audit, None)[:3]
    return (*audit, jnp.ones(len(jax.tree.leaves(audit)[0])))


class _KerasFit:
    """What stands in a model for ``train_step``, ``make_train_function`` and ``fit``."""

    def __init__(
        self, model: Any, watched: Watch, keras_api: Any, stddev: float, *, sampled: bool, declared: bool
    ) -> None:
        self._model, self._watched, self._keras_api, self._stddev = model, watched, keras_api, stddev
        self._sampled, self._declared = sampled, declared
        self._fitting = False
        "Whether ``fit`` runs: it samples, or goes through the data once an epoch."
        self._shapes: set[Any] = set()
        "Shapes of batches for which a step was traced, with audit or without."
        self._traced_before = False
        self._train_step, self._make, self._fit = model.train_step, model.make_train_function, model.fit

    def attach(self) -> None:
        """Take the place of the methods; a function that Keras has made before is made again."""
        self._model.train_function = None
        self._model.make_train_function, self._model.fit = self._make_train_function, self._watched_fit
        self._watched.at_close = self.detach

    def detach(self) -> None:
        """Leave the model as it was before ``attach``."""
        self._model.train_function = None
        self._model.make_train_function, self._model.fit = self._make, self._fit

    def _watched_fit(self, *args: Any, **kwargs: Any) -> Any:
        # The class knows the names; the signature of what make_private has put into the model lacks the first.
        given = dict(inspect.signature(type(self._model).fit).bind_partial(self._model, *args, **kwargs).arguments)
        del given["self"]
        if not self._sampled and not self._declared:
            _check_passes(given)
        import keras

        callbacks: Any = given.get("callbacks")
        begin = keras.callbacks.LambdaCallback(on_epoch_begin=lambda *_: self._watched.begin_epoch())
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks.callbacks.append(begin)
        else:
            listed = callbacks if isinstance(callbacks, list | tuple) else [] if callbacks is None else [callbacks]
            given["callbacks"] = [begin, *listed]
        options = given.pop("kwargs", {})
        self._fitting = True
        try:
            return self._fit(**given, **options)
        finally:
            self._fitting = False

    def _make_train_function(self, force: bool = False) -> None:
        if self._model.train_function is not None and not force:
            return
        functions: dict[bool, Any] = {}
        for due in (True, False):
            self._model.train_step = self._step(audited=due)
            self._make(force=True)
            functions[due] = self._model.train_function
        self._model.train_step = self._train_step

        def train_function(state: Any, iterator: Any) -> Any:
            if not self._fitting and not self._declared:
                expected = "model.fit, which draws the batches that are accounted; or watch_keras(batches=Epochs(...))"
                raise refuse("train_on_batch", "a batch of your own", expected)
            logs, state = functions[self._watched.audit_due](state, iterator)
            norms = logs.pop(_NORMS)
            self._watched.record(*norms)
            return logs, state

        self._model.train_function = train_function

    def _step(self, *, audited: bool) -> Any:
        def train_step(state: Any, data: Any) -> Any:
            shapes = tuple(leaf.shape for leaf in jax.tree.leaves(data))
            self._traced_before = shapes in self._shapes
            self._shapes.add(shapes)
            with self._watched.tracing() as trace, self._stand_ins():
                logs, state = self._train_step(state, data)
            return {**logs, _NORMS: self._watched.norms_of(trace, "train_step", audited=audited)}, state

        return train_step

    @contextmanager
    def _stand_ins(self) -> Generator[None]:
        """Let keras_api find the stand-ins of the watch where it looks for ``clipped_grad`` and the privatizer."""
        stand_ins = {"clipped_grad": self._clipped_grad, "gaussian_privatizer": self._privatizer}
        names = vars(self._keras_api)
        modules = {
            name: value
            for name, value in names.items()
            if isinstance(value, types.ModuleType) and value.__name__.startswith("jax_privacy")
        }
        names.update({name: _StandIn(module, stand_ins) for name, module in modules.items()})
        try:
            yield
        finally:
            names.update(modules)

    def _clipped_grad(self, *args: Any, **kwargs: Any) -> Any:
        asked = ClippedGradient.of(clipping.clipped_grad(*args, **{**kwargs, "return_grad_norms": True}))
        known = self._watched.gradient
        if replace(asked, function=known.function) != known:
            raise refuse("clipped_grad", asked.clips, "the settings that DPKerasConfig had when the model was watched")
        return self._watched.grad_fn

    def _privatizer(self, *, stddev: float, **_: Any) -> Any:
        if not math.isclose(stddev, self._stddev, rel_tol=1e-9):
            raise refuse("stddev", stddev, f"{self._stddev!r}, which DPKerasConfig gave when the model was watched")
        if not self._traced_before:  # it draws a key from NumPy, and so changes in which order Keras shuffles
            noise_addition.gaussian_privatizer(stddev=stddev)
        return self._watched.privatizer


class _StandIn:
    """A module in which some names mean something else, also in its submodules."""

    def __init__(self, module: Any, names: dict[str, Any]) -> None:
        self._module, self._names = module, names

    def __getattr__(self, name: str) -> Any:
        if name in self._names:
            return self._names[name]
        value = getattr(self._module, name)
        inside = isinstance(value, types.ModuleType) and value.__name__.startswith("jax_privacy")
        return _StandIn(value, self._names) if inside else value


def _check_passes(given: dict[str, Any]) -> None:
    """Raise unless ``fit`` goes through arrays once an epoch."""
    leaves = jax.tree.leaves(given.get("x"), is_leaf=lambda part: not isinstance(part, dict | list | tuple))
    if not leaves or not all(isinstance(leaf, np.ndarray | jax.Array) for leaf in leaves):
        expected = "arrays, poisson_sampling_in_fit=True, or watch_keras(batches=Epochs(...)) for other data"
        raise refuse("x", type(given.get("x")).__name__, expected)
    if given.get("steps_per_epoch") is not None:
        expected = "none: epochs are then passes through the data; or watch_keras(batches=Epochs(...))"
        raise refuse("steps_per_epoch", given["steps_per_epoch"], expected)
