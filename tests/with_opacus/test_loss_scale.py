"""A loss that is scaled before its backward pass: audit records have the norms that they would have in training."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn

from bayesdp import InvalidInputError, Ledger
from opacus_runs import Run, audit_norms, batch_norms, private_run, random_data, small_model

DATA = random_data(40)
ASSUMED = "the loss given for audit records is the one trained with"


def whole_run(**options: Any) -> Run:
    """Return a run whose batches are the whole training set, ``DATA``, and cut nothing."""
    return private_run(data=DATA, batch=len(DATA[0]), **({"max_grad_norm": 1e6} | options))


def train(run: Run, scaled: Callable[[Any], Any]) -> None:
    for x, y in run.loader:
        run.optimizer.zero_grad()
        scaled(run.loss(run.model(x), y)).backward()
        run.optimizer.step()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
@pytest.mark.parametrize("factor", [1000.0, -3.0, 1.0])
def test_norms_are_scaled_as_the_loss_is(mode: str, factor: float, reduction: str, ledger: Ledger) -> None:
    run = whole_run(mode=mode, loss_reduction=reduction)
    run.loss = run.loss if mode == "ghost" else nn.CrossEntropyLoss(reduction=reduction)
    run.watch(ledger, audit=DATA, loss=run.loss)
    train(run, lambda loss: factor * loss)
    assert np.allclose(audit_norms(ledger, 1), batch_norms(ledger, 1), rtol=1e-4)
    assert ledger.history.caveats == []


def test_a_grad_scaler_is_seen(ledger: Ledger) -> None:
    run, scaler = whole_run(), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    run.watch(ledger, audit=DATA, loss=run.loss)
    for x, y in run.loader:
        scaler.scale(run.loss(run.model(x), y)).backward()
        scaler.step(run.optimizer)
        scaler.update()
    assert np.allclose(audit_norms(ledger, 1), batch_norms(ledger, 1), rtol=1e-4)
    assert ledger.history.caveats == []


def test_claims_are_those_of_the_loss_that_is_trained_with() -> None:
    """A loss that is 1000 times as large has the claims of 1000 times that loss."""

    def thousandfold(model: Any, batch: Any) -> torch.Tensor:
        return 1000 * nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    epsilons = []
    for given in (nn.CrossEntropyLoss(), thousandfold):
        run, criterion = private_run(), given if isinstance(given, nn.Module) else nn.CrossEntropyLoss()
        run.loss = criterion
        with Ledger() as ledger, run.watch(ledger, audit=random_data(60, seed=9), loss=given) as watched:
            train(run, lambda loss: 1000 * loss)
            epsilons.append(watched.claims(shares=[0.5]).share(0.5).ex_post.epsilon)
    assert epsilons[0] == pytest.approx(epsilons[1], rel=1e-6)


def test_norms_are_never_made_smaller(ledger: Ledger) -> None:
    run = whole_run()
    run.watch(ledger, audit=DATA, loss=run.loss)
    train(run, lambda loss: loss / 4)
    assert np.allclose(audit_norms(ledger, 1), 4 * batch_norms(ledger, 1), rtol=1e-4)


def test_losses_that_are_added_up_count_together(ledger: Ledger) -> None:
    run = whole_run()
    run.watch(ledger, audit=DATA, loss=run.loss)
    for x, y in run.loader:
        output = run.model(x)
        (run.loss(output, y) + 2 * run.loss(output, y)).backward()
        run.optimizer.step()
    assert np.allclose(audit_norms(ledger, 1), batch_norms(ledger, 1), rtol=1e-4)


@pytest.mark.parametrize("factors", [[5.0, 1.0, 1.0], [1.0, 1.0, 5.0], [0.5, 0.5, 0.5]])
def test_of_the_parts_of_a_batch_the_largest_factor_counts(factors: list[float], ledger: Ledger) -> None:
    run, scales = whole_run(), iter(factors)
    run.watch(ledger, audit=DATA, loss=run.loss)
    manager = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=14, optimizer=run.optimizer)
    with manager as loader:
        for x, y in loader:
            run.optimizer.zero_grad()
            (next(scales) * run.loss(run.model(x), y)).backward()
            run.optimizer.step()
    assert ledger.steps == 1
    each = np.repeat(factors, [14, 13, 13])
    assert np.allclose(audit_norms(ledger, 1), batch_norms(ledger, 1) / each * max(*factors, 1.0), rtol=1e-4)


def test_each_step_has_its_own_factor(ledger: Ledger) -> None:
    run, factors = whole_run(), [7.0, 1.0, 3.0]
    run.watch(ledger, audit=DATA, loss=run.loss)
    for factor in factors:
        train(run, lambda loss, factor=factor: factor * loss)
    for step in (1, 2, 3):
        assert np.allclose(audit_norms(ledger, step), batch_norms(ledger, step), rtol=1e-4)


@pytest.mark.parametrize("factor", [0.0, float("inf"), float("nan")])
def test_a_factor_that_says_nothing_charges_the_clip_bound(factor: float, ledger: Ledger) -> None:
    run = whole_run(max_grad_norm=1.5)
    run.watch(ledger, audit=DATA, loss=run.loss)
    train(run, lambda loss: factor * loss)
    assert np.allclose(audit_norms(ledger, 1), 1.5, rtol=1e-5)
    assert audit_norms(ledger, 1).min() >= 1.5


def test_what_is_no_training_does_not_count(ledger: Ledger) -> None:
    """Evaluation, losses without a backward pass, an interrupted one; the audit calls the criterion at each step."""
    run = whole_run()
    run.watch(ledger, audit=DATA, loss=run.loss)
    with torch.no_grad():
        run.loss(run.model(DATA[0]), DATA[1])
    elsewhere = run.loss(torch.zeros(4, 3, requires_grad=True), torch.zeros(4, dtype=torch.long))
    elsewhere.register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        (9 * elsewhere).backward()
    train(run, lambda loss: 2 * loss)
    train(run, lambda loss: 20 * loss)
    assert np.allclose(audit_norms(ledger, 2), batch_norms(ledger, 2), rtol=1e-4)


def function(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output, target)


@pytest.mark.parametrize("given", [nn.CrossEntropyLoss(), function])
def test_a_loss_that_is_not_seen_in_training_is_an_assumption(given: Any) -> None:
    """Bounds stay bounds; only claims from audit records name it."""
    run, ledger = private_run(max_grad_norm=30.0), Ledger()
    watched = run.watch(ledger, audit=random_data(60, seed=9), loss=given)
    run.train()
    assert ledger.history.caveats == ["given-loss"]
    claims = watched.claims(shares=[0.5])
    assert claims.share(0.5).ex_post.kind == "ex-post"
    assert ASSUMED in claims.share(0.5).ex_post.assumptions
    assert ASSUMED in claims.share(0.5).estimate.assumptions
    assert ASSUMED not in claims.everyone.assumptions
    assert ASSUMED in claims.statement()


def test_a_loop_may_tell_its_loss(ledger: Ledger) -> None:
    run = whole_run()
    run.loss = function
    watched = run.watch(ledger, audit=DATA, loss=function)
    for x, y in run.loader:
        loss = run.loss(run.model(x), y)
        watched.note_loss(loss)
        (1000 * loss).backward()
        run.optimizer.step()
    assert np.allclose(audit_norms(ledger, 1), batch_norms(ledger, 1), rtol=1e-4)
    assert ledger.history.caveats == []


def test_a_loss_that_is_followed_counts_once(ledger: Ledger) -> None:
    run = whole_run()
    watched = run.watch(ledger, audit=DATA, loss=run.loss)

    def told(loss: Any) -> Any:
        watched.note_loss(loss)
        return 3 * loss

    train(run, told)
    assert np.allclose(audit_norms(ledger, 1), batch_norms(ledger, 1), rtol=1e-4)


AUDIT = random_data(60, seed=9)


def watched_run(ledger: Ledger, loss: Any = None, seed: int = 0) -> Run:
    run = private_run(seed=seed, max_grad_norm=30.0)
    run.loss = run.loss if loss is None else loss
    run.watch(ledger, audit=AUDIT, loss=run.loss)
    return run


@pytest.mark.parametrize("shared", [False, True])
def test_runs_may_share_a_criterion(shared: bool) -> None:
    """Their loops are interleaved; the audit of one is not the training of the other."""
    alone, ledgers = Ledger(keep_norms=True), [Ledger(keep_norms=True), Ledger(keep_norms=True)]
    watched_run(alone).train()
    run = watched_run(ledgers[0])
    other = watched_run(ledgers[1], loss=run.loss if shared else None, seed=3)
    for batch, other_batch in zip(run.loader, other.loader, strict=True):
        run.step(*batch)
        other.step(*other_batch)
    for step in (1, 2, 3):
        assert np.allclose(audit_norms(ledgers[0], step), audit_norms(alone, step), rtol=1e-6)


def test_the_dry_run_of_another_run_does_not_count() -> None:
    ledger = Ledger(keep_norms=True)
    run = watched_run(ledger)
    x, y = next(iter(run.loader))
    run.loss(run.model(x), y).backward()
    watched_run(Ledger(), loss=run.loss, seed=3)
    run.optimizer.step()
    alone = Ledger(keep_norms=True)
    watched_run(alone).train(most=1)
    assert np.allclose(audit_norms(ledger, 1), audit_norms(alone, 1), rtol=1e-6)


def test_empty_batches_without_a_loss_say_nothing(ledger: Ledger) -> None:
    run = private_run(records=40, batch=2)
    run.watch(ledger, audit=DATA, loss=run.loss)
    empty = 0
    for x, y in run.loader:
        run.optimizer.zero_grad()
        output = run.model(x)
        (run.loss(output, y) if len(y) else output.sum()).backward()
        run.optimizer.step()
        empty += not len(y)
    assert empty
    assert ledger.history.caveats == []


class ReturnsItsLoss(nn.Module):
    """As models of Hugging Face do it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = small_model()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.parametrize("factor", [1.0, 50.0])
