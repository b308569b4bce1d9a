"""Every way in which Opacus clips: accounted as it really works, or refused before anything is released."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
import pytest
import torch
from opacus.optimizers import DPOptimizer
from opacus.schedulers import ExponentialGradClip, ExponentialNoise

from bayesdp import InvalidInputError, Ledger
from opacus_runs import (
    RATE,
    audit_norms,
    batch_norms,
    norms_by_autograd,
    private_run,
    random_data,
    settings,
    small_model,
)


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ew", "ghost"])
def test_flat_clipping(ledger: Ledger, mode: str) -> None:
    run = private_run(mode=mode, noise_multiplier=1.5, max_grad_norm=0.8)
    run.watch(ledger, audit=random_data(20, seed=9), loss=run.loss)
    for x, y in run.loader:
        batch = np.linalg.norm(norms_by_autograd(run.model._module, x, y), axis=1) if len(x) else np.zeros(0)
        audit = np.linalg.norm(norms_by_autograd(run.model._module, *random_data(20, seed=9)), axis=1)
        run.step(x, y)
        assert np.allclose(batch_norms(ledger, ledger.steps), batch, rtol=1e-4)
        assert np.allclose(audit_norms(ledger, ledger.steps), audit, rtol=1e-4)
    assert settings(ledger) == [(1.5 * 0.8, RATE, 0.8, 10)]


def test_hooks_without_a_wrapped_model(ledger: Ledger) -> None:
    model = small_model()
    run = private_run(model, wrap_model=False)
    run.watch(ledger, audit=random_data(20, seed=9), loss=run.loss)
    x, y = next(iter(run.loader))
    expected = np.linalg.norm(norms_by_autograd(model, x, y), axis=1)
    run.model = model
    run.step(x, y)
    assert np.allclose(batch_norms(ledger, 1), expected, rtol=1e-4)
    assert len(audit_norms(ledger, 1)) == 20


def test_per_layer_clipping(ledger: Ledger) -> None:
    """The norm of the clipped pieces together counts, for batch and audit records."""
    bounds = [0.3, 0.2, 0.4, 0.1]
    run = private_run(clipping="per_layer", max_grad_norm=bounds)
    run.watch(ledger, audit=random_data(20, seed=9), loss=run.loss)
    x, y = next(iter(run.loader))
    expected = [
        np.linalg.norm(np.minimum(norms_by_autograd(run.model._module, *data), bounds), axis=1)
        for data in ((x, y), random_data(20, seed=9))
    ]
    run.step(x, y)
    assert np.allclose(batch_norms(ledger, 1), expected[0], rtol=1e-5)
    assert np.allclose(audit_norms(ledger, 1), expected[1], rtol=1e-5)
    [(noise_std, _, clip, _)] = settings(ledger)
    assert clip == pytest.approx(math.hypot(*bounds))
    assert noise_std == pytest.approx(math.hypot(*bounds))


def test_per_layer_clipping_by_other_bounds_than_the_noise_is_refused(ledger: Ledger) -> None:
    run = private_run(clipping="per_layer", max_grad_norm=[0.3, 0.2, 0.4, 0.1])
    run.watch(ledger)
    ExponentialGradClip(run.optimizer, gamma=0.5).step()  # changes the noise, not the bounds
    before = run.parameters
    with pytest.raises(InvalidInputError, match=r"max_grad_norm=0\.27.*: expected the bound 0\.54"):
        run.train(most=1)
    assert np.array_equal(run.parameters, before)
    assert ledger.steps == 0


def test_noise_and_clip_schedulers_are_read_at_each_step(ledger: Ledger) -> None:
    run = private_run(noise_multiplier=2.0, max_grad_norm=0.5)
    run.watch(ledger)
    noise, clip = ExponentialNoise(run.optimizer, gamma=0.9), ExponentialGradClip(run.optimizer, gamma=0.8)
    for x, y in run.loader:
        run.step(x, y)
        noise.step()
        clip.step()
    expected = [(2 * 0.9**t * 0.5 * 0.8**t, RATE, 0.5 * 0.8**t, 1) for t in range(10)]
    assert np.allclose(settings(ledger), expected, rtol=1e-12)


@pytest.mark.parametrize("how", ["as it is", "other norms first", "no norms"])
def test_norms_are_those_of_opacus_or_computed(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """The norms that Opacus computes while it clips are used only if they are the right ones."""
    clip = DPOptimizer.clip_and_accumulate

    def other(self: Any) -> None:
        if how == "other norms first":
            for grad in self.grad_samples:
                (2 * grad.reshape(len(grad), -1)).norm(2, dim=-1)
        with torch._C.DisableTorchFunction() if how == "no norms" else contextlib.nullcontext():
            clip(self)

    monkeypatch.setattr(DPOptimizer, "clip_and_accumulate", other)
    run = private_run()
    watched = run.watch(ledger)
    for x, y in run.loader:
        expected = np.linalg.norm(norms_by_autograd(run.model._module, x, y), axis=1)
        run.step(x, y)
        assert np.allclose(batch_norms(ledger, ledger.steps), expected, rtol=1e-4)
    assert watched._clipping._sees_norms is (how == "as it is")


def test_gradients_that_are_not_finite_contribute_nothing(ledger: Ledger) -> None:
    """Also if all of them are: what is released is noise."""
    x, y = random_data(200)
    x[:, 0] = np.nan
    run = private_run(data=(x, y))
    run.watch(ledger)
    before = run.parameters
    run.train(most=1)
    assert np.isfinite(run.parameters).all()
    assert not np.array_equal(run.parameters, before)
    assert ledger.steps == 1


def test_a_step_without_backward_is_refused_by_opacus(ledger: Ledger) -> None:
    run = private_run()
    run.watch(ledger)
    with pytest.raises(ValueError, match="Per sample gradient is not initialized"):
        run.optimizer.step()
    run.train(most=1)
    assert ledger.steps == 1
