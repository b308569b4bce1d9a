"""Runs that train nothing are reported; the privacy they spend is accounted all the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from bayesdp import InvalidInputError, Ledger
from bayesdp.opacus import UntrainedWarning
from opacus_runs import CLASSES, FEATURES, private_run, random_data


def test_parameters_that_do_not_move(ledger: Ledger) -> None:
    run = private_run()
    run.optimizer.param_groups[0]["lr"] = 0.0
    run.watch(ledger)
    with pytest.warns(
        UntrainedWarning, match=r"After 8 updates: 4 of 4 trained parameters have not moved \(the first is 0\.weight"
    ):
        run.train()
    run.train()  # says it once: a second warning would be an error here
    assert ledger.steps == 20


def test_a_short_run_is_looked_at_when_it_ends(ledger: Ledger) -> None:
    run = private_run()
    run.optimizer.param_groups[0]["lr"] = 0.0
    watched = run.watch(ledger)
    run.train(most=2)
    with pytest.warns(UntrainedWarning, match="After 2 updates: 4 of 4"):
        watched.close()


def test_weights_that_were_replaced_after_the_optimizer_was_made(ledger: Ledger) -> None:
    """The model then keeps what was loaded, and the optimizer has tensors that nobody uses."""
    run = private_run()
    watched = run.watch(ledger)
    run.train(most=1)
    state = {name: value.clone() for name, value in run.model._module.state_dict().items()}
    run.model._module.load_state_dict(state, assign=True)
    with pytest.warns(UntrainedWarning, match="4 of the optimizer's parameters are not in the model any more"):
        watched.close()


class Unused(nn.Module):
    """A trained layer whose output is multiplied by 0: adapters that were switched off, for instance."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(FEATURES, CLASSES).requires_grad_(False)
        self.adapter = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x) + 0.0 * self.adapter(x)


def test_a_loss_that_does_not_depend_on_what_is_trained(ledger: Ledger) -> None:
    run = private_run(Unused())
    run.watch(ledger, audit=random_data(30, seed=9), loss=run.loss)
    with pytest.warns(UntrainedWarning, match="After 8 updates: the gradients of all audit records are 0"):
        run.train()


class Spare(nn.Module):
    """A model with a trained layer that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(FEATURES, CLASSES), nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


@pytest.mark.parametrize("audited", [True, False])
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_layer_that_is_not_used_is_refused(ledger: Ledger, mode: str, *, audited: bool) -> None:
    run = private_run(Spare(), mode=mode)

    def watch_and_train() -> None:
        run.watch(ledger, **({"audit": random_data(30, seed=9), "loss": run.loss} if audited else {}))
        run.train()

    with pytest.raises(InvalidInputError, match=r"trained parameters='some without a gradient': expected .* freeze"):
        watch_and_train()
    assert ledger.steps == 0


def test_a_schedule_that_begins_at_0_is_not_reported(ledger: Ledger) -> None:
    run = private_run()
    schedule = torch.optim.lr_scheduler.LambdaLR(run.optimizer, lambda step: min(1.0, step / 5))
    with run.watch(ledger):
        for x, y in run.loader:
            run.step(x, y)
            schedule.step()
    assert ledger.steps == 10


def frozen(run: Any) -> None:
    for parameter in run.model.parameters():
        parameter.requires_grad_(False)


def foreign(run: Any) -> None:
    other = nn.Linear(2, 2)
    other.weight.grad_sample = None
    run.optimizer.param_groups[0]["params"].append(other.weight)


@pytest.mark.parametrize(("change", "value"), [(frozen, "no trained parameters"), (foreign, "parameters of another")])
def test_nothing_to_train_is_refused_by_watch(change: Any, value: str) -> None:
    run = private_run()
    change(run)
    with pytest.raises(InvalidInputError, match=rf"optimizer\.param_groups='{value}"):
        run.watch(Ledger())
