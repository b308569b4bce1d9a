"""The Bayesian accountant against the tables that the published procedure gives."""

import itertools
import math

import numpy as np
import pytest

from bayesdp import BayesianAccountant, SubsampledGaussian
from bayesdp.estimators import StudentT
from oracle_files import rows

LEFT, RIGHT = np.array(list(itertools.combinations(range(50), 2))).T


def pair_distances(gradients):
    gram = gradients @ gradients.T
    return np.sqrt(np.maximum(0, np.diag(gram)[LEFT] + np.diag(gram)[RIGHT] - 2 * gram[LEFT, RIGHT]))


def published(total_steps, order):
    return BayesianAccountant(
        total_steps=total_steps,
        lambdas=[order],
        estimator=StudentT(gamma=2.0**-53),
        conversion="chernoff",
        as_published=True,
    )


@pytest.mark.parametrize("quantile", ["0.05", "0.25", "0.75", "0.95"])
def test_composition_as_published(quantile):
    oracle = {int(r["step"]): r for r in rows("composition_seed0.csv") if r["quant"] == quantile}
    rng = np.random.default_rng([0, ["0.05", "0.25", "0.75", "0.95"].index(quantile)])
    accountant = published(100, 16)
    for step in range(1, 101):
        gradients = rng.weibull(0.5, (50, 1000))
        clip = np.quantile(np.linalg.norm(gradients, axis=1), float(quantile))
        accountant.step(pair_distances(gradients), noise_std=2 * clip, sample_rate=1 / 1000)
        assert accountant.epsilon(1e-5) == pytest.approx(float(oracle[step]["ba_eps_1e-5"]), rel=1e-3)
        classic = step * SubsampledGaussian(sample_rate=1 / 1000).log_moment([1.0], [16])[0, 0]
        assert classic == pytest.approx(float(oracle[step]["ma_cost"]), rel=1e-3)


@pytest.mark.parametrize("mode", ["clip", "noclip"])
def test_sigma_epsilon_as_published(mode):
    quantiles = [".01", ".5", ".99"] if mode == "clip" else [".05", ".5", ".95"]
    for index, quantile in enumerate(map(float, quantiles)):
        rng = np.random.default_rng([0, 100 + index, mode == "clip"])
        gradients = rng.weibull(0.5, (50, 1000))
        norms = np.linalg.norm(gradients, axis=1)
        clip = np.quantile(norms, quantile)
        if mode == "clip":
            gradients = gradients * np.minimum(1, clip / norms)[:, None]
        distances = pair_distances(gradients)
        table = [r for r in rows("sigma_epsilon_seed0.csv") if r["mode"] == mode and float(r["quant"]) == quantile]
        assert table
        for row in table:
            accountant = published(1, 24)
            accountant.step(distances, noise_std=float(row["sigma"]) * 2 * clip, sample_rate=1 / 1000)
            assert accountant.costs[0] == pytest.approx(float(row["ba_cost"]), rel=1e-3)
            assert accountant.epsilon(1e-5) == pytest.approx(float(row["ba_eps_1e-5"]), rel=1e-3)


def test_lambda_epsilon():
    table = rows("lambda_epsilon.csv")
    minima = {}
    for clip in ("0.1", "0.7", "1.0"):
        here = [r for r in table if float(r["C"]) == float(clip)]
        orders = [int(r["lambda"]) for r in here]
        costs = 10_000 * SubsampledGaussian(sample_rate=64 / 60_000).log_moment([float(clip)], orders)[0]
        epsilons = (costs - math.log(1e-5)) / orders
        np.testing.assert_allclose(epsilons, [float(r["eps_1e-5"]) for r in here], rtol=1e-3)
        best = int(np.argmin(epsilons))
        minima[clip] = (orders[best], epsilons[best])
    assert minima["0.7"] == (26, pytest.approx(0.54315, abs=5e-6))
    assert minima["1.0"] == (12, pytest.approx(1.10647, abs=5e-6))
    assert minima["0.1"] == (49, pytest.approx(0.23782, abs=5e-6))


def test_the_moments_accountant_is_the_case_d_equals_clip():
    accountant = BayesianAccountant(total_steps=10_000, lambdas=range(1, 50), conversion="chernoff")
    for _ in range(10_000):
        accountant.step(np.full(3, 0.7), noise_std=1.0, sample_rate=64 / 60_000, clip=0.7)
    assert accountant.moments_accountant_epsilon(1e-5) == pytest.approx(0.54315, abs=5e-6)
    assert accountant.epsilon(1e-5) == pytest.approx(0.54315, abs=5e-6)
    assert accountant.best_lambda(1e-5) == 26
