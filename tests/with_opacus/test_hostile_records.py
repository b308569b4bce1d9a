"""A record that breaks a gradient contributes nothing: no error, no other parameters, no step less gives it away."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bayesdp import Ledger
from opacus_runs import ADAPTIVE, private_run, random_data

RECORD = 7


MODES: dict[str, dict[str, Any]] = {
    "flat": {},
    "layers": {"clipping": "per_layer", "max_grad_norm": [1.0] * 4},
    "ghost": {"mode": "ghost"},
    "adaptive": ADAPTIVE | {"rand_on_empty": True},
}


def hostile_data(value: float) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = random_data(200, seed=0)
    x = x.clone()
    x[RECORD] = value
    return x, y


@pytest.mark.parametrize("value", [3e37, 3e38, float("inf"), float("nan")])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
def test_training_goes_on_as_if_it_had_contributed_nothing(value: float, mode: str, activation: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), activation(), nn.Linear(16, 3))
    run = private_run(model, data=hostile_data(value), noise_multiplier=2.0, **MODES[mode])
    ledger = Ledger(keep_norms=True)
    watched = run.watch(ledger)
    run.train()
    run.train()
    watched.close()
    parameters = torch.cat([parameter.detach().flatten() for parameter in run.model.parameters()])
    assert torch.isfinite(parameters).all()
    assert ledger.steps == 20
    norms = np.concatenate([ledger.private_norms(step)[1] for step in range(1, 21)])
    if not np.isfinite(value) and mode != "adaptive":  # there a norm of 0 counts beside the gradient
        assert 0 < np.count_nonzero(norms == 0) < 10


def test_gradients_that_are_infinite_in_one_layer_only() -> None:
    """Clipped by layers, the bound of a layer hides that its norm is infinite."""
    x, y = torch.rand(200, 12), torch.zeros(200)
    x[RECORD, 0] = torch.inf
    model = nn.Linear(12, 1)
    nn.init.ones_(model.weight)
    run = private_run(model, data=(x, y), clipping="per_layer", max_grad_norm=[1.0, 1.0])
    run.loss = lambda output, target: nn.functional.binary_cross_entropy_with_logits(output[:, 0], target)
    with run.watch(Ledger()):
        run.train(2)
    assert np.isfinite(run.parameters).all()


def test_the_ghost_gradient_is_that_of_the_others() -> None:
    """With the hostile record in the batch, and without it; the batch of the user stays as it was."""
    gradients = []
    for hostile in (True, False):
        x, y = (t.clone() for t in random_data(20, seed=0))
        if hostile:
            x[RECORD] = torch.inf
        keep = torch.arange(20) != RECORD
        data = (x, y) if hostile else (x[keep], y[keep])
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(12, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))
        run = private_run(model, data=data, batch=len(data[1]), mode="ghost", poisson_sampling=False)
        watched = run.watch(Ledger(keep_norms=True))
        [(inputs, targets)] = list(run.loader)
        run.loss(run.model(inputs), targets).backward()
        norms = watched._clipping.add_to_sum()
        assert np.count_nonzero(norms == 0) == hostile
        assert torch.equal(inputs, data[0])
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in run.optimizer.params]))
        watched.close()
    assert torch.isfinite(gradients[0]).all()
    assert torch.allclose(gradients[0], gradients[1], rtol=1e-5, atol=1e-6)


def test_the_sum_is_that_of_the_others() -> None:
    """One batch of all records: with the hostile one, and without any gradient of it."""
    sums = []
    for value in (float("nan"), None):
        data = random_data(20, seed=0) if value is None else tuple(t.clone() for t in random_data(20, seed=0))
        if value is not None:
            data[0][RECORD] = value
        run = private_run(records=20, batch=20, data=data, noise_multiplier=1.0, poisson_sampling=False)
        watched = run.watch(Ledger())
        [(inputs, targets)] = list(run.loader)
        run.optimizer.zero_grad()
        run.loss(run.model(inputs), targets).backward()
        if value is None:
            for parameter in run.optimizer.params:
                parameter.grad_sample[RECORD] = 0
        watched._clipping.add_to_sum()
        sums.append(torch.cat([parameter.summed_grad.flatten() for parameter in run.optimizer.params]))
        watched.close()
    assert torch.isfinite(sums[0]).all()
    assert torch.allclose(sums[0], sums[1], rtol=1e-6, atol=1e-7)
