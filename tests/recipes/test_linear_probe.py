"""Closed forms against autograd, clipping and noise on what is released, interruptions."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bayesdp import Ledger
from bayesdp.randomness import Seeded, random_mask
from bayesdp.recipes import SgdSettings, fit_probe, linear_probe
from bayesdp.recipes.checkpoint import Checkpoint
from bayesdp.recipes.descent import Descent
from bayesdp.recipes.linear_probe import ProbeRows

CLASSES = 4


def data(n=60, d=30, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    return scale * rng.standard_normal((n, d)).astype(np.float32), rng.integers(0, CLASSES, n)


def gradients(weights, x, y):
    """Return the gradient of each record by the weights, [n, classes, d], from autograd."""
    weights = torch.tensor(weights, dtype=torch.float64)

    def loss(w, row, label):
        return torch.nn.functional.cross_entropy(w @ row, label)

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    return each(weights, torch.from_numpy(x).double(), torch.from_numpy(y)).numpy()


@pytest.mark.parametrize("masked", [False, True])
def test_norms_and_sums_equal_autograd(masked):
    x, y = data()
    weights = np.random.default_rng(1).standard_normal((CLASSES, 30))
    mask = random_mask(Seeded(0), weights.shape, 0.3, step=0) if masked else None
    each = gradients(weights, x, y) * (1 if mask is None else mask)
    norms = np.linalg.norm(each, axis=(1, 2))
    rows = ProbeRows(x, y, CLASSES)
    np.testing.assert_allclose(rows.norms(weights, mask), norms, rtol=1e-5)
    clip = float(np.median(norms))
    factors = np.minimum(1, clip / norms)
    for drawn in (None, np.arange(0, 60, 3), np.arange(0)):
        taken = np.arange(60) if drawn is None else drawn
        expected = (each[taken] * factors[taken, None, None]).sum(axis=0)
        total = rows.clipped_sum(weights, clip, drawn, mask)
        assert np.linalg.norm(total - expected) <= 1.1e-3 * clip * len(taken)
        if mask is not None:
            assert not total[~mask].any()


@given(
    st.integers(0, 10**6),
    st.floats(-6, 6),
    st.floats(-4, 3),
    st.integers(0, 599),
)
def test_one_record_changes_the_sum_by_the_clip_at_most(seed, log_scale, log_clip, which):
    x, y = data(600, 12, seed, 10.0**log_scale)
    clip = 10.0**log_clip
    weights = np.random.default_rng(seed).standard_normal((CLASSES, 12)) / 10.0**log_scale
    rows = ProbeRows(x, y, CLASSES)
    everyone = np.arange(600)
    difference = rows.clipped_sum(weights, clip, everyone) - rows.clipped_sum(weights, clip, np.delete(everyone, which))
    alone = np.linalg.norm(gradients(weights.astype(np.float32), x[which : which + 1], y[which : which + 1]))
    assert np.linalg.norm(difference) <= clip
    assert np.linalg.norm(difference) <= 1.01 * alone + 1e-2 * clip


def test_blocks_do_not_matter(monkeypatch):
    x, y = data(1000)
    weights = np.random.default_rng(1).standard_normal((CLASSES, 30))
    drawn = np.flatnonzero(np.random.default_rng(2).random(1000) < 0.3)
    sums = []
    for size in (3, 256, 5000):
        monkeypatch.setattr(linear_probe, "_ROWS_AT_ONCE", size)
        rows = ProbeRows(x, y, CLASSES)
        sums.append([rows.clipped_sum(weights, 1.0, drawn), rows.clipped_sum(weights, 1.0)])
    np.testing.assert_allclose(sums[0], sums[1], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(sums[0], sums[2], rtol=1e-4, atol=1e-4)


def settings(**changes):
    chosen = {"steps": 1, "sample_rate": 1.0, "clip": 0.5, "noise_multiplier": 3.0, "learning_rate": 1.0}
    return SgdSettings(**chosen | {"momentum": 0.0} | changes)


@pytest.mark.parametrize("mask", [None, 0.2])
@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_what_is_released_is_the_clipped_sum_with_the_noise_in_the_ledger(rate, mask):
    """The update itself shows it: after one step from 0 the weights are minus the released sum over its denominator."""
    x, y = data(400, 2000)
    chosen = settings(sample_rate=rate, mask=mask)
    rows, ledger, randomness = ProbeRows(x, y, CLASSES), Ledger(), Seeded(5)
    released = -fit_probe(rows, chosen, ledger=ledger, randomness=randomness) * rate * len(rows)
    drawn = (
        None
        if rate == 1
        else linear_probe.NoisySums(
            ledger=ledger, randomness=randomness, clip=0.5, noise_multiplier=3.0, sample_rate=rate, source=""
        ).draw(400, step=0)
    )
    kept = np.ones(released.shape, bool) if mask is None else random_mask(randomness, released.shape, mask, step=0)
    taken = np.arange(400) if drawn is None else drawn
    assert rate == 1 or 50 < len(taken) < 150
    each = gradients(np.zeros(released.shape), x[taken], y[taken]) * kept
    factors = np.minimum(1, 0.5 / np.linalg.norm(each, axis=(1, 2)))
    noise = (released - (each * factors[:, None, None]).sum(axis=0))[kept]
    assert not released[~kept].any()
    std = ledger.history.stretches[0].noise_std
    assert std == 1.5
    assert stats.kstest(noise / std, "norm").pvalue > 1e-6
    assert noise.var() == pytest.approx(std**2, rel=6 * np.sqrt(2 / noise.size))
    assert ledger.history.stretches[0].sample_rate == rate


def test_the_denominator_does_not_depend_on_what_was_drawn(monkeypatch):
    x, y = data(200)
    monkeypatch.setattr(linear_probe.NoisySums, "draw", lambda self, records, *, step: np.arange(0))
    monkeypatch.setattr(linear_probe.NoisySums, "release", lambda self, total, *, step, audit, mask: total + 1.0)
    weights = fit_probe(ProbeRows(x, y, CLASSES), settings(sample_rate=0.1), ledger=Ledger(), randomness=Seeded(0))
    np.testing.assert_allclose(weights, -1 / 20)


def test_audit_norms_are_those_of_the_masked_gradient():
    x, y = data(80)
    audit = data(10, seed=9)
    ledger = Ledger(keep_norms=True)
    chosen = settings(mask=0.1, steps=2)
    fit_probe(ProbeRows(x, y, CLASSES), chosen, ledger=ledger, randomness=Seeded(0), audit=ProbeRows(*audit, CLASSES))
    weights = np.zeros((CLASSES, 30))
    kept = random_mask(Seeded(0), weights.shape, 0.1, step=0)
    norms = np.linalg.norm(gradients(weights, *audit) * kept, axis=(1, 2))
    np.testing.assert_allclose(ledger.private_norms(1)[0], norms, rtol=1e-5)


def test_momentum_and_averages_are_as_in_torch():
    rng = np.random.default_rng(0)
    steps = rng.standard_normal((6, 3))
    chosen = settings(steps=6, momentum=0.9, learning_rate=0.3, average=0.5)
    descent = Descent(np.ones(3), chosen)
    parameter = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = torch.optim.SGD([parameter], lr=0.3, momentum=0.9)
    seen = []
    for number, gradient in enumerate(steps):
        descent.update(gradient, number)
        parameter.grad = torch.from_numpy(gradient)
        optimizer.step()
        seen.append(parameter.detach().numpy().copy())
        np.testing.assert_allclose(descent.weights, seen[-1])
    np.testing.assert_allclose(descent.result, np.mean(seen[3:], axis=0))


class InterruptedRunError(Exception):
    pass


def run(tmp_path, *, stop=None, where="before", seed=0, monkeypatch=None, **changes):
    """Run eight steps, interrupted at step ``stop``: before it, or within it after it was recorded."""
    path = tmp_path / "run.ledger"
    ledger = Ledger.open(path) if path.exists() else Ledger.create(path)
    chosen = settings(steps=8, momentum=0.9, average=0.5, sample_rate=0.5, mask=0.5, **changes)
    checkpoint = Checkpoint(tmp_path / "checkpoint.safetensors", chosen.to_dict())

    def track(numbers):
        for number in numbers:
            if number == stop and where == "before":
                raise InterruptedRunError
            yield number

    x, y = data(100)
    rows, audit = ProbeRows(x, y, CLASSES), ProbeRows(*data(9, seed=3), CLASSES)
    if where == "within":
        update = Descent.update

        def fail(self, gradient, step):
            if step == stop:
                raise InterruptedRunError
            update(self, gradient, step)

        monkeypatch.setattr(Descent, "update", fail)
    try:
        arguments = {"ledger": ledger, "randomness": Seeded(seed), "audit": audit, "checkpoint": checkpoint}
        return fit_probe(rows, chosen, **arguments, track=track), ledger
    finally:
        ledger.close()
        if monkeypatch:
            monkeypatch.undo()


def test_a_run_that_goes_on_is_the_same_run(tmp_path):
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    whole, complete = run(tmp_path / "whole")
    for stop in (0, 3, 7):
        with pytest.raises(InterruptedRunError):
            run(tmp_path / "parts", stop=stop)
    parts, ledger = run(tmp_path / "parts")
    assert np.array_equal(whole, parts)
    assert ledger.steps == complete.steps == 8
    assert np.array_equal(ledger.costs([1, 8]), complete.costs([1, 8]))


def test_a_step_that_was_recorded_and_lost_is_not_taken_again(tmp_path, monkeypatch):
    with pytest.raises(InterruptedRunError):
        run(tmp_path, stop=4, where="within", monkeypatch=monkeypatch)
    assert Ledger.open(tmp_path / "run.ledger", write=False).steps == 5
    weights, ledger = run(tmp_path)
    assert ledger.steps == 8
    assert np.isfinite(weights).all()


def test_what_does_not_belong_together_is_refused(tmp_path):
    with pytest.raises(InterruptedRunError):
        run(tmp_path, stop=4)
    with pytest.raises(ValueError, match=r"checkpoint=.*expected the checkpoint of a run with the same settings"):
        run(tmp_path, clip=0.7)
    (tmp_path / "checkpoint.safetensors").rename(tmp_path / "moved")
    with pytest.raises(ValueError, match=r"ledger.steps=4: expected a new ledger, or the checkpoint"):
        run(tmp_path)
    (tmp_path / "checkpoint.safetensors").write_bytes(b"half of a file")
    with pytest.raises(ValueError, match=r"file=.*expected a whole safetensors file"):
        run(tmp_path)
    (tmp_path / "moved").replace(tmp_path / "checkpoint.safetensors")
    (tmp_path / "run.ledger").rename(tmp_path / "other.ledger")
    with Ledger.create(tmp_path / "run.ledger") as other:
        other.step(noise_std=1, sample_rate=1, clip=1)
    with pytest.raises(ValueError, match="the checkpoint of run"):
        run(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps=0: expected a whole number of at least 1"),
        ({"sample_rate": 1.5}, "sample_rate=1.5"),
        ({"clip": float("nan")}, "clip=nan"),
        ({"noise_multiplier": 0}, "noise_multiplier=0"),
        ({"learning_rate": -1}, "learning_rate=-1"),
        ({"momentum": 1.0}, "momentum=1.0"),
        ({"mask": 1.0}, "mask=1.0"),
        ({"average": 2}, "average=2"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        settings(**change)


def test_bad_rows_are_refused():
    x, y = data()
    for bad, message in [
        ((x[:5], y), r"x.shape=\(5, 30\)"),
        ((x, y + CLASSES), "y=7: expected classes from 0 to 3"),
    ]:
        with pytest.raises(ValueError, match=message):
            ProbeRows(*bad, CLASSES)


@pytest.mark.parametrize("value", [3e37, np.inf, np.nan])
@pytest.mark.parametrize("mask", [None, 0.5])
def test_a_hostile_row_contributes_nothing_and_stops_nobody(value, mask):
    """As if it were not there: an error would tell that it is."""
    x, y = data()
    hostile = x.copy()
    hostile[3] = value
    weights = np.random.default_rng(0).normal(size=(CLASSES, x.shape[1]))
    drawn = None if mask is None else np.random.default_rng(1).random(weights.shape) < mask
    others = np.delete(np.arange(len(x)), 3)
    total = ProbeRows(hostile, y, CLASSES).clipped_sum(weights, 0.5, mask=drawn)
    expected = ProbeRows(x, y, CLASSES).clipped_sum(weights, 0.5, others, mask=drawn)
    assert np.allclose(total, expected, rtol=1e-5, atol=1e-6)
    ledger = Ledger()
    fitted = fit_probe(ProbeRows(hostile, y, CLASSES), settings(), ledger=ledger, randomness=Seeded(0))
    assert np.isfinite(fitted).all()
    assert ledger.steps == settings().steps


def test_gradients_that_are_not_finite_are_not_released():
    x, y = data(scale=1e19)
    ledger = Ledger()
    chosen = settings(steps=50, learning_rate=1e300)
    with pytest.raises(ValueError, match="gradient='not finite'"), np.errstate(over="ignore"):
        fit_probe(ProbeRows(x, y, CLASSES), chosen, ledger=ledger, randomness=Seeded(0))
    assert ledger.steps < 50


def test_tiny_residuals_of_long_rows_are_clipped():
    """Their squares are 0 in single precision."""
    rows = ProbeRows(np.array([[1.0, 1e30]]), np.array([0]), 2)
    weights = np.array([[0.0, 0.0], [-53.0, 0.0]])
    assert rows.norms(weights)[0] > 1e6
    assert np.linalg.norm(rows.clipped_sum(weights, 1.0)) <= 1.0


@given(st.integers(0, 10**6))
def test_removing_a_record_moves_the_others_and_changes_the_sum_by_the_clip_at_most(seed):
    rng = np.random.default_rng(seed)
    x, y, weights = rng.standard_normal((1500, 5)), rng.integers(0, 3, 1500), rng.standard_normal((3, 5))
    whole, less = ProbeRows(x, y, 3), ProbeRows(x[1:], y[1:], 3)
    assert np.linalg.norm(whole.clipped_sum(weights, 0.1) - less.clipped_sum(weights, 0.1)) <= 0.1
