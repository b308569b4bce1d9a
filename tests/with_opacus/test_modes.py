"""Every mode of Opacus: accounted as it really works, or refused from the real objects before anything is released."""

from __future__ import annotations

import contextlib
import copy
import io
import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from opacus.schedulers import ExponentialGradClip, ExponentialNoise
from opacus.utils.adaptive_clipping import adaptive_clipping_utils
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import bayesdp.opacus
from bayesdp import InvalidInputError, Ledger
from bayesdp.opacus import SamplingWarning
from opacus_runs import audit_norms, batch_norms, norms_by_autograd, private_run, small_model, some_data

ADAPTIVE: dict[str, Any] = {
    "clipping": "adaptive",
    "target_unclipped_quantile": 0.5,
    "clipbound_learning_rate": 0.2,
    "max_clipbound": 10.0,
    "min_clipbound": 0.1,
    "unclipped_num_std": 5.0,
}


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger(keep_norms=True) as one:
        yield one


def watch(run: Any, ledger: Ledger, **options: Any) -> bayesdp.opacus.Watch:
    return bayesdp.opacus.watch(run.model, run.optimizer, run.loader, ledger=ledger, **options)


def settings(ledger: Ledger) -> list[tuple[float, float, float | None, int]]:
    return [(one.noise_std, one.sample_rate, one.clip, one.steps) for one in ledger.history.stretches]


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ew", "ghost"])
def test_flat_clipping(ledger: Ledger, mode: str) -> None:
    run = private_run(mode=mode, noise_multiplier=1.5, max_grad_norm=0.8)
    watch(run, ledger, audit=some_data(20, seed=9), loss=run.loss)
    for x, y in run.loader:
        batch = np.linalg.norm(norms_by_autograd(run.model._module, x, y), axis=1) if len(x) else np.zeros(0)
        audit = np.linalg.norm(norms_by_autograd(run.model._module, *some_data(20, seed=9)), axis=1)
        run.step(x, y)
        assert np.allclose(batch_norms(ledger, ledger.steps), batch, rtol=1e-4)
        assert np.allclose(audit_norms(ledger, ledger.steps), audit, rtol=1e-4)
    assert settings(ledger) == [(1.5 * 0.8, 0.1, 0.8, 10)]


def test_hooks_without_a_wrapped_model(ledger: Ledger) -> None:
    model = small_model()
    run = private_run(model, wrap_model=False)
    watch(run, ledger, audit=some_data(20, seed=9), loss=run.loss)
    x, y = next(iter(run.loader))
    expected = np.linalg.norm(norms_by_autograd(model, x, y), axis=1)
    run.model = model
    run.step(x, y)
    assert np.allclose(batch_norms(ledger, 1), expected, rtol=1e-4)
    assert len(audit_norms(ledger, 1)) == 20


def test_per_layer_clipping(ledger: Ledger) -> None:
    """The norm of the clipped pieces together, of batch and audit records."""
    bounds = [0.3, 0.2, 0.4, 0.1]
    run = private_run(clipping="per_layer", max_grad_norm=bounds)
    watch(run, ledger, audit=some_data(20, seed=9), loss=run.loss)
    x, y = next(iter(run.loader))
    expected = [
        np.linalg.norm(np.minimum(norms_by_autograd(run.model._module, *data), bounds), axis=1)
        for data in ((x, y), some_data(20, seed=9))
    ]
    run.step(x, y)
    assert np.allclose(batch_norms(ledger, 1), expected[0], rtol=1e-5)
    assert np.allclose(audit_norms(ledger, 1), expected[1], rtol=1e-5)
    [(noise_std, _, clip, _)] = settings(ledger)
    assert clip == pytest.approx(math.hypot(*bounds))
    assert noise_std == pytest.approx(math.hypot(*bounds))


def test_per_layer_clipping_by_other_bounds_than_the_noise_is_refused(ledger: Ledger) -> None:
    run = private_run(clipping="per_layer", max_grad_norm=[0.3, 0.2, 0.4, 0.1])
    watch(run, ledger)
    ExponentialGradClip(run.optimizer, gamma=0.5).step()  # changes the noise, not the bounds
    before = run.parameters
    with pytest.raises(InvalidInputError, match=r"max_grad_norm=0\.27.*: expected the bound 0\.54"):
        run.train(most=1)
    assert np.array_equal(run.parameters, before)
    assert ledger.steps == 0


