"""Begin to watch a training run with JAX Privacy: check what is given, and put a ``Watch`` around it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import jax

from bayesdp.claims.plan import Plan
from bayesdp.jax_privacy.audit import AuditRecords
from bayesdp.jax_privacy.clipped_gradient import ClippedGradient
from bayesdp.jax_privacy.privatizers import noise_stddev
from bayesdp.jax_privacy.recording import EpochSteps, PoissonSteps, Settings
from bayesdp.jax_privacy.sampling import Sampling, checked_records
from bayesdp.jax_privacy.watched_run import Watch
from bayesdp.run_ledger import Ledger
from bayesdp.validation import count, positive, refuse

_DECLARED = ("unit", "audit_ids", "audit_groups", "data", "metadata", "keep_norms", "gate", "budget", "audit_used_for")


def watch(
    grad_fn: Any,
    privatizer: Any,
    batches: Any,
    *,
    ledger: Ledger | str | Path,
    audit: Any = None,
    every: int = 1,
    audit_batch: int = 128,
    steps: int | None = None,
    records: int | None = None,
    noise_multiplier: float | None = None,
    random_draws: Literal["estimate", "clip"] = "estimate",
    **declared: Any,
) -> Watch:
    """Record every step of a run with JAX Privacy; call it once, before training, and train with what it returns.

        watched = bayesdp.jax_privacy.watch(grad_fn, privatizer, strategy, ledger="run.ledger", audit=(x, y))

        @watched.jit                                    # in the place of @jax.jit
        def update(params, noise_state, x, y, is_padding_example):
            sums, aux = watched.grad_fn(params, x, y, is_padding_example=is_padding_example)
            noisy, noise_state = watched.privatizer.update(sums, noise_state)
            ...

    Formal guarantees: a step is in the ledger, on disk, before its result is returned. A step that cannot be accounted
    is refused with InvalidInputError, by this call or by the first step that shows it, and nothing of it is returned.
    (On a GPU or TPU norms are fetched with the next step: an audit norm that is not finite is refused one step later,
    and its step stays at the clip bound.) Nothing that is returned differs from what it would be without ``watch``.

    Read from the objects: clip bound, ``rescale_to_unit_norm``, ``normalize_by``, layers that are clipped apart and
    ``microbatch_size`` from ``grad_fn``; the noise from ``privatizer``; the law of sampling from ``batches``; norms,
    padding and parameters from each step. Declared by you: that batches really are drawn as ``batches`` says (their
    sizes are compared with it), that audit records are not trained on, and that nothing but the noisy gradient leaves
    the step: losses and norms of a batch are not private.

    Arguments:
        grad_fn: What ``clipped_grad(..., return_grad_norms=True)`` returned, or ``clipped_fun(..., return_norms=True)``
            for gradients.
        privatizer: What ``gaussian_privatizer`` returned.
        batches: The batch selection strategy that draws the batches, or ``Epochs(n)`` for a loader that has n batches
            in an epoch. Only ``CyclicPoissonSampling`` without truncation and with one group is Poisson sampling;
            anything else is accounted without amplification by sampling.
        ledger: Where to record: an open ``Ledger``, or the path of a new one, which ``Watch.close`` closes.
        audit: People from the same population who are not trained on, as ``grad_fn`` takes a batch: a tuple with an
            entry for each of ``batch_argnums``, or the batch itself if that is one number. Without it there is the
            worst case only.
        every: Audit norms are computed at the first step and at every ``every``-th after it; at the other steps audit
            records are charged at the clip bound.
        audit_batch: How many audit records go through the model at once.
        steps: How many steps there will be at most: the plan, for which the claim for everyone is then proved. If not
            given, the ``iterations`` of the strategy. For a ledger that exists, ``Ledger.create(plan=...)`` has it.
        records: The number of training records, if it may be known to everyone: sizes of batches are compared with it.
        noise_multiplier: The noise multiplier that you have accounted for, to be compared with what the objects do:
            noise of ``privatizer`` over the bound of ``grad_fn``.
        random_draws: What to do if the gradient of a record depends on random numbers (dropout), so that an audit norm
            is that of one draw: keep the norms and call shares estimates ("estimate"), or charge audit records at the
            clip bound ("clip").
        declared: Anything else that ``Ledger.create`` takes, for the path of a new ledger.

    Raises InvalidInputError for what cannot be accounted, among it ``pre_clipping_transform`` (norms are of the
    gradient before it), ``nan_safe=False``, correlated noise, unbounded clipping and several processes; LedgerError if
    the ledger cannot be used.
    """
    if random_draws not in ("estimate", "clip"):
        raise refuse("random_draws", random_draws, "'estimate' or 'clip'")
    if jax.process_count() > 1:
        raise refuse("jax.process_count()", jax.process_count(), "one process, with any number of devices")
    _check_declared(declared, ledger)
    gradient, sampling = ClippedGradient.of(grad_fn), Sampling.of(batches)
    stddev = noise_stddev(privatizer, sampling.iterations)
    _check_noise(noise_multiplier, stddev / float(grad_fn.l2_norm_bound), gradient)
    asked = AuditRecords(audit, gradient, every=every, audit_batch=audit_batch) if audit is not None else None
    if asked is not None and isinstance(ledger, Ledger) and ledger.audit_records not in (0, asked.records):
        raise refuse("len(audit)", asked.records, f"the {ledger.audit_records} audit records of the ledger")
    settings = Settings(
        noise_std=gradient.noise_std(stddev),
        sample_rate=1.0 if sampling.rate is None else sampling.rate,
        clip=gradient.clip,
    )
    number = checked_records(records)
    opened = _opened(ledger, settings, sampling, steps, number, declared)
    poisson = sampling.rate is not None
    recorder = PoissonSteps(opened, settings, number) if poisson else EpochSteps(opened, settings, sampling)
    owned = not isinstance(ledger, Ledger)
    return Watch(grad_fn, privatizer, gradient, recorder, opened, asked, random_draws=random_draws, owned=owned)


def _opened(
    ledger: Ledger | str | Path,
    settings: Settings,
    sampling: Sampling,
    steps: int | None,
    records: int | None,
    declared: dict[str, Any],
) -> Ledger:
    if isinstance(ledger, Ledger):
        if steps is not None:
            expected = "the path of a new ledger; of one that exists Ledger.create(plan=...) has the plan"
            raise refuse("steps", steps, expected)
        return ledger
    planned = sampling.iterations if steps is None else count("steps", steps, minimum=1)
    plan = None
    if planned:
        releases = -(-planned // sampling.batches) if sampling.rate is None else planned
        plan = Plan(steps=releases, noise_std=settings.noise_std, sample_rate=settings.sample_rate, clip=settings.clip)
    return Ledger.create(ledger, plan=plan, training_records=records, **declared)


def _check_declared(declared: dict[str, Any], ledger: Ledger | str | Path) -> None:
    """Raise TypeError for an argument that nobody takes, InvalidInputError for one that comes too late."""
    for name, value in declared.items():
        if name not in _DECLARED:
            raise TypeError(f"watch() got an unexpected keyword argument {name!r}")
        if isinstance(ledger, Ledger):
            raise refuse(name, value, f"the path of a new ledger; for one that exists, Ledger.create({name}=...)")


def _check_noise(declared: float | None, actual: float, gradient: ClippedGradient) -> None:
    """Raise if the noise multiplier that was accounted for is not that of the objects."""
    if declared is None or math.isclose(positive("noise_multiplier", declared), actual, rel_tol=1e-6):
        return
    expected = f"{actual:.6g}, the noise of the privatizer over the bound of grad_fn"
    if math.isclose(actual, declared * gradient.normalize_by, rel_tol=1e-6):
        expected += ": the noise of a sum is added to a mean, so multiply grad_fn.sensitivity() by the multiplier"
    raise refuse("noise_multiplier", declared, expected)
