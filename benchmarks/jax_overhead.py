"""What watching costs against JAX Privacy alone: a jitted step of a CNN of 26,010 parameters, batches of 256.

    python -m benchmarks.jax_overhead        (in .venv-engines: make bench-engines)

Five runs take turns, step by step, in an order that changes: JAX Privacy alone, alone again (the control: whatever
differs is noise), alone with the norms among the results, watched, and watched with as many audit records as there are
in a batch. Alone means the same function compiled by jax.jit, as a user had it before: the limit is for the watched
step over that one. Nobody uses its norms, so the compiler leaves them out; the run that returns them shows what a
further pass through all gradients costs, which a watched step does without: it takes the norms of the clipping.
The ledger is in memory; results/opacus_overhead.json has what a step on disk adds.

Times are processor times, so that other programs count less. In each turn the ratio of a step to that of the run alone
is taken; judged by the upper end of the 95 % confidence interval of their median.

Prints and writes results/jax_overhead.json; exit code 1 if a line fails its target.
"""

from __future__ import annotations

import os

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import itertools
import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
from jax_privacy import batch_selection, noise_addition
from scipy.stats import binom

import bayesdp.jax_privacy
from bayesdp import Ledger
from benchmarks.machine import description

BATCH, TURNS, WARM_UP = 256, 120, 3
LIMIT, AUDIT_LIMIT = 1.03, 1.3
RESULT = Path(__file__).parents[1] / "results" / "jax_overhead.json"
SHAPES = [(16, 1, 8, 8), (16,), (32, 16, 4, 4), (32,), (512, 32), (32,), (32, 10), (10,)]


def loss(params: list[jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    """The network of Opacus' MNIST example, with cross-entropy."""
    w1, b1, w2, b2, w3, b3, w4, b4 = params

    def pooled(maps: jax.Array) -> jax.Array:
        positive = jax.nn.relu(maps)
        return jax.lax.reduce_window(positive, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 1, 1), "VALID")

    maps = jax.lax.conv_general_dilated(x, w1, (2, 2), [(3, 3), (3, 3)]) + b1[None, :, None, None]
    maps = jax.lax.conv_general_dilated(pooled(maps), w2, (2, 2), "VALID") + b2[None, :, None, None]
    hidden = jax.nn.relu(pooled(maps).reshape(len(x), -1) @ w3 + b3)
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(hidden @ w4 + b4) * jax.nn.one_hot(y, 10), axis=1))


def new_run(*, watched: bool = False, audit: bool = False, norms: bool = False) -> tuple[Callable[[], float], Ledger]:
    """A function that takes one step and returns its processor seconds; every batch is the whole of 256 records."""
    values = np.random.default_rng(0)
    x = jnp.asarray(values.standard_normal((BATCH, 1, 28, 28)), jnp.float32)
    y = jnp.asarray(values.integers(10, size=BATCH))
    params: Any = [jnp.asarray(0.1 * values.standard_normal(shape), jnp.float32) for shape in SHAPES]
    grad_fn: Any = jax_privacy.clipped_grad(loss, l2_clip_norm=1.0, batch_argnums=(1, 2), return_grad_norms=True)
    privatizer: Any = noise_addition.gaussian_privatizer(stddev=1.0, prng_key=jax.random.key(0))
    jit: Any = jax.jit
    ledger = Ledger()
    if watched:
        batches = batch_selection.CyclicPoissonSampling(sampling_prob=1.0, iterations=10_000)
        records = (x, y) if audit else None
        run = bayesdp.jax_privacy.watch(
            grad_fn, privatizer, batches, ledger=ledger, audit=records, audit_batch=BATCH, records=BATCH
        )
        grad_fn, privatizer, jit = run.grad_fn, run.privatizer, run.jit

    def update(params: Any, state: Any, x: Any, y: Any, is_padding_example: Any) -> Any:
        total, aux = grad_fn(params, x, y, is_padding_example=is_padding_example)
        noisy, state = privatizer.update(total, state)
        params = jax.tree.map(lambda value, change: value - 0.05 / BATCH * change, params, noisy)
        return params, state, aux.grad_norms if norms else None

    compiled, state, padding = jit(update), privatizer.init(params), jnp.zeros(BATCH, bool)

    def step() -> float:
        nonlocal params, state
        begin = time.process_time()
        params, state, _ = jax.block_until_ready(compiled(params, state, x, y, padding))
        return time.process_time() - begin

    return step, ledger


def median_with_interval(values: np.ndarray, confidence: float = 0.95) -> dict[str, float]:
    """The median and an interval that contains the true one with this confidence, by order statistics."""
    ordered = np.sort(values)
    low = int(binom.ppf((1 - confidence) / 2, len(ordered), 0.5))
    return {"median": float(np.median(ordered)), "low": float(ordered[low]), "high": float(ordered[-1 - low])}


def shown(figure: dict[str, float]) -> str:
    """A median and its interval."""
    return f"{figure['median']:.4f} [{figure['low']:.4f}, {figure['high']:.4f}]"


def main() -> int:
    kinds = {
        "alone": new_run(),
        "control": new_run(),
        "watched": new_run(watched=True),
        "audited": new_run(watched=True, audit=True),
        "with norms": new_run(norms=True),
    }
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    orders = list(itertools.permutations(kinds))
    for turn in range(WARM_UP + TURNS):
        for name in orders[(turn * 7) % len(orders)]:
            taken = kinds[name][0]()
            if turn >= WARM_UP:
                seconds[name].append(taken)
    taken = {name: np.array(values) for name, values in seconds.items()}
    ratios = {name: median_with_interval(taken[name] / taken["alone"]) for name in ("control", "watched", "with norms")}
    audit = median_with_interval((taken["audited"] - taken["watched"]) / taken["alone"])
    assert kinds["audited"][1].history.audited_steps == WARM_UP + TURNS
    holds = ratios["watched"]["high"] <= LIMIT and audit["high"] <= AUDIT_LIMIT
    alone = 1e3 * float(np.median(taken["alone"]))
    print(
        f"{alone:.0f} ms alone; watched {shown(ratios['watched'])}, control {shown(ratios['control'])}, with norms "
        f"{shown(ratios['with norms'])}; {BATCH} audit records add {shown(audit)} of a step: "
        f"{'holds' if holds else 'FAILS'}"
    )
    result = {
        "command": "python -m benchmarks.jax_overhead",
        "settings": {"batch": BATCH, "parameters": 26_010, "turns": TURNS, "threads": 1, "seed": 0},
        "versions": description() | {"jax": jax.__version__, "jax_privacy": version("jax-privacy")},
        "milliseconds_alone": alone,
        "control": ratios["control"],
        "watched": ratios["watched"],
        "with_norms": ratios["with norms"],
        "audit_over_step_at_one_batch": audit,
        "limit_watched": LIMIT,
        "limit_audit": AUDIT_LIMIT,
        "holds": holds,
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