def test_adaptive_clipping(ledger: Ledger) -> None:
    """The ledger has the noise that is on the gradient, what the count costs beside it, and the live bound."""
    run = private_run(records=2000, batch=200, **ADAPTIVE)
    watch(run, ledger, audit=some_data(20, seed=9), loss=run.loss)
    bounds = []
    for x, y in run.loader:
        bounds.append(float(run.optimizer.max_grad_norm))
        run.step(x, y)
    assert len(set(bounds)) == 10
    for (noise_std, _, clip, _), bound in zip(settings(ledger), bounds, strict=True):
        on_gradient = (1 - 1 / (2 * 5.0) ** 2) ** -0.5  # of noise multiplier 1: what the count leaves
        assert noise_std == pytest.approx(on_gradient * bound)
        assert clip is not None
        assert noise_std / clip == pytest.approx(1.0)  # both releases together: what Opacus accounts
    assert (audit_norms(ledger, 1) >= 0.5 / 5 * on_gradient * bounds[0] * (1 - 1e-9)).all()
    assert ledger.worst_case().epsilon == pytest.approx(bayesdp.worst_case_of([(1.0, 0.1, 10)]).epsilon, rel=0.02)
    [everyone, *_] = ledger.claims()
    assert everyone.kind == "estimate"
    assert "how many records adaptive clipping drew at each step is public" in everyone.assumptions


def test_adaptive_clipping_noise_is_what_is_measured() -> None:
    """The standard deviation of what Opacus adds to the gradient of an empty sum, against the ledger's."""
    wide = nn.Linear(12, 4000)
    torch.nn.init.zeros_(wide.weight)
    x = torch.zeros(400, 12)
    run = private_run(wide, data=(x, torch.zeros(400, dtype=torch.long)), batch=100, **ADAPTIVE)
    with Ledger() as ledger:
        watch(run, ledger)
        run.train(most=1)
        noise = wide.weight.grad  # inputs are 0, so the gradient of the weight is noise alone
        assert noise is not None
        measured = float(noise.std()) * run.optimizer.expected_batch_size
        assert settings(ledger)[0][0] == pytest.approx(measured, rel=0.02)


def test_adaptive_clipping_with_virtual_steps_is_refused(ledger: Ledger) -> None:
    run = private_run(records=2000, batch=200, **ADAPTIVE)
    watch(run, ledger)
    manager = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=64, optimizer=run.optimizer)
    with manager as loader, pytest.raises(InvalidInputError, match=r"clipping='adaptive': .* BatchMemoryManager"):
        run.train(loader=loader)
    assert ledger.steps == 0


def test_adaptive_clipping_where_a_batch_may_be_empty_is_refused(ledger: Ledger) -> None:
    run = private_run(records=40, batch=4, **ADAPTIVE)
    with pytest.raises(InvalidInputError, match="clipping='adaptive': expected batches that are never empty"):
        watch(run, ledger)
    run = private_run(records=40, batch=4, rand_on_empty=True, **ADAPTIVE)
    watch(run, ledger)
    run.train(4)
    assert ledger.steps == 40


def test_adaptive_ghost_clipping_is_refused(ledger: Ledger) -> None:
    """Its noise depends on how many records were drawn."""
    model, (x, y) = small_model(), some_data(2000)
    engine = adaptive_clipping_utils.PrivacyEngineAdaptiveClipping()
    model, optimizer, loss, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=200),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        criterion=nn.CrossEntropyLoss(),
        grad_sample_mode="ghost",
        target_unclipped_quantile=0.5,
        min_clipbound=0.1,
        max_clipbound=10.0,
        clipbound_learning_rate=0.2,
    )
    with pytest.raises(InvalidInputError, match="loss='DPLossFastGradientAdaptiveClipping'"):
        bayesdp.opacus.watch(model, optimizer, loader, ledger=ledger, loss=loss)
    bayesdp.opacus.watch(model, optimizer, loader, ledger=ledger)  # it cannot be seen yet
    x, y = next(iter(loader))
    loss(model(x), y).backward()
    with pytest.raises(InvalidInputError, match="clipping='adaptive ghost'"):
        optimizer.step()
    assert ledger.steps == 0


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_virtual_steps(ledger: Ledger, mode: str, workers: int) -> None:
    """All physical batches of one step are in it, whichever way they came."""
    plain = Ledger(keep_norms=True)
    for virtual, recorded in ((False, plain), (True, ledger)):
        run = private_run(mode=mode, records=120, batch=40, workers=workers)
        watch(run, recorded)
        if virtual:
            manager = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=9, optimizer=run.optimizer)
            with manager as loader:
                run.train(2, loader=loader)
        else:
            run.train(2)
    assert ledger.steps == plain.steps == 6
    for step in range(1, 7):
        assert np.allclose(np.sort(batch_norms(ledger, step)), np.sort(batch_norms(plain, step)), rtol=1e-4)
    assert ledger.worst_case() == plain.worst_case()


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_empty_batches(ledger: Ledger, mode: str) -> None:
    run = private_run(records=20, batch=1, mode=mode)
    watch(run, ledger)
    for x, y in run.loader:
        before = run.parameters
        run.optimizer.zero_grad()
        run.loss(run.model(x), y).backward()
        run.optimizer.step()
        assert not np.array_equal(run.parameters, before)  # noise is released
    drawn = [len(batch_norms(ledger, step)) for step in range(1, ledger.steps + 1)]
    assert ledger.steps == 20
    assert 0 in drawn
    assert settings(ledger) == [(1.0, 0.05, 1.0, 20)]


