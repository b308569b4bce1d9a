"""The worst case for a person with several rows: never below the truth, tight, and bounded in time and memory."""

import math
import time

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesdp import InvalidInputError
from bayesdp.guarantees.clip_bound import ClipBound
from bayesdp.guarantees.several_rows import rows_bound
from bayesdp.profiles import gaussian_epsilon
from kept import forget_results


def bound(steps, rows, delta=1e-5):
    return rows_bound(ClipBound.of(steps), rows, delta)


def dp_accounting_epsilon(steps, rows, delta, interval):
    composed = pld.identity(interval)
    for noise, rate, count in steps:
        weights = [math.comb(rows, j) * rate**j * (1 - rate) ** (rows - j) for j in range(rows + 1)]
        step = pld.from_mixture_gaussian_mechanism(
            noise, range(rows + 1), weights, value_discretization_interval=interval
        )
        composed = composed.compose(step.self_compose(count))
    return composed.get_epsilon_for_delta(delta)


@pytest.mark.parametrize(
    ("steps", "rows", "epsilon", "interval"),
    [
        ([(1.0, 0.01, 1000)], 3, 6.343, 3e-3),
        ([(6.0, 4096 / 60000, 292)], 3, None, 1e-3),
        ([(2.0, 0.1, 50), (3.0, 0.05, 100)], 4, None, 1e-2),
        ([(20.0, 0.01, 1000)], 30, None, 1e-3),
        ([(0.5, 0.001, 20)], 2, None, 1e-2),
    ],
)
def test_it_agrees_with_dp_accounting(steps, rows, epsilon, interval):
    """On intervals that cost dp-accounting, which errs upwards, at most 5e-4 of its epsilon."""
    found = bound(steps, rows)
    theirs = dp_accounting_epsilon(steps, rows, 1e-5, interval)
    assert found.epsilon == pytest.approx(theirs, rel=2e-3)
    assert found.accountant == "PLD"
    if epsilon is not None:
        assert round(found.epsilon, 3) == epsilon


@pytest.mark.parametrize(("noise", "rows"), [(2.0, 5), (1.0, 20), (5.0, 1000), (300.0, 7)])
def test_without_sampling_it_is_one_gaussian_exactly(noise, rows):
    exact = gaussian_epsilon(rows * math.sqrt(3) / noise, 1e-5)
    assert exact <= bound([(noise, 1.0, 3)], rows).epsilon <= exact * (1 + 1e-9)


def test_five_rows_of_the_issue():
    assert bound([(2.0, 1.0, 1)], 5).epsilon == pytest.approx(13.207, abs=1e-3)


@pytest.mark.parametrize(
    ("noise", "rate", "count", "rows"), [(1.0, 0.05, 40, 3), (2.0, 0.3, 10, 4), (0.7, 0.01, 100, 2)]
)
def test_composition_against_sampled_runs(noise, rate, count, rows):
    """delta(epsilon) = E[(1 - e^{epsilon - L})_+] over runs with the rows; the claimed one is that, not less."""
    delta, runs, rng = 1e-3, 200_000, np.random.default_rng(7)
    epsilon = bound([(noise, rate, count)], rows, delta).epsilon
    weights = np.array([math.comb(rows, j) * rate**j * (1 - rate) ** (rows - j) for j in range(rows + 1)])
    losses = np.zeros((2, runs))
    for _ in range(count):
        for direction in (0, 1):
            drawn = rng.binomial(rows, rate, runs) if direction == 0 else 0
            output = rng.standard_normal(runs) + drawn / noise
            ratio = sum(w * np.exp(j / noise * output - (j / noise) ** 2 / 2) for j, w in enumerate(weights))
            losses[direction] += np.log(ratio) if direction == 0 else -np.log(ratio)
    failures = -np.expm1(np.minimum(epsilon - losses, 0.0))
    means, errors = failures.mean(axis=1), failures.std(axis=1) / math.sqrt(runs)
    assert (means <= delta + 4 * errors).all()
    assert means.max() >= delta - 4 * errors.max()  # and it is not needlessly large


@settings(max_examples=settings().max_examples * 15 // 100, deadline=None)
@given(
    st.floats(0.8, 20), st.floats(1e-3, 1), st.integers(1, 300), st.integers(1, 6), st.sampled_from([1e-3, 1e-5, 1e-8])
)
def test_more_rows_never_cost_less_and_one_row_is_the_worst_case(noise, rate, count, rows, delta):
    steps = [(noise, rate, count)]
    fewer, more = bound(steps, rows, delta).epsilon, bound(steps, rows + 1, delta).epsilon
    assert more >= fewer * (1 - 1e-3)
    single = ClipBound.of(steps).epsilon(delta)
    assert bound(steps, 1, delta).epsilon == pytest.approx(single, rel=2e-3, abs=1e-6)
    assert fewer <= gaussian_epsilon(rows * math.sqrt(count) / noise * (1 + 1e-9), delta)


@pytest.mark.parametrize(
    ("steps", "rows", "delta"),
    [
        ([(1.0, 0.01, 1000)], 10**6, 1e-5),
        ([(1e4, 0.1, 1000)], 10**5, 1e-5),
        ([(1.0, 1e-3, 10**8)], 3, 1e-5),
        ([(1.0, 0.01, 1000)], 3, 1e-20),
        ([(1.0, 0.01, 1000)], 3, 1e-200),
        ([(1e-6, 0.5, 10**9)], 10**9, 1e-5),
        ([(1e12, 0.5, 1)], 2, 1e-5),
        ([(1.0 + number / 100, 0.01, 20) for number in range(64)], 8, 1e-5),
        ([(0.05, 1e-6, 5)], 3, 1e-7),
    ],
)
def test_extreme_settings_take_bounded_time(steps, rows, delta):
    forget_results()
    begun = time.process_time()
    found = bound(steps, rows, delta)
    assert time.process_time() - begun < 30
    assert found.epsilon >= 0


def test_tiny_deltas_are_left_to_moments():
    found = bound([(1.0, 0.01, 1000)], 3, 1e-20)
    assert found.accountant == "RDP"
    assert bound([(1.0, 0.01, 1000)], 3, 1e-9).epsilon < found.epsilon < 30


def test_rows_that_are_hardly_ever_drawn():
    assert bound([(1.0, 1e-300, 2)], 2).epsilon == 0
    with_others = bound([(1.0, 1e-30, 2), (4.0, 0.1, 20)], 2).epsilon
    assert with_others == pytest.approx(bound([(4.0, 0.1, 20)], 2).epsilon, rel=1e-3)


def test_no_steps_cost_nothing():
    assert bound([], 3).epsilon == 0


@pytest.mark.parametrize(
    ("rows", "delta", "message"), [(0, 1e-5, "rows=0"), (2.5, 1e-5, "rows=2.5"), (2, 0, "delta=0")]
)
def test_bad_input_is_refused(rows, delta, message):
    with pytest.raises(InvalidInputError, match=message):
        bound([(1.0, 0.1, 1)], rows, delta)
