"""Half precision: what is accounted, what is an estimate, what is refused."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bayesdp import InvalidInputError, Ledger
from bayesdp.opacus.precision import CLIPPED, rounded_up
from opacus_runs import Run, audit_norms, batch_norms, private_run, random_data, settings


def step(run: Run, x: torch.Tensor, y: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> None:
    run.optimizer.zero_grad()
    with torch.autocast("cpu", dtype=dtype):
        loss = run.loss(run.model(x), y)
    loss.backward()
    run.optimizer.step()


def whole_gradients(run: Run) -> torch.Tensor:
    """Return the gradients by record as Opacus has them, in float64, [b, d]."""
    return torch.cat([parameter.grad_sample.flatten(1).double() for parameter in run.optimizer.params], dim=1)


def test_autocast_is_accounted_with_the_rounding_of_the_clipping_factor(ledger: Ledger) -> None:
    """And every claim is an estimate. The whole training set is drawn, and is the audit set."""
    data = random_data(40)
    run = private_run(data=data, batch=40)
    watched = run.watch(ledger, audit=data, loss=run.loss)
    for x, y in run.loader:
        step(run, x, y)
    assert settings(ledger) == [(1.0, 1.0, CLIPPED, 1)]
    assert ledger.history.caveats == ["low-precision"]
    audit, batch = audit_norms(ledger, 1), batch_norms(ledger, 1)
    assert np.all((batch * 0.999 < audit) & (audit < batch * CLIPPED * 1.01))
    claims = watched.claims(shares=[0.5])
    assert claims.everyone.kind == "estimate"
    assert "rounded in half precision" in claims.statement(all=True)


def test_training_is_the_same() -> None:
    parameters = []
    for watched in (False, True):
        run = private_run()
        if watched:
            run.watch(Ledger(), audit=random_data(30, seed=9), loss=run.loss)
        for x, y in run.loader:
            step(run, x, y)
        parameters.append(run.parameters.tobytes())
    assert parameters[0] == parameters[1]


def test_norms_are_those_of_the_gradients_that_are_clipped(ledger: Ledger) -> None:
    run = private_run()
    run.watch(ledger)
    for x, y in run.loader:
        run.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = run.loss(run.model(x), y)
        loss.backward()
        assert run.optimizer.params[0].grad_sample.dtype == torch.bfloat16
        expected = whole_gradients(run).norm(dim=1).numpy()
        run.optimizer.step()
        assert np.allclose(batch_norms(ledger, ledger.steps), expected, rtol=1e-5)


def clipped_lengths(gradients: list[torch.Tensor], bound: float) -> torch.Tensor:
    """Return how long Opacus leaves each of n gradients in bfloat16, given by parameter as [n, ...], exactly."""
    lengths = []
    for row in range(len(gradients[0])):
        run = private_run(max_grad_norm=bound)
        for parameter, gradient in zip(run.optimizer.params, gradients, strict=True):
            parameter.grad_sample = gradient[row : row + 1]
        run.optimizer.clip_and_accumulate()
        assert run.optimizer.params[0].summed_grad.dtype == torch.float32
        lengths.append(torch.cat([p.summed_grad.flatten().double() for p in run.optimizer.params]).norm())
    return torch.stack(lengths)


def test_no_clipped_gradient_is_longer_than_is_accounted() -> None:
    """By brute force: random gradients, of lengths where the norm is rounded down most."""
    generator = torch.Generator().manual_seed(0)
    shapes = [parameter.shape for parameter in private_run().optimizer.params]
    longest = 0.0
    for bound in (1.0, 1.37, 0.1):
        rows = 60
        scale = 10.0 ** torch.linspace(-0.2, 3, rows)
        gradients = [torch.randn(rows, *shape, generator=generator) for shape in shapes]
        rounded = [(g * scale.reshape(-1, *[1] * (g.ndim - 1)) * bound).bfloat16() for g in gradients]
        lengths = clipped_lengths(rounded, bound) / bound
        longest = max(longest, float(lengths.max()))
    assert 1.003 < longest < CLIPPED  # above the bound, as float32 never is


def test_the_worst_case_of_the_rounding_stays_below_the_constant() -> None:
    roundoff = 2.0**-8
    assert (1 + roundoff) / (1 - roundoff) ** 2 < 1.0119 < CLIPPED
    norms = torch.rand(10_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1
    assert bool((rounded_up(norms.bfloat16()).double() >= norms).all())
    assert rounded_up(norms) is norms


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_others_are_rounded_differently_if_a_record_joins(reduction: str) -> None:
    """Why claims are estimates: with a mean, the presence of a record changes the gradients of all others."""
    run = private_run(loss_reduction=reduction)
    x, y = random_data(17)
    gradients = []
    for records in (16, 17):
        run.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(run.model(x[:records]), y[:records], reduction=reduction)
        loss.backward()
        gradients.append(whole_gradients(run)[:16])
    change = float((gradients[0] - gradients[1]).norm(dim=1).max() / gradients[0].norm(dim=1).max())
    assert (change > 1e-3) == (reduction == "mean")


def test_trained_parameters_in_half_precision_are_refused() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        run = private_run(dtype=dtype, data=random_data(200, dtype=dtype))
        with pytest.raises(InvalidInputError, match=r"parameter\.dtype=.*: expected trained parameters in float32"):
            run.watch(Ledger())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "ghost"}, r"norm\.dtype=torch\.bfloat16: expected float32, or grad_sample_mode='hooks'"),
        ({"clipping": "per_layer", "max_grad_norm": [1.0] * 4}, r"grad_sample\.dtype=torch.bfloat16: expected flat"),
    ],
)
def test_other_ways_of_clipping_are_refused(options: dict[str, Any], message: str, ledger: Ledger) -> None:
    run = private_run(**options)
    run.watch(ledger)
    before = run.parameters
    with pytest.raises(InvalidInputError, match=message):
        step(run, *next(iter(run.loader)))
    assert np.array_equal(run.parameters, before)
    assert ledger.steps == 0


def test_float16_and_steps_inside_the_block_are_refused(ledger: Ledger) -> None:
    run = private_run()
    run.watch(ledger)
    x, y = next(iter(run.loader))
    with pytest.raises(InvalidInputError, match=r"grad_sample\.dtype=torch\.float16: expected float32, or bfloat16"):
        step(run, x, y, torch.float16)
    x, y = next(iter(run.loader))
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(InvalidInputError, match=r"torch\.autocast='enabled': expected optimizer\.step\(\) outside"),
    ):
        run.step(x, y)
    assert ledger.steps == 0


class OnFrozenFeatures(nn.Module):
    """A frozen layer in bfloat16 below a trained one."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Linear(12, 8, dtype=torch.bfloat16).requires_grad_(False)
        self.out = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.features(x.bfloat16()).float())