@pytest.mark.parametrize("virtual", [False, True])
def test_the_sample_invented_for_an_empty_batch_does_not_count(ledger: Ledger, virtual: bool) -> None:
    sizes = []
    run = private_run(records=20, batch=1, rand_on_empty=True)
    watch(run, ledger)
    manager = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=2, optimizer=run.optimizer)
    for x, y in manager.__enter__() if virtual else run.loader:
        sizes.append(len(x))
        run.step(x, y)
    drawn = [len(batch_norms(ledger, step)) for step in range(1, ledger.steps + 1)]
    assert min(sizes) == 1
    assert 0 in drawn
    assert sum(sizes) == sum(drawn) + drawn.count(0)
    assert ledger.history.caveats == ["zero-out"]  # an invented sample gives way to a record that joins


def test_invented_samples_that_never_come_are_not_mentioned(ledger: Ledger) -> None:
    run = private_run(records=1000, batch=100, rand_on_empty=True)
    watch(run, ledger)
    run.train(most=2)
    assert ledger.history.caveats == []


def test_gradient_accumulation_of_draws(ledger: Ledger) -> None:
    """Opacus forbids it with Poisson sampling unless told otherwise: a record may then be in the sum twice."""
    run = private_run()
    watch(run, ledger)
    run.model.allow_grad_accumulation()
    batches = iter(run.loader)
    drawn = [next(batches), next(batches)]
    run.optimizer.zero_grad()
    for x, y in drawn:
        run.loss(run.model(x), y).backward()
    run.optimizer.step()
    assert settings(ledger) == [(pytest.approx(1 / math.sqrt(2)), 0.1, 1.0, 2)]
    assert [len(batch_norms(ledger, step)) for step in (1, 2)] == [len(y) for _, y in drawn]


def test_a_record_that_is_in_the_sum_twice_costs_no_more_than_is_accounted() -> None:
    """Sum of two draws with noise s against two steps with noise s / sqrt(2), by quadrature in both directions."""
    rate, exposure = 0.3, 0.8
    grid = np.linspace(-40, 60, 400_001)
    log_step = math.log(grid[1] - grid[0])

    def log_density(mean: float) -> np.ndarray:
        return -((grid - mean) ** 2) / 2 - math.log(2 * math.pi) / 2

    without = log_density(0)
    weights = [(1 - rate) ** 2, 2 * rate * (1 - rate), rate**2]
    parts = [math.log(weight) + log_density(number * exposure) for number, weight in enumerate(weights)]
    with_record = np.logaddexp.reduce(parts)
    charged = bayesdp.SubsampledGaussian(sample_rate=rate).log_moment([exposure * math.sqrt(2)], range(1, 17))[0] * 2
    for order, bound in enumerate(charged.tolist(), start=1):
        forward = np.logaddexp.reduce((order + 1) * with_record - order * without) + log_step
        backward = np.logaddexp.reduce((order + 1) * without - order * with_record) + log_step
        assert 0 < max(forward, backward) <= bound


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_an_early_break_out_of_a_virtual_batch(ledger: Ledger, mode: str, workers: int) -> None:
    """What was summed is dropped, and what was signalled about batches that never came as well.

    Opacus would add it to the next sum, in which a record could then be twice; and which records are in a part of a
    batch depends on all of them.
    """
    run = private_run(records=120, batch=40, workers=workers, mode=mode)
    watch(run, ledger)
    manager = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=10, optimizer=run.optimizer)
    with manager as loader:
        for _ in range(3):
            run.train(loader=loader, most=2)  # two parts of the first draw
            assert ledger.steps == 0
        sizes = []
        for x, y in loader:
            sizes.append(len(x))
            run.step(x, y)
    assert settings(ledger) == [(1.0, pytest.approx(1 / 3), 1.0, 3)]
    assert sum(len(batch_norms(ledger, step)) for step in (1, 2, 3)) == sum(sizes)
    assert ledger.history.caveats == []


