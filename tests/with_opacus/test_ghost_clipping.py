"""Ghost clipping: norms without gradients, and what would make them wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from opacus.schedulers import ExponentialGradClip
from torch import nn

from bayesdp import InvalidInputError, Ledger
from opacus_runs import RATE, Run, private_run, random_data, settings


def test_ghost_clipping_with_another_bound_than_the_noise_is_refused(ledger: Ledger) -> None:
    run = private_run(mode="ghost")
    run.watch(ledger)
    run.train(most=1)
    before = run.parameters
    ExponentialGradClip(run.optimizer, gamma=0.5).step()  # the optimizer's bound, not the module's
    with pytest.raises(InvalidInputError, match=r"max_grad_norm=0\.5: expected the bound 1 with which"):
        run.train(most=1)
    assert np.array_equal(run.parameters, before)
    assert ledger.steps == 1
    run.model.max_grad_norm = 0.5  # the way out
    run.train(most=1)
    assert settings(ledger)[1] == (0.5, RATE, 0.5, 1)


def test_ghost_norms_of_another_pass_are_refused(ledger: Ledger) -> None:
    """A forward pass without backward leaves Opacus with norms of an earlier batch, and it would clip by them."""
    layers = nn.Unflatten(1, (1, 3, 4)), nn.Conv2d(1, 3, (3, 4)), nn.Flatten()
    run = private_run(nn.Sequential(*layers), mode="ghost", poisson_sampling=False, shuffle=True)
    run.watch(ledger)
    run.train(most=1)
    before = run.parameters
    run.model(random_data(20)[0])
    with pytest.raises(InvalidInputError, match="a pass without backward"):
        run.train(most=1)
    assert np.array_equal(run.parameters, before)


def test_what_is_added_to_a_ghost_gradient_is_refused(ledger: Ledger) -> None:
    """What is added was not clipped."""
    run = private_run(mode="ghost")
    run.watch(ledger)
    x, y = next(iter(run.loader))
    run.optimizer.zero_grad()
    run.loss(run.model(x), y).backward()
    (100 * sum(parameter.square().sum() for parameter in run.model.parameters())).backward()
    before = run.parameters
    with pytest.raises(InvalidInputError, match=r"\|gradient\|=.*something else was added"):
        run.optimizer.step()
    assert np.array_equal(run.parameters, before)
    assert ledger.steps == 0


def doubled(run: Run) -> None:
    run.optimizer.params[1].grad.mul_(2)


def replaced(run: Run) -> None:
    run.optimizer.params[0].grad = 1.5 * run.optimizer.params[0].grad


def removed(run: Run) -> None:
    run.optimizer.params[0].grad = None


def clipped(run: Run) -> None:
    nn.utils.clip_grad_norm_(run.model.parameters(), 0.5)


@pytest.mark.parametrize("change", [doubled, replaced, removed, clipped])
@pytest.mark.parametrize("audit", [None, random_data(30, seed=9)])
def test_a_ghost_gradient_that_is_changed_before_the_step_is_refused(change: Any, audit: Any, ledger: Ledger) -> None:
    """It is clipped already; the noise would not be for its length."""
    run = private_run(mode="ghost")
    run.watch(ledger, audit=audit, loss=None if audit is None else run.loss)
    run.train(most=1)
    x, y = next(iter(run.loader))
    run.optimizer.zero_grad()
    run.loss(run.model(x), y).backward()
    change(run)
    before = run.parameters
    with pytest.raises(
        InvalidInputError, match=r"p\.grad='changed': expected the gradient as the backward pass left it"
    ):
        run.optimizer.step()
    assert np.array_equal(run.parameters, before)
    assert ledger.steps == 1


def test_gradients_of_other_modes_may_be_changed(ledger: Ledger) -> None:
    """Opacus replaces them by the sum of the clipped gradients of records, with noise."""
    results = []
    for changed in (False, True):
        run = private_run()
        run.watch(ledger if changed else Ledger())
        for x, y in run.loader:
            run.optimizer.zero_grad()
            run.loss(run.model(x), y).backward()
            if changed:
                doubled(run)
            run.optimizer.step()
        results.append(run.parameters)
    assert np.array_equal(*results)
    assert ledger.history.caveats == []


def test_a_ghost_bound_that_changes_after_the_backward_pass_is_refused(ledger: Ledger) -> None:
    run = private_run(mode="ghost")
    run.watch(ledger)
    x, y = next(iter(run.loader))
    run.loss(run.model(x), y).backward()
    run.model.max_grad_norm = run.optimizer.max_grad_norm = 0.25
    with pytest.raises(InvalidInputError, match=r"max_grad_norm=0\.25: expected the bound 1"):
        run.optimizer.step()
    assert ledger.steps == 0
