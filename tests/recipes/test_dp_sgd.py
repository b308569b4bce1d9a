"""DP-SGD on Opacus: what is released, masks, parts of batches, interruptions."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from bayesdp import Ledger
from bayesdp.randomness import Secure, Seeded, poisson_batch, random_mask
from bayesdp.recipes import SgdSettings, fit_model
from bayesdp.recipes.checkpoint import Checkpoint

LOSS = nn.CrossEntropyLoss()


def data(n=80, d=6, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.standard_normal((n, d))), torch.from_numpy(rng.integers(0, 3, n))


def network(d=6, hidden=8):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(d, hidden), nn.Tanh(), nn.Linear(hidden, 3)).double()


def settings(**changes):
    chosen = {"steps": 6, "sample_rate": 0.3, "clip": 0.4, "noise_multiplier": 1.5, "learning_rate": 0.2}
    return SgdSettings(**chosen | changes)


def flat(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).numpy()


def gradients(model, inputs, targets):
    """Return the gradient of each record, [n, parameters], from autograd."""
    rows = []
    for record, target in zip(inputs, targets, strict=True):
        parts = torch.autograd.grad(LOSS(model(record[None]), target[None]), list(model.parameters()))
        rows.append(torch.cat([part.flatten() for part in parts]).numpy())
    return np.array(rows).reshape(len(inputs), -1)


@pytest.mark.parametrize("mask", [None, 0.3])
def test_the_released_update_is_the_clipped_sum_of_the_drawn_records_with_noise(mask):
    (x, y), model = data(d=400), network(400, 10)
    before, chosen = flat(model), settings(steps=1, momentum=0.0, mask=mask)
    drawn = poisson_batch(Seeded(4), 80, 0.3, step=0)
    kept = np.ones(len(before)) if mask is None else random_mask(Seeded(4), before.shape, mask, step=0)
    each = gradients(model, x[drawn], y[drawn]) * kept
    expected = (each * np.minimum(1, 0.4 / np.linalg.norm(each, axis=1))[:, None]).sum(axis=0)
    ledger = Ledger()
    fit_model(model, LOSS, x, y, chosen, ledger=ledger, randomness=Seeded(4))
    released = (before - flat(model)) / 0.2 * (0.3 * 80)
    noise = (released - expected)[kept > 0]
    assert not released[kept == 0].any()
    std = ledger.history.stretches[0].noise_std
    assert std == pytest.approx(0.6)
    assert stats.kstest(noise / std, "norm").pvalue > 1e-6
    assert noise.var() == pytest.approx(std**2, rel=6 * np.sqrt(2 / noise.size))
    assert ledger.history.caveats == ["records-public", "seeded", "zero-out"]
    assert "NOT FOR RELEASE" in ledger.worst_case().statement()


def test_large_batches_in_parts_are_the_same_batches():
    trained = []
    for at_once in (None, 5):
        model, ledger = network(), Ledger()
        fit_model(model, LOSS, *data(), settings(), ledger=ledger, randomness=Seeded(0), at_once=at_once)
        trained.append(flat(model))
        assert ledger.steps == 6
    np.testing.assert_allclose(trained[0], trained[1], rtol=1e-9)


@pytest.mark.parametrize("mask", [None, 0.4])
def test_audit_norms_are_those_of_the_gradient_that_would_be_clipped(mask):
    model, audit, ledger = network(), data(12, seed=5), Ledger(keep_norms=True)
    kept = 1.0 if mask is None else random_mask(Seeded(1), flat(model).shape, mask, step=0)
    norms = np.linalg.norm(gradients(model, *audit) * kept, axis=1)
    fit_model(model, LOSS, *data(), settings(mask=mask), ledger=ledger, randomness=Seeded(1), audit=audit)
    np.testing.assert_allclose(ledger.private_norms(1)[0], norms, rtol=1e-5)
    assert ledger.audit_records == 12


def test_noise_is_never_the_same_without_a_seed():
    trained = []
    for _ in range(2):
        model, ledger = network(), Ledger()
        fit_model(model, LOSS, *data(), settings(steps=2), ledger=ledger, randomness=Secure())
        trained.append(flat(model))
        assert ledger.history.caveats == ["records-public", "zero-out"]
    assert not np.isclose(*trained, rtol=1e-9).any()


def test_a_run_that_goes_on_is_the_same_run(tmp_path):
    def stop_at(last):
        def track(numbers):
            for number in numbers:
                if number == last:
                    raise KeyboardInterrupt
                yield number

        return track

    arguments = {"randomness": Seeded(0), "audit": data(9, seed=2)}
    whole, complete = network(), Ledger()
    fit_model(whole, LOSS, *data(), settings(mask=0.5), ledger=complete, **arguments)
    arguments["checkpoint"] = Checkpoint(tmp_path / "checkpoint.safetensors", settings(mask=0.5).to_dict())
    for last in (0, 4, None):
        model = network()
        with Ledger.open(tmp_path / "l") if (tmp_path / "l").exists() else Ledger.create(tmp_path / "l") as ledger:
            if last is None:
                fit_model(model, LOSS, *data(), settings(mask=0.5), ledger=ledger, **arguments)
            else:
                with pytest.raises(KeyboardInterrupt):
                    fit_model(model, LOSS, *data(), settings(mask=0.5), ledger=ledger, **arguments, track=stop_at(last))
    np.testing.assert_array_equal(flat(model), flat(whole))
    assert ledger.steps == complete.steps == 6
    np.testing.assert_array_equal(ledger.costs([1, 4]), complete.costs([1, 4]))
    other = nn.Linear(6, 3).double()
    with Ledger.open(tmp_path / "l") as ledger, pytest.raises(ValueError, match="checkpoint='other parameters'"):
        fit_model(other, LOSS, *data(), settings(mask=0.5), ledger=ledger, **arguments)


def test_the_model_is_left_as_a_plain_one():
    model = network()
    fit_model(model, LOSS, *data(), settings(steps=1), ledger=Ledger(), randomness=Seeded(0))
    assert not model[0]._forward_hooks
    assert model(torch.zeros(1, 6, dtype=torch.float64)).shape == (1, 3)


def test_what_cannot_be_accounted_is_refused():
    coupled = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()
    ledger = Ledger()
    with pytest.raises(Exception, match="BatchNorm"):
        fit_model(coupled, LOSS, *data(), settings(), ledger=ledger, randomness=Seeded(0))
    assert ledger.steps == 0


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 100.0, 1.0])), r"loss\.weight"),
        (nn.CrossEntropyLoss(reduction="sum"), r"loss\.reduction='sum'"),
        (nn.CrossEntropyLoss(ignore_index=1), r"loss\.ignore_index=1"),
    ],
)
@pytest.mark.parametrize("mask", [None, 0.5])
def test_losses_that_couple_records_are_refused(loss, message, mask):
    ledger = Ledger()
    with pytest.raises(ValueError, match=message):
        fit_model(network(), loss, *data(), settings(mask=mask), ledger=ledger, randomness=Seeded(0))
    assert ledger.steps == 0


def test_a_model_that_was_refused_can_be_trained_with_other_arguments():
    model = network()
    with pytest.raises(ValueError, match="audit="):
        fit_model(model, LOSS, *data(), settings(), ledger=Ledger(), randomness=Seeded(0), audit=data(0))
    with pytest.raises(ValueError, match="at_once=0"):
        fit_model(model, LOSS, *data(), settings(), ledger=Ledger(), randomness=Seeded(0), at_once=0)
    fit_model(model, LOSS, *data(), settings(steps=1), ledger=Ledger(), randomness=Seeded(0))


def test_empty_batches_are_steps_too():
    x, y = data(6)
    ledger = Ledger()
    fit_model(network(), LOSS, x, y, settings(sample_rate=0.02, steps=8), ledger=ledger, randomness=Seeded(1))
    assert [len(poisson_batch(Seeded(1), 6, 0.02, step=step)) for step in range(8)].count(0) > 4
    assert ledger.steps == 8


def test_dropout_is_on_for_audit_records_too():
    torch.manual_seed(0)
    dropping = nn.Sequential(nn.Linear(6, 400), nn.Dropout(0.5), nn.Linear(400, 3)).double().eval()
    audit, ledger = data(30, seed=5), Ledger(keep_norms=True)
    kept = random_mask(Seeded(0), flat(dropping).shape, 0.9, step=0)
    whole = np.linalg.norm(gradients(dropping, *audit) * kept, axis=1)
    fit_model(dropping, LOSS, *data(), settings(steps=1, mask=0.9), ledger=ledger, randomness=Seeded(0), audit=audit)
    with_dropout = ledger.private_norms(1)[0]
    assert (np.abs(with_dropout - whole) > 1e-3).all()
    assert len(set(np.round(with_dropout / whole, 6))) == 30  # each record its own