def test_a_model_that_returns_its_loss(factor: float, ledger: Ledger) -> None:
    run = whole_run(model=ReturnsItsLoss())
    run.watch(ledger, audit={"x": DATA[0], "labels": DATA[1]})
    for x, y in run.loader:
        (factor * run.model(x=x, labels=y)["loss"]).backward()
        run.optimizer.step()
    assert np.allclose(audit_norms(ledger, 1), batch_norms(ledger, 1), rtol=1e-4)
    assert ledger.history.caveats == []


def test_the_criterion_is_left_as_it_was(ledger: Ledger) -> None:
    run = private_run()
    watched = run.watch(ledger, audit=DATA, loss=run.loss)
    assert len(run.loss._forward_hooks) == 1
    for copied in (copy.deepcopy(run.loss), pickle.loads(pickle.dumps(run.loss))):
        copied(small_model()(DATA[0]), DATA[1]).backward()
    watched.close()
    assert not run.loss._forward_hooks


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("power", [1, -1])
def test_a_loss_that_is_scaled_by_the_size_of_the_batch_is_refused(reduction: str, power: int, ledger: Ledger) -> None:
    """One record then changes the gradients of others before they are clipped."""
    run = private_run(loss_reduction=reduction)
    run.loss = nn.CrossEntropyLoss(reduction=reduction)
    run.watch(ledger, audit=DATA, loss=run.loss)
    sized = run.loss
    run.loss = lambda output, target: sized(output, target) * len(target) ** power / 20
    with pytest.raises(InvalidInputError, match=r"loss='scaled by len\(batch\)'.*\(loss_reduction\)"):
        run.train()
    assert 2 <= ledger.steps < len(run.loader)


def test_a_factor_of_its_own_is_not_taken_for_the_size(ledger: Ledger) -> None:
    run = private_run()
    run.watch(ledger, audit=DATA, loss=run.loss)
    for number, (x, y) in enumerate(run.loader):
        run.optimizer.zero_grad()
        (2.0 ** (number % 3) * run.loss(run.model(x), y)).backward()
        run.optimizer.step()
    assert ledger.steps == len(run.loader)
