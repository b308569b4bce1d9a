"""Training as the authors' code does it: its distances, its noise, its epsilon; each against something independent."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from bayesdp.estimators import StudentT
from bayesdp.mechanisms import GaussianLaws, UnequalGaussians
from bayesdp.paper.bayesian_accountant import BayesianAccountant
from bayesdp.reproduce.leakage import auc
from bayesdp.reproduce.published.accountants import (
    GAMMA,
    LAMBDAS,
    account_run,
    best_epsilon,
    epsilon_floor,
    published_accountant,
)
from bayesdp.reproduce.published.sgd import Distances, PublishedSettings, distances, fit_as_published
from bayesdp.reproduce.published.variational_inference import (
    VariationalSettings,
    _PublishedSubsampling,
    _relative,
    fit_variational,
)

SETTINGS = PublishedSettings(epochs=1, batch=12, sigma=0.1, learning_rate=1.0)


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    return torch.from_numpy(rng.standard_normal((36, 5)).astype(np.float32)), torch.from_numpy(rng.integers(0, 3, 36))


@pytest.fixture
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def flat(parts):
    return torch.cat([part.detach().reshape(-1) for part in parts])


@pytest.mark.parametrize("settings", [SETTINGS, replace(SETTINGS, clip=0.05), replace(SETTINGS, clipped=False)])
def test_distances_are_those_of_mean_gradients_without_one_record(rows, model, settings):
    inputs, targets = rows[0][:12], rows[1][:12]
    parameters = list(model.parameters())
    mask = torch.arange(sum(parameter.numel() for parameter in parameters)) % 3 > 0

    def mean_of(kept):
        loss = nn.functional.cross_entropy(model(inputs[kept]), targets[kept])
        gradient = flat(torch.autograd.grad(loss, parameters)).double()
        return gradient / max(1.0, gradient.norm() / settings.clip) if settings.clipped else gradient

    without = [mean_of([row for row in range(12) if row != left_out])[mask] for left_out in range(8)]
    expected = [float((first - second).norm()) for n, first in enumerate(without) for second in without[n + 1 :]]
    whole = flat(torch.autograd.grad(nn.functional.cross_entropy(model(inputs), targets), parameters))
    pairs, moves = distances(model, inputs[:8], targets[:8], whole, mask, settings)
    np.testing.assert_allclose(pairs, expected, rtol=1e-3, atol=1e-6)
    with_all = mean_of(list(range(12)))[mask]
    np.testing.assert_allclose(moves, [float((mean - with_all).norm()) for mean in without], rtol=1e-3, atol=1e-6)


def test_a_step_is_the_clipped_mean_with_noise_on_a_part_of_the_weights(rows):
    wide = nn.Linear(5, 20_000, bias=False)
    before = wide.weight.detach().clone()
    settings = replace(SETTINGS, batch=36, clip=0.01, sigma=5.0, mask=0.1)
    fit_as_published(wide, *rows, settings)
    moved = (before - wide.weight.detach()).flatten().double()
    updated = moved[moved != 0]
    assert len(updated) / len(moved) == pytest.approx(0.1, abs=0.005)
    assert float(updated.std()) == pytest.approx(0.05, rel=0.03)  # the mean itself is at most 0.01 long


def test_the_accountant_sees_every_step(rows, model):
    settings = replace(SETTINGS, epochs=3)
    seen = fit_as_published(model, *rows, settings)
    assert seen.pairs.shape == (9, 28)
    assert seen.moves.shape == (9, 8)
    both = account_run(seen, settings, 36, 2 * settings.clip, 1e-10)
    assert len(both.epsilon_by_epoch) == 3
    assert both.epsilon_by_epoch == sorted(both.epsilon_by_epoch)
    by_hand = BayesianAccountant(9, LAMBDAS, StudentT(gamma=GAMMA), conversion="chernoff", as_published=True)
    for pairs in seen.pairs:
        by_hand.step(pairs, noise_std=0.1, sample_rate=1 / 3)
    assert both.epsilon_by_epoch[-1] == best_epsilon(by_hand, 1e-10)
    assert both.published.steps == both.published.total_steps == settings.steps(36) == 9
    assert both.published.total_gamma == pytest.approx(9 * GAMMA)
    assert both.norms.total_gamma == pytest.approx(9 * 8 * GAMMA)  # charged for every order
    assert settings.sample_rate(36) == pytest.approx(1 / 3)
    assert best_epsilon(both.published, 1e-10) > -np.log(1e-10) / 32  # the floor of the last order


def test_without_privacy_it_is_plain_gradient_descent(rows, model):
    inputs, targets = rows
    settings = replace(SETTINGS, batch=36, learning_rate=0.5)
    loss = nn.functional.cross_entropy(model(inputs), targets)
    expected = flat(model.parameters()) - 0.5 * flat(torch.autograd.grad(loss, list(model.parameters())))
    seen = fit_as_published(model, inputs, targets, settings, private=False)
    torch.testing.assert_close(flat(model.parameters()), expected)
    assert not seen.pairs.size


def test_records_that_move_the_mean_alike_cost_what_the_largest_move_does():
    settings = replace(SETTINGS, epochs=1, batch=36, sigma=10.0)
    seen = Distances(pairs=np.linspace(0.1, 0.2, 28)[None], moves=np.full((1, 8), 0.01))
    alike = account_run(seen, settings, 36, 2.0, 1e-5).norms
    largest = account_run(Distances(seen.pairs, np.full((1, 8), 2.0)), settings, 36, 2.0, 1e-5).norms
    assert best_epsilon(alike, 1e-5) == pytest.approx(best_epsilon(largest, 1e-5))


def test_the_floor_rises_when_steps_make_high_orders_useless():
    published = published_accountant(2, LAMBDAS, GAMMA)
    published.step(np.linspace(1e-4, 2e-4, 28), noise_std=1.0, sample_rate=1.0)
    nothing = -np.log(1e-10) / 32
    assert epsilon_floor(published, 1e-10) == pytest.approx(
        {"best_lambda": 32, "floor": nothing, "before_the_first_step": nothing}
    )
    published.step(np.linspace(1.0, 2.0, 28), noise_std=1.0, sample_rate=1.0)
    after = epsilon_floor(published, 1e-10)
    assert after["best_lambda"] < 32
    assert after["floor"] > after["before_the_first_step"] == pytest.approx(nothing)


def test_pairs_of_posteriors_cost_what_the_larger_of_both_orders_does():
    rng = np.random.default_rng(0)
    means, stds = rng.normal(0, 0.01, (8, 3)), rng.uniform(0.9, 1.1, (8, 3))
    standard = UnequalGaussians(GaussianLaws(np.zeros((1, 3)), np.ones((1, 3))))
    log_moments = _PublishedSubsampling(mechanism=standard, sample_rate=1.0).log_moment(_relative(means, stds), [2, 4])
    pairs = [(first, second) for first in range(8) for second in range(first + 1, 8)]
    for log_moment, pair in zip(log_moments, pairs, strict=True):
        laws = [GaussianLaws(means[[n]], stds[[n]] ** 2) for n in pair]
        costs = [UnequalGaussians(a).forward(b, [2, 4])[0] for a, b in (laws, laws[::-1])]
        np.testing.assert_allclose(log_moment, np.maximum(*costs), rtol=1e-9)


def test_a_slower_optimiser_looks_more_private():
    rng = np.random.default_rng(0)
    x = np.c_[rng.standard_normal((400, 2)), np.ones(400)]
    y = (x[:, 0] + 0.3 * rng.standard_normal(400) > 0).astype(np.int64)
    epsilons = {}
    for rate in (1e-3, 1e-4):
        settings = VariationalSettings(steps=100, batch=40, learning_rate=rate)
        posterior, accountant = fit_variational(x, y, settings)
        epsilons[rate] = best_epsilon(accountant, 1e-5)
        assert posterior.accuracy(x, y, np.random.default_rng(1)) > 0.9
    assert epsilons[1e-4] < 0.5 * epsilons[1e-3]


def test_the_area_counts_pairs_and_its_error_is_that_of_samples():
    rng = np.random.default_rng(0)
    members, others = rng.integers(0, 20, 60) / 4, rng.integers(2, 22, 80) / 4
    counted = np.mean([(member < other) + 0.5 * (member == other) for member in members for other in others])
    assert auc(members, others)[0] == pytest.approx(counted)
    assert auc(np.zeros(50), np.ones(40)) == (1.0, 1 / 40)  # not 0
    areas = [auc(rng.normal(0, 1, 100), rng.normal(0.5, 1, 100)) for _ in range(400)]
    spread = np.std([area for area, _ in areas])
    assert np.mean([error for _, error in areas]) == pytest.approx(spread, rel=0.15)