def test_noise_and_clip_schedulers_are_read_at_each_step(ledger: Ledger) -> None:
    run = private_run(noise_multiplier=2.0, max_grad_norm=0.5)
    watch(run, ledger)
    noise, clip = ExponentialNoise(run.optimizer, gamma=0.9), ExponentialGradClip(run.optimizer, gamma=0.8)
    for x, y in run.loader:
        run.step(x, y)
        noise.step()
        clip.step()
    expected = [(2 * 0.9**t * 0.5 * 0.8**t, 0.1, 0.5 * 0.8**t, 1) for t in range(10)]
    assert np.allclose(settings(ledger), expected, rtol=1e-12)


def test_a_clip_bound_that_shrinks_within_a_virtual_batch(ledger: Ledger) -> None:
    """The largest bound with which part of the sum was clipped, and the noise of the last."""
    run = private_run(records=120, batch=40)
    watch(run, ledger)
    manager = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=10, optimizer=run.optimizer)
    with manager as loader:
        batches = iter(loader)
        while not ledger.steps:
            bound = run.optimizer.max_grad_norm
            run.step(*next(batches))
            run.optimizer.max_grad_norm *= 0.5
    assert bound < 1
    assert settings(ledger) == [(bound, pytest.approx(1 / 3), 1.0, 1)]


def test_ghost_clipping_with_another_bound_than_the_noise_is_refused(ledger: Ledger) -> None:
    run = private_run(mode="ghost")
    watch(run, ledger)
    run.train(most=1)
    before = run.parameters
    ExponentialGradClip(run.optimizer, gamma=0.5).step()  # the optimizer's bound, not the module's
    with pytest.raises(InvalidInputError, match=r"max_grad_norm=0\.5: expected the bound 1 with which"):
        run.train(most=1)
    assert np.array_equal(run.parameters, before)
    assert ledger.steps == 1
    run.model.max_grad_norm = 0.5  # the way out
    run.train(most=1)
    assert settings(ledger)[1] == (0.5, 0.1, 0.5, 1)


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_is_refused(ledger: Ledger, affine: bool) -> None:
    """Opacus itself lets layers without trainable parameters pass, also those that normalise by the batch."""
    model = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16, affine=affine), nn.Linear(16, 3))
    if affine:
        with pytest.raises(Exception, match="BatchNorm"):
            private_run(model)
        return
    run = private_run(model)
    with pytest.raises(InvalidInputError, match=r"model='BatchNorm1d': .*ModuleValidator\.fix"):
        watch(run, ledger)
    model[1].eval()
    watch(run, ledger)
    run.train(most=1)
    run.model.train()
    with pytest.raises(InvalidInputError, match="BatchNorm1d"):
        run.train(most=1)
    assert ledger.steps == 1


def test_instance_norm_that_keeps_statistics_is_refused(ledger: Ledger) -> None:
    norm = nn.InstanceNorm1d(1, affine=False, track_running_stats=True)
    run = private_run(nn.Sequential(nn.Unflatten(1, (1, 12)), norm, nn.Flatten(), nn.Linear(12, 3)))
    with pytest.raises(InvalidInputError, match="InstanceNorm1d"):
        watch(run, ledger)


def test_shuffled_loaders_get_no_amplification(ledger: Ledger) -> None:
    """One step with rate 1 for each epoch, audit records at their largest norm in it; and the claims say so."""
    run = private_run(poisson_sampling=False, shuffle=True)
    watched = watch(run, ledger, audit=some_data(500, seed=9), loss=run.loss)
    most: list[np.ndarray] = []
    for _ in range(3):
        norms = []
        for x, y in run.loader:
            norms.append(np.linalg.norm(norms_by_autograd(run.model._module, *some_data(500, seed=9)), axis=1))
            run.step(x, y)
        most.append(np.max(norms, axis=0))
    claims = watched.claims(shares=[0.5])
    assert settings(ledger) == [(1.0, 1.0, 1.0, 3)]
    for epoch in range(3):
        assert np.allclose(audit_norms(ledger, epoch + 1), most[epoch], rtol=1e-5)
        assert len(batch_norms(ledger, epoch + 1)) == 200
    assert ledger.worst_case().epsilon == bayesdp.worst_case_of([(1.0, 1.0, 3)]).epsilon
    for claim in claims:
        assert any("contributes nothing" in text for text in claim.assumptions)


