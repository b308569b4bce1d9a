"""Norms of audit records: what they would have been in the batch, with the parameters of that step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from opacus.layers import DPLSTM, DPMultiheadAttention
from torch import nn

from bayesdp import Gate, InvalidInputError, Ledger
from opacus_runs import audit_norms, batch_norms, private_run, random_data, small_model


class Tied(nn.Module):
    """One layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(12, 12), nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.tanh(self.inner(torch.tanh(self.inner(x)))))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = DPLSTM(4, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x.reshape(-1, 3, 4))[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.out = DPMultiheadAttention(4, 2, batch_first=True), nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.reshape(-1, 3, 4)
        return self.out(self.attention(x, x, x, need_weights=False)[0].flatten(1))


def convolutional() -> nn.Module:
    layers = nn.Unflatten(1, (1, 3, 4)), nn.Conv2d(1, 5, 2), nn.GroupNorm(1, 5), nn.Tanh(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(30, 3))


@pytest.mark.parametrize("make", [convolutional, Tied, Recurrent, Attention])
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_audit_records_have_the_norms_they_would_have_in_the_batch(make: Any, mode: str) -> None:
    """The whole training set is drawn at each step, and is the audit set as well: both must have the same norms."""
    if mode == "ghost" and make is Tied:
        pytest.skip("Opacus has no ghost clipping for tied parameters")
    torch.manual_seed(0)
    data = random_data(40)
    run = private_run(make(), data=data, batch=40, mode=mode)
    ledger = Ledger(keep_norms=True)
    run.watch(ledger, audit=data, loss=run.loss)
    run.train(3)
    for step in (1, 2, 3):
        assert len(batch_norms(ledger, step)) == 40
        assert np.allclose(audit_norms(ledger, step), batch_norms(ledger, step), rtol=2e-4)


def test_many_audit_records_are_done_a_part_at_a_time() -> None:
    audit = random_data(1100, seed=9)
    norms = []
    for part in (slice(None), slice(0, 300)):
        run, ledger = private_run(), Ledger(keep_norms=True)
        run.watch(ledger, audit=(audit[0][part], audit[1][part]), loss=run.loss)
        run.train(most=1)
        norms.append(audit_norms(ledger, 1))
    assert len(norms[0]) == 1100
    assert np.allclose(norms[0][:300], norms[1], rtol=1e-6)


def test_only_parameters_that_are_trained_count() -> None:
    model = small_model()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    data = random_data(40)
    run, ledger = private_run(model, data=data, batch=40), Ledger(keep_norms=True)
    run.watch(ledger, audit=data, loss=run.loss)
    run.train(most=1)
    assert np.allclose(audit_norms(ledger, 1), batch_norms(ledger, 1), rtol=1e-5)


def test_several_inputs_and_batches_in_the_second_axis() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(12, 3)

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return self.layer(a) + self.layer(b)

    run, ledger = private_run(Two()), Ledger(keep_norms=True)
    (a, y), (b, _) = random_data(20, seed=8), random_data(20, seed=9)
    run.watch(ledger, audit=((a, b), y), loss=run.loss)
    x, labels = next(iter(run.loader))
    run.optimizer.zero_grad()
    run.loss(run.model(x, x), labels).backward()
    run.optimizer.step()
    assert len(audit_norms(ledger, 1)) == 20


@pytest.mark.parametrize(("between", "kinds"), [("clip", ["ex-post", "estimate"]), ("last", ["estimate", "estimate"])])
def test_every_third_step(between: Any, kinds: list[str]) -> None:
    """Skipped steps are charged at the clip bound, or as at the last step with norms: then claims are estimates."""
    run, ledger = private_run(noise_multiplier=4.0, max_grad_norm=100.0), Ledger(keep_norms=True)
    run.watch(ledger, audit=random_data(500, seed=9), loss=run.loss, every=3, between=between)
    run.train()
    audited = [ledger.private_norms(step)[0] for step in range(1, 11)]
    assert [norms is None for norms in audited] == [between == "clip" and step % 3 != 0 for step in range(10)]
    if between == "last":
        assert all(np.array_equal(audit_norms(ledger, 1), audit_norms(ledger, step)) for step in (2, 3))
        assert not np.array_equal(audit_norms(ledger, 1), audit_norms(ledger, 4))
    claims = ledger.claims(shares=[0.5])
    half = claims.share(0.5)
    assert [claims.everyone.kind, half.ex_post.kind, half.estimate.kind] == ["proved", *kinds]


def test_norms_that_come_late_are_the_same() -> None:
    """On a device that is not waited for, each step is at the clip bound until the next step."""
    ledgers = []
    for late in (False, True):
        run, ledger = private_run(), Ledger()
        watched = run.watch(ledger, audit=random_data(30, seed=9), loss=run.loss)
        watched._recorder._late = late
        run.train(most=5)
        assert ledger.history.audited_steps == 5 - late
        watched.close()
        ledgers.append(ledger)
    assert np.array_equal(ledgers[0].costs(range(1, 33)), ledgers[1].costs(range(1, 33)))
    batches = [ledger.private_batch(5) for ledger in ledgers]
    assert batches[0] is not None
    assert batches[1] is not None
    assert np.array_equal(batches[0].counts, batches[1].counts)


def test_bad_audit_sets_are_refused() -> None:
    run, ledger = private_run(), Ledger()
    x, y = random_data(20, seed=9)
    mean, total = nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="sum")
    weighted, each = nn.CrossEntropyLoss(weight=torch.ones(3)), nn.CrossEntropyLoss(reduction="none")
    for audit, loss, message in (
        ((x, y), None, "loss='None': expected the criterion that is trained with"),
        ((x, y), total, r"loss\.reduction='sum': expected 'mean'"),
        ((x, y), each, r"loss\.reduction='none': expected 'mean', .*; for one loss of each record, a function loss\(m"),
        ((x, y), weighted, r"loss\.weight='a tensor': expected no weights"),
        (x, mean, "loss='CrossEntropyLoss': expected the criterion .* for \\(inputs, targets\\)"),
        (7, mean, r"audit='int': expected what the loader yields"),
        ((x.numpy(), y.numpy()), mean, r"audit='NumPy arrays': expected tensors: torch\.from_numpy"),
        ((x, y[:7]), mean, r"audit=\[20, 7\]: expected as many rows in each of its tensors"),
        ((x[:0], y[:0]), mean, r"audit=\[\]: expected at least one record"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            run.watch(ledger, audit=audit, loss=loss)
    for options, message in (({"every": 0}, "every=0"), ({"between": "never"}, "between='never'")):
        with pytest.raises(InvalidInputError, match=message):
            run.watch(ledger, audit=(x, y), loss=mean, **options)
    named = Ledger(audit_ids=["a", "b"])
    with pytest.raises(InvalidInputError, match=r"len\(audit\)=20: expected the 2 audit records of the ledger"):
        run.watch(named, audit=(x, y), loss=mean)
    run.watch(ledger, audit=(x, y), loss=lambda output, target: nn.functional.cross_entropy(output, target))
    run.train(most=1)
    assert ledger.history.audited_steps == 1


def test_a_loss_that_is_not_one_number_is_refused() -> None:
    """By ``watch``, also if the model is not in training mode yet."""
    each = nn.CrossEntropyLoss(reduction="none")
    options: Any = {"audit": random_data(20, seed=9), "loss": lambda output, target: each(output, target)}
    run, ledger = private_run(), Ledger()
    with pytest.raises(InvalidInputError, match="expected a loss that is reduced to one number by 'mean'"):
        run.watch(ledger, **options)
    run.model.eval()
    with pytest.raises(InvalidInputError, match="expected a loss that is reduced to one number by 'mean'"):
        run.watch(ledger, **options)
    assert ledger.steps == 0


def test_audit_norms_that_are_not_finite_any_more_are_refused() -> None:
    run, ledger = private_run(), Ledger()
    x, y = random_data(20, seed=9)
    run.watch(ledger, audit=(x, y), loss=run.loss)
    x[3, 0] = torch.nan  # watch itself refuses it: test_finite_audit.py
    with pytest.raises(InvalidInputError, match=r"audit\[3\]=nan"):
        run.train(most=1)
    assert ledger.steps == 0


def test_a_ledger_with_a_gate_knows_its_records() -> None:
    gate = Gate(epsilon=3.0, delta=1e-5, share=0.5, gamma=0.01, records=500)
    run, ledger = private_run(), Ledger(gate=gate)
    with pytest.raises(InvalidInputError, match=r"len\(audit\)=20: expected the 500"):
        run.watch(ledger, audit=random_data(20, seed=9), loss=run.loss)


def test_an_audit_pass_that_was_interrupted_leaves_nothing_behind() -> None:
    torch.manual_seed(0)
    data = random_data(40)
    layers = (
        nn.Unflatten(1, (1, 3, 4)),
        nn.Conv2d(1, 5, 2),
        nn.Tanh(),
        nn.Conv2d(5, 3, 2),
        nn.Flatten(),
        nn.Linear(6, 3),
    )
    run, ledger = private_run(nn.Sequential(*layers), data=data, batch=40), Ledger(keep_norms=True)
    interrupt: list[bool] = []

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if interrupt:
            raise KeyboardInterrupt
        return nn.functional.cross_entropy(output, target)

    run.watch(ledger, audit=data, loss=loss)
    run.train()
    interrupt.append(True)
    with pytest.raises(KeyboardInterrupt):
        run.train()
    interrupt.clear()
    run.train(3)
    for step in range(1, ledger.steps + 1):
        assert np.allclose(audit_norms(ledger, step), batch_norms(ledger, step), rtol=2e-4)


class Odd(nn.Module):
    """A layer that counts its passes, draws from NumPy, and keeps its result under a name that Opacus uses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 3)
        self.register_buffer("passes", torch.zeros(()))
        self.activations: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        self.activations = self.layer(x) * float(np.random.uniform(0.5, 1.5))  # noqa: NPY002
        return self.activations


def test_audit_passes_leave_the_model_and_random_numbers_alone() -> None:
    results = []
    for watched in (False, True):
        np.random.seed(0)  # noqa: NPY002
        torch.manual_seed(0)
        model = nn.Sequential(Odd())
        model[0]._parameters["layer"] = None  # no parameters of its own: Opacus refuses buffers beside them
        del model[0]._parameters["layer"]
        run = private_run(model)
        if watched:
            run.watch(Ledger(), audit=random_data(20, seed=9), loss=run.loss)
        run.train()
        results.append((run.parameters.tobytes(), float(model[0].passes)))
    assert results[0] == results[1]


def test_evaluation_mode_between_backward_and_step() -> None:
    run, ledger = private_run(), Ledger(keep_norms=True)
    run.watch(ledger, audit=random_data(20, seed=9), loss=run.loss)
    x, y = next(iter(run.loader))
    run.loss(run.model(x), y).backward()
    run.model.eval()
    run.optimizer.step()
    assert len(audit_norms(ledger, 1)) == 20


def test_layers_that_are_trained_later() -> None:
    model = small_model()
    data = random_data(40)
    run, ledger = private_run(model, data=data, batch=40), Ledger(keep_norms=True)
    run.watch(ledger, audit=data, loss=run.loss)
    run.train()
    model[0].weight.requires_grad_(False)
    model[0].weight.requires_grad_(True)
    run.train()
    assert np.allclose(audit_norms(ledger, 2), batch_norms(ledger, 2), rtol=1e-4)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch.compile's own
def test_models_that_are_compiled_and_inputs_with_more_axes() -> None:
    data = random_data(40)
    grid = data[0].reshape(40, 1, 3, 4), data[1]
    wide = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Flatten(), nn.Linear(15, 3))
    for model, records in ((torch.compile(small_model(), backend="eager"), data), (wide, grid)):
        run, ledger = private_run(model, data=records, batch=40), Ledger(keep_norms=True)
        run.watch(ledger, audit=records, loss=run.loss)
        run.train(2)
        assert np.allclose(audit_norms(ledger, 2), batch_norms(ledger, 2), rtol=1e-4)


def test_a_mean_that_depends_on_the_batch_is_refused() -> None:
    run = private_run()
    x, y = random_data(20, seed=9)
    y[3] = -100
    with pytest.raises(InvalidInputError, match=r"loss\.ignore_index=-100: expected no targets that are ignored"):
        run.watch(Ledger(), audit=(x, y), loss=nn.CrossEntropyLoss())
