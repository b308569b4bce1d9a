"""A record that breaks a gradient contributes nothing: no error, no other parameters, no step less gives it away."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from bayesdp import Ledger
from opacus_runs import private_run, random_data

RECORD = 7


def hostile_data(value: float) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = random_data(200, seed=0)
    x = x.clone()
    x[RECORD] = value
    return x, y


@pytest.mark.parametrize("value", [3e37, float("inf"), float("nan")])
@pytest.mark.parametrize("options", [{}, {"clipping": "per_layer", "max_grad_norm": [1.0] * 4}], ids=["flat", "layers"])
def test_training_goes_on_as_if_it_had_contributed_nothing(value: float, options: dict[str, Any]) -> None:
    run, ledger = private_run(data=hostile_data(value), noise_multiplier=2.0, **options), Ledger(keep_norms=True)
    watched = run.watch(ledger)
    run.train()
    run.train()
    watched.close()
    parameters = torch.cat([parameter.detach().flatten() for parameter in run.model.parameters()])
    assert torch.isfinite(parameters).all()
    assert ledger.steps == 20
    norms = np.concatenate([ledger.private_norms(step)[1] for step in range(1, 21)])
    drawn_and_broken = np.count_nonzero(norms == 0)
    assert (0 < drawn_and_broken < 10) == (not np.isfinite(value))  # 3e37 is clipped like any other


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