def test_a_shuffled_epoch_is_on_disk_before_its_first_update(ledger: Ledger) -> None:
    """And until it is over audit records are charged at the clip bound."""
    run = private_run(poisson_sampling=False, shuffle=True)
    watched = watch(run, ledger, audit=some_data(20, seed=9), loss=run.loss)
    run.train(most=1)
    assert ledger.steps == 1
    assert ledger.history.audited_steps == 0
    run.train(most=3)  # left early, so that a new order begins: another epoch
    assert ledger.steps == 2
    watched.close()
    assert ledger.history.audited_steps == 2
    assert [len(batch_norms(ledger, step)) for step in (1, 2)] == [20, 60]


def test_accumulation_over_a_shuffled_loader(ledger: Ledger) -> None:
    """Several batches of an epoch in one sum hold a record once; batches of two epochs may hold it twice."""
    run = private_run(poisson_sampling=False, shuffle=True, batch=50)
    watch(run, ledger)
    for number, (x, y) in enumerate(run.loader):
        run.loss(run.model(x), y).backward()
        if number % 2:
            run.optimizer.step()
            run.optimizer.zero_grad()
    assert settings(ledger) == [(1.0, 1.0, 1.0, 1)]
    for _ in range(2):
        x, y = next(iter(run.loader))
        run.loss(run.model(x), y).backward()
    run.optimizer.step()
    assert settings(ledger)[1:] == [(pytest.approx(1 / math.sqrt(2)), 1.0, 1.0, 2)]


def test_a_shuffled_epoch_with_a_changing_noise(ledger: Ledger) -> None:
    run = private_run(poisson_sampling=False, shuffle=True)
    watch(run, ledger)
    schedule = ExponentialNoise(run.optimizer, gamma=0.5)
    run.train(most=2)
    schedule.step()
    run.train(most=2)
    assert [row[0] for row in settings(ledger)] == [1.0, 0.5]


def with_sampler(sampler: Any) -> Any:
    """A run whose loader draws batches in another way."""
    x, y = some_data(200)
    loader = DataLoader(TensorDataset(x, y), batch_sampler=sampler)
    model = small_model()
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
    )
    run = private_run()
    run.model, run.optimizer, run.loader = made
    return run


def test_samplers_that_are_not_known_are_refused(ledger: Ledger) -> None:
    weighted = torch.utils.data.BatchSampler(WeightedRandomSampler([1.0] * 200, 200), 20, drop_last=False)
    with pytest.raises(InvalidInputError, match="data_loader='WeightedRandomSampler'"):
        watch(with_sampler(weighted), ledger)
    with pytest.raises(InvalidInputError, match="data_loader='list'"):
        watch(with_sampler([[1, 2], [3, 4]]), ledger)


def test_a_rate_that_opacus_gets_wrong_is_reported(ledger: Ledger) -> None:
    """Opacus takes one over the number of batches, whatever the sampler's rate is."""
    run = with_sampler(UniformWithReplacementSampler(num_samples=200, sample_rate=0.3, steps=50))
    with pytest.warns(SamplingWarning, match=r"sample_rate=0\.3 is how records are drawn, but Opacus accounts 1/50"):
        watch(run, ledger)
    run.train(most=3)
    assert settings(ledger) == [(1.0, 0.3, 1.0, 3)]


@pytest.mark.parametrize(("size", "what"), [(20, "all nearly of one size"), (60, "60 records on average, not 20")])
def test_batches_that_do_not_fit_the_rate_are_reported(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, size: int, what: str
) -> None:
    """A sampler that says it is Poisson and is not."""

    def even_batches(self: Any) -> Iterator[list[int]]:
        for _ in range(70):
            yield torch.randperm(self.num_samples, generator=self.generator)[:size].tolist()

    monkeypatch.setattr(UniformWithReplacementSampler, "__iter__", even_batches)
    run = private_run(batch=20)
    watch(run, ledger)
    with pytest.warns(SamplingWarning, match=what):
        run.train()
    assert ledger.history.caveats == ["sampling-mismatch"]
    assert ledger.claims()[0].kind == "estimate"


def test_a_rate_that_changes_is_accounted_as_it_is_drawn(ledger: Ledger) -> None:
    run = private_run(batch=20)
    watch(run, ledger)
    run.train(most=2)
    run.loader.batch_sampler.sample_rate = 0.5
    run.train(most=2)
    assert [row[1] for row in settings(ledger)] == [0.1, 0.5]


def test_honest_batches_are_not_reported(ledger: Ledger) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", SamplingWarning)
        for seed in range(4):
            run = private_run(records=100, batch=2, seed=seed)
            with watch(run, ledger):
                run.train(3)
    assert ledger.steps == 600
    assert ledger.history.caveats == []


