"""Importance sampling knows the answers that are known, and its lower bounds are lower bounds."""

import math

import numpy as np
import pytest

from bayesdp.attack import published, simulation
from bayesdp.attack.loss_walks import hockey_stick, worst_steering_delta
from bayesdp.attack.tilted import best_tilt, draw_runs, mean_at_least, tilted
from bayesdp.profiles import gaussian_delta


def rare_failure(rng, kind, steps, epsilon, *, record_in, count=4000):
    theta, most = best_tilt(kind, steps, epsilon, record_in=record_in)
    runs = draw_runs(rng, [kind], steps, np.zeros_like, theta=theta, count=count, record_in=record_in)
    return runs.weighted(hockey_stick(runs.losses, epsilon)), most


@pytest.mark.parametrize("record_in", [True, False])
def test_a_failure_of_one_in_ten_million(record_in):
    exact = float(gaussian_delta(1.0, 5.3))
    assert exact < 1e-6
    values, most = rare_failure(np.random.default_rng(0), (1.0, 0.25), 16, 5.3, record_in=record_in)
    assert values.max() <= most  # by construction
    assert values.mean() == pytest.approx(exact, rel=0.1)
    assert 0.5 * exact < mean_at_least(values, most, 1e-3) < exact


def test_sampled_steps_against_backward_induction():
    exact = worst_steering_delta(
        [(0.1, 1.0)], 10, lambda counts: 2.0 if counts[0] == 10 else math.inf, record_in=True, spacing=2e-3
    )
    values, most = rare_failure(np.random.default_rng(1), (0.1, 1.0), 10, 2.0, record_in=True)
    assert values.mean() == pytest.approx(exact, rel=0.1)
    assert mean_at_least(values, most, 1e-3) < exact


def test_steps_that_outputs_decide_have_the_right_weights():
    """E[e^{L}] = 1 under the law without the record, also if a large loss makes the next step loud: L is log M/Q."""
    runs = draw_runs(
        np.random.default_rng(2),
        [(0.3, 0.3), (0.3, 1.0)],
        6,
        lambda last: (last > 0.1).astype(float),
        theta=0.5,
        count=20_000,
        record_in=True,
    )
    inverse = runs.weighted(np.exp(-runs.losses))  # E_M[Q/M]
    assert inverse.mean() == pytest.approx(1.0, abs=6 * inverse.std() / np.sqrt(20_000) + 1e-3)
    assert 0 < runs.kinds.mean() < 1


def test_the_tilted_law_is_a_law():
    law = tilted((0.2, 1.0), 5.0, record_in=True, spacing=1e-3)
    assert law.below[-1] == pytest.approx(1.0)
    plain = tilted((0.2, 1.0), 1e-9, record_in=True, spacing=1e-3)
    assert plain.log_moment == pytest.approx(0.0, abs=1e-8)


def test_lower_bounds_of_means_are_lower_bounds():
    rng = np.random.default_rng(3)
    wrong = sum(mean_at_least(rng.random(200) ** 8, 1.0, 0.05) > 1 / 9 for _ in range(300))
    assert wrong <= 15 + 15
    assert mean_at_least(np.full(100, 0.5), 0.1, 0.05) <= 0.1  # values above the cut count as the cut


def test_claims_of_a_plan_stand_and_are_nearly_reached():
    found = list(simulation.planned(np.random.default_rng(4), 0.05, 2.0, 60, 4000))
    assert all(finding.stands for finding in found)
    assert found[0].bound > 0.5 * found[0].claimed


def test_ex_post_figures_of_steered_people_stand():
    finding = simulation.steered_people(np.random.default_rng(5), "hockey-stick", 4000)
    assert 0.005 * finding.claimed < finding.bound < finding.claimed


def test_what_was_published_breaks():
    assert not published.pairwise_distances().stands
    outliers = published.outliers(np.random.default_rng(6), 3, 500, steps=100)
    assert not outliers.stands
    assert outliers.as_expected
