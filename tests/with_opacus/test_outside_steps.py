"""Training that goes on after ``close``: claims of a part of a run are not given out as those of the run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bayesdp import InvalidInputError, Ledger
from opacus_runs import private_run

ACCOUNTANTS = ["rdp", "prv", "bayesdp"]
GONE_ON = r"watch='closed 10 steps ago': expected it to be closed after the last step.*Ledger\.open"


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("poisson", [True, False])
def test_a_watch_that_is_closed_in_each_epoch_has_no_statement(
    tmp_path: Path, accountant: str, *, poisson: bool
) -> None:
    """As when the last lines of a script are indented by mistake: the second statement would repeat the first."""
    run = private_run(accountant=accountant, poisson_sampling=poisson)
    watched = run.watch(tmp_path / "run.ledger")
    run.train()
    first = watched.statement()
    watched.close()
    assert watched.statement() == first
    run.train()
    with pytest.raises(InvalidInputError, match=GONE_ON):
        watched.statement()
    with pytest.raises(InvalidInputError, match=GONE_ON):
        watched.claims()


def test_the_way_out_that_the_refusal_names() -> None:
    """The ledger is charged with the steps when it is watched again, and then both watches have claims."""
    run, ledger = private_run(), Ledger()
    watched = run.watch(ledger)
    run.train()
    watched.close()
    run.train()
    again = run.watch(ledger)
    run.train()
    assert again.claims().everyone.epsilon == watched.claims().everyone.epsilon
    assert ledger.steps == 30


def test_parameters_that_are_restored_are_no_training(ledger: Ledger) -> None:
    run = private_run()
    watched = run.watch(ledger)
    best = {name: values.clone() for name, values in run.model.state_dict().items()}
    run.train()
    watched.close()
    run.model.load_state_dict(best)
    with torch.no_grad():
        next(run.model.parameters()).mul_(0.5)
    assert watched.claims().everyone.epsilon > 0


def test_another_model_of_the_same_engine_is_none_of_its_business(ledger: Ledger) -> None:
    run, other = private_run(), private_run(seed=7)
    watched = run.watch(ledger)
    run.train()
    watched.close()
    other.optimizer.attach_step_hook(run.engine.accountant.get_optimizer_hook_fn(0.1))
    other.train()
    assert watched.claims().everyone.epsilon > 0


def test_a_plan_cannot_be_continued_without_some_of_the_steps(tmp_path: Path) -> None:
    """The refusal is about the ledger that was given, not about a new one."""
    run, path = private_run(), tmp_path / "run.ledger"
    watched = run.watch(path, steps=60)
    run.train()
    watched.close()
    run.train()
    with (
        Ledger.open(path) as ledger,
        pytest.raises(
            InvalidInputError, match=r"ledger='one without the last 10 steps': expected a ledger with every step.*new"
        ),
    ):
        run.watch(ledger)
    new = run.watch(tmp_path / "new.ledger")  # the way out that it names
    assert new.ledger.steps == 20
    new.close()