def test_batches_from_elsewhere_are_refused(ledger: Ledger) -> None:
    run = private_run()
    watch(run, ledger)
    x, y = some_data(200)
    before = run.parameters
    with pytest.raises(InvalidInputError, match="data_loader='other batches'"):
        run.step(x, y)
    batch = next(iter(run.loader))
    with pytest.raises(InvalidInputError, match=r"len\(batch\)=200: expected at most the"):
        run.step(x, y)
    assert np.array_equal(run.parameters, before)
    run.step(*batch)
    assert ledger.steps == 1


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_may_be_used_once(ledger: Ledger, workers: int, shuffle: bool) -> None:
    """Whatever was drawn ahead; one batch that was left out of a loop may be made up for, in loops that fetch ahead."""
    run = private_run(workers=workers, poisson_sampling=not shuffle, shuffle=shuffle)
    watch(run, ledger)
    batches = iter(run.loader)
    x, y = next(batches)
    run.step(x, y)
    before = run.parameters
    with pytest.raises(InvalidInputError, match="each in one step only"):
        run.step(x, y)
    x, y = next(batches)
    run.optimizer.zero_grad()
    run.model.allow_grad_accumulation()
    for _ in range(2):  # two views of the same records in one sum
        run.loss(run.model(x), y).backward()
    with pytest.raises(InvalidInputError, match="each in one step only"):
        run.optimizer.step()
    assert np.array_equal(run.parameters, before)
    kept = list(run.loader)
    run.step(*kept[-1])
    with pytest.raises(InvalidInputError, match=r"each in one step only|each record must be one sample"):
        run.train(loader=[kept[-1]] * 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_loops_that_fetch_one_batch_ahead(ledger: Ledger, workers: int) -> None:
    for shuffle in (False, True):
        run = private_run(workers=workers, poisson_sampling=not shuffle, shuffle=shuffle)
        with watch(run, ledger):
            for _ in range(2):
                batches = iter(run.loader)
                ahead = next(batches, None)
                while ahead is not None:
                    now, ahead = ahead, next(batches, None)
                    run.step(*now)
    assert settings(ledger) == [(1.0, 0.1, 1.0, 20), (1.0, 1.0, 1.0, 2)]


@pytest.mark.parametrize("virtual", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_evaluation_over_the_training_loader(ledger: Ledger, workers: int, virtual: bool, shuffle: bool) -> None:
    """In the middle of an epoch; it changes nothing."""
    run = private_run(records=120, batch=40, workers=workers, poisson_sampling=not shuffle, shuffle=shuffle)
    watch(run, ledger)
    manager = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=9, optimizer=run.optimizer)
    for _ in range(2):
        for number, (x, y) in enumerate(manager.__enter__() if virtual else run.loader):
            run.step(x, y)
            if number == 1:
                run.model.eval()
                with torch.no_grad():
                    for some, _ in run.loader:
                        run.model(some)
                run.model.train()
    expected = [(1.0, 1.0, 1.0, 2)] if shuffle else [(1.0, pytest.approx(1 / 3), 1.0, 6)]
    assert settings(ledger) == expected
    assert ledger.history.caveats == (["zero-out"] if shuffle else [])


@pytest.mark.parametrize("workers", [0, 2])
def test_small_virtual_batches(ledger: Ledger, workers: int) -> None:
    run = private_run(records=200, batch=8, workers=workers)
    watch(run, ledger)
    manager = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=4, optimizer=run.optimizer)
    with manager as loader:
        run.train(2, loader=loader)
    assert settings(ledger) == [(1.0, 0.04, 1.0, 50)]
    assert ledger.history.caveats == []


@pytest.mark.parametrize("how", ["cap", "skipped part"])
def test_records_that_were_drawn_and_left_out_are_named(ledger: Ledger, how: str) -> None:
    """Which they are may depend on the other records, so that claims are no more than estimates."""
    run = private_run(records=120, batch=40)
    watch(run, ledger)
    if how == "cap":
        for x, y in run.loader:
            run.step(x[:16], y[:16])
    else:
        manager = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=10, optimizer=run.optimizer)
        with manager as loader:
            for number, (x, y) in enumerate(loader):
                if number != 1:
                    run.step(x, y)
    assert ledger.steps == 3
    assert ledger.history.caveats == ["left-out"]
    assert ledger.claims()[0].kind == "estimate"


def test_batches_that_were_skipped_do_not_matter(ledger: Ledger) -> None:
    run = private_run()
    watch(run, ledger)
    used = []
    for number, (x, y) in enumerate(run.loader):
        if number % 3 == 0:
            used.append(len(x))
            run.step(x, y)
    assert [len(batch_norms(ledger, step)) for step in range(1, ledger.steps + 1)] == used