def test_frozen_layers_in_half_precision_make_estimates(ledger: Ledger) -> None:
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    model = OnFrozenFeatures()
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.out.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(*random_data(100)), batch_size=20),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    run = Run(PrivacyEngine(), model, optimizer, loader, nn.CrossEntropyLoss())
    run.watch(ledger, audit=random_data(30, seed=9), loss=run.loss)
    run.train(most=2)
    assert ledger.history.caveats == ["low-precision"]
    assert settings(ledger)[0][2] == 1.0


class CastsItself(nn.Module):
    """A model that enters autocast in its own ``forward``, for its last layer or for all of it."""

    def __init__(self, whole: bool) -> None:
        super().__init__()
        self.inner, self.outer, self.whole = nn.Linear(12, 16), nn.Linear(16, 3), whole

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.whole):
            x = torch.tanh(self.inner(x))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.outer(x)


@pytest.mark.parametrize("mode", ["hooks", "functorch"])
@pytest.mark.parametrize("whole", [True, False])
def test_autocast_inside_of_the_model_is_seen(mode: str, whole: bool, ledger: Ledger) -> None:
    """With functorch gradients arrive in float32, so that the clipping factor is not rounded."""
    torch.manual_seed(0)
    data = random_data(40)
    run = private_run(CastsItself(whole), data=data, batch=40, mode=mode)
    watched = run.watch(ledger, audit=data, loss=run.loss)
    run.train()
    rounded = mode == "hooks"
    assert run.optimizer.params[2].grad_sample.dtype == (torch.bfloat16 if rounded else torch.float32)
    assert settings(ledger) == [(1.0, 1.0, CLIPPED if rounded else 1.0, 1)]
    assert ledger.history.caveats == ["low-precision"]
    assert watched.claims().everyone.kind == "estimate"
    audit, batch = audit_norms(ledger, 1), batch_norms(ledger, 1)
    assert np.all((batch * 0.99 < audit) & (audit < batch * CLIPPED * 1.01))


