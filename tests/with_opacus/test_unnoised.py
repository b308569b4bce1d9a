"""Updates of the model without noise are refused before they are applied: nothing of them would be in the ledger."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from bayesdp import InvalidInputError, Ledger
from opacus_runs import CLASSES, FEATURES, private_run, random_data, small_model

pytestmark = pytest.mark.filterwarnings("ignore:After:bayesdp.opacus.UntrainedWarning")


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("first", [True, False])
def test_a_second_optimizer_is_refused(mode: str, first: bool) -> None:
    """Before the private step its gradients are raw, and those of layers that Opacus does not know always are."""
    model = small_model()
    plain = torch.optim.SGD(model[2].parameters(), lr=0.1)
    run = private_run(model, mode=mode)
    if not first:
        run.optimizer.param_groups[0]["params"] = list(model[0].parameters())
    before = model[2].weight.detach().clone()
    with run.watch(Ledger()):
        x, y = next(iter(run.loader))
        run.loss(run.model(x), y).backward()
        if not first:
            run.optimizer.step()
        with pytest.raises(InvalidInputError, match="optimizer='SGD': expected the watched optimizer alone"):
            plain.step()
    assert torch.equal(model[2].weight, before)
    plain.step()  # nobody watches any more


def test_parameters_that_are_frozen_after_the_backward_pass_are_not_updated() -> None:
    run = private_run(small_model())
    before = run.model._module[2].weight.detach().clone()
    with run.watch(Ledger()):
        x, y = next(iter(run.loader))
        run.loss(run.model(x), y).backward()
        run.model._module[2].requires_grad_(False)
        with pytest.raises(InvalidInputError, match="updated without noise"):
            run.optimizer.step()
    assert torch.equal(run.model._module[2].weight, before)


def test_gradients_with_noise_may_be_used_by_any_optimizer() -> None:
    """What is done with them is post-processing; and other models may be trained meanwhile."""
    model, other = small_model(), small_model(1)
    run, after, of_other = private_run(model), torch.optim.Adam(model.parameters()), torch.optim.SGD(other.parameters())
    with run.watch(Ledger()) as watched:
        for x, y in run.loader:
            run.step(x, y)
            after.step()
            nn.functional.cross_entropy(other(x), y).backward()
            of_other.step()
        run.model._module[0].requires_grad_(False)  # layers may be frozen between steps
        run.train()
        assert watched.ledger.steps == 2 * len(run.loader)


def test_the_optimizer_of_a_second_make_private_is_refused() -> None:
    """``watch`` does not know it, and its steps would be in no ledger."""
    run = private_run()
    again = private_run(run.model)
    with run.watch(Ledger()):
        again.loss(again.model(random_data(20)[0]), random_data(20)[1]).backward()
        with pytest.raises(InvalidInputError, match="optimizer='SGD': expected the watched optimizer alone"):
            again.optimizer.step()


@pytest.mark.parametrize("change", ["unfrozen", "added"])
def test_ghost_clipping_refuses_parameters_that_it_does_not_clip(change: str) -> None:
    """The module has fixed what it clips when it was made; others would enter the sum unclipped."""
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))
    model[0].requires_grad_(False)
    run, head = private_run(model, mode="ghost"), nn.Linear(CLASSES, CLASSES)
    with run.watch(Ledger()) as watched:
        run.train(most=2)
        if change == "unfrozen":
            model[0].requires_grad_(True)
        else:
            run.optimizer.add_param_group({"params": list(head.parameters())})
        before = np.concatenate([run.parameters, head.weight.detach().numpy().ravel()])
        x, y = next(iter(run.loader))
        output = run.model(x) if change == "unfrozen" else head(run.model(x))
        run.loss(output, y).backward()
        with pytest.raises(InvalidInputError, match=r"optimizer\.param_groups='more parameters'"):
            run.optimizer.step()
        after = np.concatenate([run.parameters, head.weight.detach().numpy().ravel()])
        assert watched.ledger.steps == 2
        assert np.array_equal(before, after)