def test_several_samples_of_one_record_are_refused(ledger: Ledger) -> None:
    """Augmentation that makes rows of its own: each would be clipped by itself."""
    run = private_run()
    watch(run, ledger)
    x, y = next(iter(run.loader))
    with pytest.raises(InvalidInputError, match="each record must be one sample, once"):
        run.step(x.repeat(2, 1), y.repeat(2))
    assert ledger.steps == 0


def test_half_precision_gradients_are_refused(ledger: Ledger) -> None:
    data = some_data(200, dtype=torch.bfloat16)
    run = private_run(dtype=torch.bfloat16, data=data)
    watch(run, ledger)
    with pytest.raises(InvalidInputError, match=r"grad_sample\.dtype=torch\.bfloat16"):
        run.train(most=1)
    assert ledger.steps == 0


def test_gradients_that_are_not_finite_are_refused(ledger: Ledger) -> None:
    x, y = some_data(200)
    x[:, 0] = np.nan
    run = private_run(data=(x, y))
    watch(run, ledger)
    before = run.parameters
    with pytest.raises(InvalidInputError, match=r"batch\[0\]=nan"):
        run.train(most=1)
    assert np.array_equal(run.parameters, before)
    assert ledger.steps == 0


def test_objects_that_opacus_did_not_make_are_refused(ledger: Ledger) -> None:
    run = private_run()
    plain = torch.optim.SGD(run.model.parameters(), lr=0.1)
    with pytest.raises(InvalidInputError, match="optimizer='SGD': expected the optimizer that make_private returned"):
        bayesdp.opacus.watch(run.model, plain, run.loader, ledger=ledger)
    with pytest.raises(InvalidInputError, match="model='Sequential': expected the model that make_private returned"):
        bayesdp.opacus.watch(small_model(), run.optimizer, run.loader, ledger=ledger)
    with pytest.raises(InvalidInputError, match=r"data_loader=.*: expected the data loader that make_private returned"):
        bayesdp.opacus.watch(run.model, run.optimizer, [1, 2], ledger=ledger)
    silent = private_run(noise_multiplier=0.0)
    with pytest.raises(InvalidInputError, match=r"noise_multiplier=0\.0"):
        watch(silent, ledger)
    watch(run, ledger)  # nothing was left behind by the refusals
    with pytest.raises(InvalidInputError, match="not watched already"):
        watch(run, ledger)


def test_an_optimizer_that_is_not_known_is_refused(ledger: Ledger) -> None:
    class Own(DPOptimizer):
        pass

    run = private_run()
    run.optimizer.__class__ = Own
    with pytest.raises(InvalidInputError, match=r"optimizer='Own': expected one of DPOptimizer, .* on one device"):
        watch(run, ledger)


def test_distributed_training_is_refused(ledger: Ledger) -> None:
    from opacus.distributed import DifferentiallyPrivateDistributedDataParallel as Parallel

    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
    try:
        run = private_run(Parallel(small_model()))
        with pytest.raises(InvalidInputError, match="Distributed"):
            watch(run, ledger)
    finally:
        torch.distributed.destroy_process_group()


def test_a_step_hook_attached_after_watch_is_noticed(ledger: Ledger) -> None:
    run = private_run()
    watch(run, ledger)
    run.optimizer.attach_step_hook(lambda optimizer: None)
    before = run.parameters
    with pytest.raises(InvalidInputError, match=r"step_hook=.*: expected the hook that watch attached"):
        run.train(most=1)
    assert np.array_equal(run.parameters, before)
    assert ledger.steps == 0


def test_steps_of_the_wrapped_optimizer_are_refused(ledger: Ledger) -> None:
    """They would be without noise, and without a record."""
    run = private_run()
    watch(run, ledger)
    run.train(most=1)
    before = run.parameters
    x, y = some_data(20)
    run.optimizer.zero_grad()
    run.loss(run.model(x), y).backward()
    with pytest.raises(InvalidInputError, match="steps of the optimizer that make_private returned"):
        run.optimizer.original_optimizer.step()
    assert np.array_equal(run.parameters, before)


