"""bayesdp inside JAX Privacy: ``watch`` records what a training run does.

    watched = bayesdp.jax_privacy.watch(grad_fn, privatizer, strategy, ledger="run.ledger")
    ...
    print(watched.statement())

The files, in the order in which a step passes through them:

attaching.py         ``watch``: checks what it is given, and begins
clipped_gradient.py  how gradients are clipped and scaled, read from ``grad_fn``
norms_of_clipping.py the norms by which it clips, which cost nothing more
privatizers.py       the noise, read from ``privatizer``
noise_keys.py        the keys that it is drawn from, none of them twice
sampling.py          how records come into batches: what a strategy promises, compared with the sizes of batches
watched_run.py       ``Watch``: what stands for ``grad_fn``, ``privatizer`` and ``jax.jit``
audit.py             norms that held-out records would have had
recording.py         from releases to steps of the ledger
keras_model.py       ``watch_keras``: the same for a model of ``jax_privacy.keras_api``
"""

from __future__ import annotations

from bayesdp.optional import needs

with needs("jax", "bayesdp.jax_privacy"):
    import jax_privacy as _jax_privacy  # pyright: ignore[reportUnusedImport]  # noqa: F401

from bayesdp.jax_privacy.attaching import watch
from bayesdp.jax_privacy.keras_model import watch_keras
from bayesdp.jax_privacy.sampling import Epochs, SamplingWarning
from bayesdp.jax_privacy.watched_run import Watch

__all__ = ["Epochs", "SamplingWarning", "Watch", "watch", "watch_keras"]
