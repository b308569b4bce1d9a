"""Audit records without a finite norm are refused before anything is created, by their number."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from bayesdp import InvalidInputError, Ledger
from opacus_runs import private_run, random_data


def audit_with(value: float, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = random_data(30, seed=9)
    x[number, 0] = value
    return x, y


@pytest.mark.parametrize("options", [{}, {"mode": "ghost"}, {"mode": "functorch"}])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
@pytest.mark.parametrize("number", [0, 17])
@pytest.mark.parametrize("training", [True, False])
def test_the_first_bad_record_is_named(
    options: dict[str, Any], value: float, number: int, training: bool, tmp_path: Path
) -> None:
    run = private_run(**options)
    run.model.train(training)
    audit = audit_with(value, number)
    audit[0][25] = float("nan")
    with pytest.raises(
        InvalidInputError, match=rf"^audit\[{number}\]=(nan|inf): expected a finite gradient norm: .*\Z"
    ):
        run.watch(tmp_path / "run.ledger", audit=audit, loss=run.loss, audit_batch=8)
    assert list(tmp_path.iterdir()) == []
    assert "pre_step" not in vars(run.optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        run.watch(tmp_path / "run.ledger", audit=random_data(30), loss=run.loss).close()


def test_random_numbers_stay_as_they_are() -> None:
    run = private_run(torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3)))
    state = torch.get_rng_state()
    run.watch(Ledger(), audit=random_data(30, seed=9), loss=run.loss)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_step_that_was_not_recorded_is_no_update(ledger: Ledger) -> None:
    """Its norms turn out not to be finite; no warning says that privacy was spent."""

    class Norms:
        records = 3

        def due(self) -> bool:
            return True

        def norms(self) -> torch.Tensor:
            return torch.tensor([1.0, torch.nan, 1.0])

    run = private_run()
    watched = run.watch(ledger, audit=Norms())
    with pytest.raises(InvalidInputError, match=re.escape("audit")):
        run.train()
    assert ledger.steps == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        watched.close()
