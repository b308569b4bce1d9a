"""Loops that clip something else than the gradient of one pass: augmented copies, masks, several passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bayesdp import InvalidInputError, Ledger
from bayesdp.opacus import OneByOne
from opacus_runs import Run, audit_norms, batch_norms, private_run, random_data

RECORDS, COPIES = 20, 3


def copies_of(x: torch.Tensor) -> torch.Tensor:
    """Return copies of each record, which follow each other, [COPIES b, features]."""
    return torch.stack([x, x.flip(1), 0.5 * x], dim=1).flatten(0, 1)


def step_with_copies(run: Run, x: torch.Tensor, y: torch.Tensor) -> None:
    """Augmentation multiplicity: the mean over copies of a record is clipped (De et al. 2022, arXiv:2204.13650)."""
    run.optimizer.zero_grad()
    run.loss(run.model(copies_of(x)), y.repeat_interleave(COPIES)).backward()
    for parameter in run.optimizer.params:
        parameter.grad_sample = parameter.grad_sample.unflatten(0, (len(x), COPIES)).mean(1)
    run.optimizer.step()


def loss_of_copies(model: Any, record: Any) -> torch.Tensor:
    x, y = record
    return nn.functional.cross_entropy(model(copies_of(x)), y.repeat_interleave(COPIES))


def masked(gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [gradient * (number % 2) for number, gradient in enumerate(gradients)]


def step_with_a_mask(run: Run, x: torch.Tensor, y: torch.Tensor) -> None:
    run.optimizer.zero_grad()
    run.loss(run.model(x), y).backward()
    for number, parameter in enumerate(run.optimizer.params):
        parameter.grad_sample *= number % 2
    run.optimizer.step()


def loss_of_one(model: Any, record: Any) -> torch.Tensor:
    x, y = record
    return nn.functional.cross_entropy(model(x), y)


LOOPS: dict[str, tuple[Any, dict[str, Any]]] = {
    "copies": (step_with_copies, {"loss": loss_of_copies}),
    "mask": (step_with_a_mask, {"loss": loss_of_one, "change": masked}),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_the_norms_are_those_that_training_clips(loop: str) -> None:
    """The whole training set is drawn, and is the audit set."""
    step, options = LOOPS[loop]
    data = random_data(RECORDS)
    run, ledger = private_run(data=data, batch=RECORDS), Ledger(keep_norms=True)
    audit = OneByOne(run.model, run.optimizer, run.loader, audit=data, **options)
    with run.watch(ledger, audit=audit):
        for _ in range(2):
            for x, y in run.loader:
                step(run, x, y)
    assert ledger.history.caveats == []
    for number in (1, 2):
        assert np.allclose(audit_norms(ledger, number), batch_norms(ledger, number), rtol=1e-4)


@pytest.mark.parametrize("loop", LOOPS)
def test_an_ordinary_audit_says_that_gradients_were_changed(loop: str) -> None:
    data = random_data(RECORDS)
    run, ledger = private_run(data=data, batch=RECORDS, max_grad_norm=20.0), Ledger(keep_norms=True)
    watched = run.watch(ledger, audit=data, loss=run.loss)
    for x, y in run.loader:
        LOOPS[loop][0](run, x, y)
    assert ledger.history.caveats == ["changed-gradients"]
    assert not np.allclose(audit_norms(ledger, 1), batch_norms(ledger, 1), rtol=1e-2)
    claims = watched.claims(shares=[0.5])
    assert claims.everyone.kind == "proved"
    assert claims.share(0.5).ex_post.kind == "estimate"
    assert "the training loop changed gradients" in claims.statement(all=True)


@pytest.mark.parametrize("loop", LOOPS)
def test_training_is_the_same(loop: str) -> None:
    step, options = LOOPS[loop]
    parameters = []
    for watched in (False, True):
        run = private_run()
        if watched:
            audit = OneByOne(run.model, run.optimizer, run.loader, audit=random_data(10, seed=9), **options)
            run.watch(Ledger(), audit=audit)
        for x, y in run.loader:
            step(run, x, y)
        parameters.append(run.parameters.tobytes())
    assert parameters[0] == parameters[1]


def test_every_third_step_and_bad_input() -> None:
    run = private_run()
    audit = OneByOne(run.model, run.optimizer, run.loader, audit=random_data(5), loss=loss_of_one, every=3)
    assert [audit.due() for _ in range(5)] == [True, False, False, True, False]
    assert audit.records == 5
    bad = OneByOne(
        run.model, run.optimizer, run.loader, audit=random_data(5), loss=lambda model, record: model(record[0])
    )
    with pytest.raises(InvalidInputError, match=r"loss\(model, record\)=\(1, 3\): expected one number"):
        bad.norms()
    with pytest.raises(InvalidInputError, match="every=0"):
        OneByOne(run.model, run.optimizer, run.loader, audit=random_data(5), loss=loss_of_one, every=0)