def test_autocast_is_entered_once_for_the_audit() -> None:
    """What ``forward`` leaves in float32 stays in float32, for audit records as in training."""
    audited: list[bool] = []

    class Noted(CastsItself):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self is not run.model._module:
                audited.append(torch.is_autocast_enabled("cpu"))
            return super().forward(x)

    run = private_run(Noted(False))
    run.watch(Ledger(), audit=random_data(30, seed=9), loss=run.loss)
    run.train(most=2)
    assert audited
    assert not any(audited)


@pytest.mark.parametrize("mode", ["hooks", "functorch"])
def test_parts_of_a_model_that_are_called_by_themselves(mode: str, ledger: Ledger) -> None:
    """As ``training_step`` of Lightning does it: the audit is then cast as the layers were."""
    dtypes: list[torch.dtype] = []

    def losses(model: Any, batch: Any) -> torch.Tensor:
        inner = getattr(model, "_module", model)
        output = inner[2](inner[1](inner[0](batch[0])))
        dtypes.append(output.dtype)
        return nn.functional.cross_entropy(output, batch[1], reduction="none")

    run = private_run(mode=mode)
    run.watch(ledger, audit=random_data(30, seed=9), loss=losses)
    for batch in run.loader:
        dtypes.clear()
        run.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = losses(run.model, batch).mean()
        loss.backward()
        run.optimizer.step()
        assert set(dtypes) == {torch.bfloat16}
    assert ledger.history.caveats == ["given-loss", "low-precision"]


def test_a_frozen_part_in_half_precision_is_watched_inside_the_block(ledger: Ledger) -> None:
    data, layers = random_data(40), nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3))
    layers[0].requires_grad_(False)
    run = private_run(layers, data=data, batch=40, max_grad_norm=100.0)
    layers[0].to(torch.bfloat16)  # without autocast its input does not fit
    with pytest.raises(
        InvalidInputError, match=r"half precision, watch inside the torch\.autocast block of training\.$"
    ):
        run.watch(ledger, audit=data, loss=run.loss)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        run.watch(ledger, audit=data, loss=run.loss)
    for x, y in run.loader:
        step(run, x, y)
    assert ledger.history.caveats == ["low-precision"]
    audit, batch = audit_norms(ledger, 1), batch_norms(ledger, 1)
    assert np.all((batch * 0.99 < audit) & (audit < batch * CLIPPED * 1.01))


def test_other_failures_say_nothing_of_autocast(ledger: Ledger) -> None:
    run = private_run()
    with pytest.raises(InvalidInputError, match="the model or the loss fails on it") as refusal:
        run.watch(ledger, audit=(torch.zeros(5, 7), torch.zeros(5, dtype=torch.long)), loss=run.loss)
    assert "autocast" not in str(refusal.value)


def test_passes_that_no_gradient_follows_are_not_training(ledger: Ledger) -> None:
    run = private_run()
    run.watch(ledger, audit=random_data(30, seed=9), loss=run.loss)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        run.model(random_data(5)[0])
    run.train(most=2)
    assert ledger.history.caveats == []


def test_layers_are_left_without_hooks() -> None:
    run = private_run()
    before = [len(layer._forward_pre_hooks) for layer in run.model._module.modules()]
    watched = run.watch(Ledger())
    assert [len(layer._forward_pre_hooks) for layer in run.model._module.modules()] != before
    copied = copy.deepcopy(run.model._module)
    with torch.no_grad():
        copied(random_data(3)[0])
    watched.close()
    assert [len(layer._forward_pre_hooks) for layer in run.model._module.modules()] == before