def test_closing_leaves_opacus_as_it_was(ledger: Ledger) -> None:
    run = private_run(mode="ghost")
    before = dict(run.optimizer.__dict__), type(run.loader.batch_sampler)
    watched = watch(run, ledger)
    run.train(most=2)
    watched.close()
    watched.close()
    assert run.optimizer.__dict__.keys() == before[0].keys()
    assert run.optimizer.step_hook is before[0]["step_hook"]
    assert type(run.loader.batch_sampler) is before[1]
    run.train(most=2)
    assert ledger.steps == 2


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_copies_are_not_watched(ledger: Ledger, mode: str) -> None:
    """Opacus' optimizers cannot be copied in any case."""
    run = private_run(mode=mode)
    watch(run, ledger)
    run.train(most=2)
    best = copy.deepcopy(run.model)
    assert best.state_dict().keys() == run.model.state_dict().keys()
    torch.save(run.model, io.BytesIO())
    loader = copy.deepcopy(run.loader)
    x, y = next(iter(loader))
    if mode == "ghost":
        assert best.get_norm_sample.__self__ is best
    with pytest.raises(InvalidInputError, match=r"data_loader='other batches'|at most the"):
        run.step(torch.cat([x] * 5), torch.cat([y] * 5))
    run.train(most=2)
    assert ledger.steps == 4


def test_training_with_another_optimizer_is_noticed(ledger: Ledger) -> None:
    """make_private called again gives a new one, of which watch knows nothing."""
    run = private_run()
    watched = watch(run, ledger)
    again = torch.optim.SGD(run.model.parameters(), lr=0.1)
    x, y = some_data(20)
    run.loss(run.model(x), y).backward()
    again.step()
    with pytest.warns(UserWarning, match="Parameters were changed, but no step was recorded"):
        watched.claims()


def test_ghost_norms_of_another_pass_are_refused(ledger: Ledger) -> None:
    """A forward pass without backward leaves Opacus with norms of an earlier batch, by which it would clip."""
    layers = nn.Unflatten(1, (1, 3, 4)), nn.Conv2d(1, 3, (3, 4)), nn.Flatten()
    run = private_run(nn.Sequential(*layers), mode="ghost", poisson_sampling=False, shuffle=True)
    watch(run, ledger)
    run.train(most=1)
    before = run.parameters
    run.model(some_data(20)[0])
    with pytest.raises(InvalidInputError, match="a pass without backward"):
        run.train(most=1)
    assert np.array_equal(run.parameters, before)


def test_what_is_added_to_a_ghost_gradient_is_refused(ledger: Ledger) -> None:
    """It was not clipped."""
    run = private_run(mode="ghost")
    watch(run, ledger)
    x, y = next(iter(run.loader))
    run.optimizer.zero_grad()
    run.loss(run.model(x), y).backward()
    (100 * sum(one.square().sum() for one in run.model.parameters())).backward()
    before = run.parameters
    with pytest.raises(InvalidInputError, match=r"\|gradient\|=.*something else was added"):
        run.optimizer.step()
    assert np.array_equal(run.parameters, before)
    assert ledger.steps == 0


def test_a_ghost_bound_that_changes_after_the_backward_pass_is_refused(ledger: Ledger) -> None:
    run = private_run(mode="ghost")
    watch(run, ledger)
    x, y = next(iter(run.loader))
    run.loss(run.model(x), y).backward()
    run.model.max_grad_norm = run.optimizer.max_grad_norm = 0.25
    with pytest.raises(InvalidInputError, match=r"max_grad_norm=0\.25: expected the bound 1"):
        run.optimizer.step()
    assert ledger.steps == 0


@pytest.mark.parametrize("how", ["as it is", "other norms first", "no norms"])
def test_norms_are_those_of_opacus_or_computed(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """What Opacus computes while it clips is used only if it is what we would compute."""
    clip = DPOptimizer.clip_and_accumulate

    def other(self: Any) -> None:
        if how == "other norms first":
            for grad in self.grad_samples:
                (2 * grad.reshape(len(grad), -1)).norm(2, dim=-1)
        with torch._C.DisableTorchFunction() if how == "no norms" else contextlib.nullcontext():
            clip(self)

    monkeypatch.setattr(DPOptimizer, "clip_and_accumulate", other)
    run = private_run()
    watched = watch(run, ledger)
    for x, y in run.loader:
        expected = np.linalg.norm(norms_by_autograd(run.model._module, x, y), axis=1)
        run.step(x, y)
        assert np.allclose(batch_norms(ledger, ledger.steps), expected, rtol=1e-4)
    assert watched._clipping._sees_norms is (how == "as it is")


def test_a_step_without_backward_is_refused_by_opacus(ledger: Ledger) -> None:
    run = private_run()
    watch(run, ledger)
    with pytest.raises(ValueError, match="Per sample gradient is not initialized"):
        run.optimizer.step()
    run.train(most=1)
    assert ledger.steps == 1
