"""What calls itself distribution-free keeps its promise on ten laws; the table in the docs is what was counted."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import quad

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.coverage import (  # noqa: E402
    DISTRIBUTION_FREE,
    POPULATIONS,
    RESULT,
    SAMPLES,
    SLACK,
    below_mean,
    markdown,
    rows,
    too_many,
)

from bayesdp.estimators import Dirichlet  # noqa: E402

GAMMAS = (0.05, 0.01)
EVERYWHERE = pytest.mark.parametrize("population", POPULATIONS, ids=lambda p: p.name)


def check(population, samples, runs, seed):
    for row in rows(population, samples, runs=runs, seed=seed, gammas=GAMMAS):
        assert {"Betting", "KullbackLeibler", "EmpiricalBernstein", "order statistic, share 0.5"} <= set(row["misses"])
        assert not too_many(row, runs)


@EVERYWHERE
@pytest.mark.parametrize("samples", SAMPLES)
def test_misses_are_as_rare_as_promised(population, samples):
    check(population, samples, runs=500, seed=1)


@pytest.mark.slow
@EVERYWHERE
@pytest.mark.parametrize("samples", SAMPLES)
def test_misses_are_as_rare_as_promised_in_many_runs(population, samples):
    check(population, samples, runs=10_000, seed=2)


@EVERYWHERE
def test_true_means_and_bounds(population):
    steps = [0.01, 0.5, 0.755, 0.95, 0.99, 0.999, 1 - 2e-6, 1 - 1e-9]
    mean, _ = quad(population.quantile, 0, 1, points=steps, limit=1000, epsabs=0, epsrel=1e-11)
    assert mean == pytest.approx(population.mean, rel=1e-6)
    quantiles = population.quantile(np.linspace(0, 1, 10_001))
    assert (np.diff(quantiles) >= 0).all()
    assert quantiles[0] >= 0
    assert quantiles[-1] <= population.bound * (1 + 1e-12)


@EVERYWHERE
@pytest.mark.parametrize("kind", DISTRIBUTION_FREE)
def test_counting_by_supports_is_counting_by_upper(population, kind):
    values = population.draw(np.random.default_rng(3), 30, 100)
    estimator = kind(gamma=0.5)  # so that there are misses to count
    by_upper = (estimator.upper(values, population.bound) <= population.mean * SLACK).sum()
    assert below_mean(estimator)(population, values) == by_upper


def test_a_bound_that_misses_too_often_is_found():
    """Student-t on outliers, judged as if it were distribution-free."""
    for row in rows(POPULATIONS[2], 30, runs=500, seed=1, gammas=GAMMAS):
        assert too_many(row | {"misses": {"a new one": row["misses"]["StudentT"]}}, 500) == ["a new one"]


def test_the_table_in_the_documents_is_what_was_counted():
    report = json.loads(RESULT.read_text())
    assert markdown(report) in (ROOT / "docs" / "sharp-edges.md").read_text()
    assert not any(too_many(row, report["settings"]["runs"]) for row in report["rows"])


@pytest.mark.parametrize("name", ["0.1 % outliers", "two points"])
def test_the_stored_counts_are_those_of_today(name):
    report = json.loads(RESULT.read_text())
    population = next(p for p in POPULATIONS if p.name == name)
    settings = report["settings"]
    stored = [row for row in report["rows"] if row["population"] == name and row["samples"] == 30]
    assert rows(population, 30, runs=settings["runs"], seed=settings["seed"]) == stored


def test_beta_and_dirichlet_keep_to_gamma_where_values_are_few():
    report = json.loads(RESULT.read_text())
    judged = []
    for row in report["rows"]:
        of_models = {name: misses for name, misses in row["misses"].items() if name in ("Beta", "Dirichlet")}
        judged += of_models
        renamed = {f"{name}, judged": misses for name, misses in of_models.items()}
        assert not too_many(row | {"misses": renamed}, report["settings"]["runs"])
    assert {name: judged.count(name) for name in ("Beta", "Dirichlet")} == {"Beta": 36, "Dirichlet": 45}


def test_a_value_that_is_neither_seen_nor_told_does_not_exist_for_dirichlet():
    population = next(p for p in POPULATIONS if p.name == "two far apart")
    values = population.draw(np.random.default_rng(4), 30, 100)
    values = np.concatenate([values, np.full((1, 100), 1.5)])  # a second value, so that there is something to estimate
    unseen = (values < population.bound).all(axis=0)
    assert unseen.sum() > 50
    assert (Dirichlet(gamma=0.01).upper(values[:, unseen]) < population.mean).all()
    assert (Dirichlet(gamma=0.01).upper(values[:, unseen], population.bound) > population.mean).all()
