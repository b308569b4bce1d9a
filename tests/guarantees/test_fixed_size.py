"""Batches of a fixed size: against exact mechanisms that attain or approach the bound, and what must never be below."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

import bayesdp
from bayesdp import InvalidInputError
from bayesdp.guarantees import fixed_size
from bayesdp.guarantees.fixed_size import fixed_size_epsilon, step_profiles
from bayesdp.guarantees.gaussian_pld import gaussian_pld
from bayesdp.profiles import gaussian_epsilon


def mixture(weights, means, noise):
    """The density of a mixture of Gaussians, written out: SciPy's takes five times as long."""
    scale = noise * math.sqrt(2 * math.pi)
    return lambda x: sum(w / scale * np.exp(-0.5 * ((x - m) / noise) ** 2) for w, m in zip(weights, means, strict=True))


def hockey_stick(p, q, epsilon, reach):
    """By quadrature: the exact divergence of two laws on the line, at e^epsilon."""
    grid = np.linspace(-reach, reach, 100_001)
    return float(np.maximum(p(grid) - math.exp(epsilon) * q(grid), 0).sum() * (grid[1] - grid[0]))


@pytest.mark.parametrize(("noise", "records", "batch"), [(2.0, 10, 1), (1.0, 20, 5), (4.0, 3, 1), (0.7, 100, 2)])
@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.3, 1.0, 3.0])
def test_a_step_under_replace_one_is_attained_by_a_data_set(noise, records, batch, epsilon):
    """All others at -C, the record at +C or at -C: batches are enumerated by whether the record is in them."""
    rate = batch / records
    with_it, without = -(batch - 1) + 1, -batch
    p = mixture([rate, 1 - rate], [with_it, without], noise)
    q = mixture([1.0], [without], noise)
    exact = hockey_stick(p, q, epsilon, batch + 2 + 12 * noise)
    bound = float(step_profiles(noise, rate, "replace-one")[0](np.array([epsilon]))[0])
    assert bound == pytest.approx(exact, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize(("noise", "rate"), [(2.0, 0.1), (1.0, 0.25), (4.0, 1 / 3), (0.7, 0.02)])
@pytest.mark.parametrize("others", [-1.0, -0.5, 0.0, 0.7, 1.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.05, 1.0])
def test_a_step_under_zero_out_is_never_above_the_bound(noise, rate, others, epsilon):
    """The record at +C or at nothing, all others at ``others``: exact divergences in both directions."""
    p = mixture([rate, 1 - rate], [1.0 - others, 0.0], noise)
    q = mixture([rate, 1 - rate], [0.0 - others, 0.0], noise)
    forward, reverse = (float(profile(np.array([epsilon]))[0]) for profile in step_profiles(noise, rate, "zero-out"))
    assert hockey_stick(p, q, epsilon, 2 + 12 * noise) <= forward * (1 + 1e-6) + 1e-8
    assert hockey_stick(q, p, epsilon, 2 + 12 * noise) <= reverse * (1 + 1e-6) + 1e-8


def test_zero_out_costs_no_more_than_replace_one_and_no_less_than_poisson():
    for noise, rate, steps in [(4.0, 0.02, 200)]:
        settings = {"noise_multiplier": noise, "sample_rate": rate, "steps": steps}
        poisson = bayesdp.epsilon(**settings)
        zero, replaced = (bayesdp.epsilon(**settings, sampling=s) for s in ("fixed-size, zero-out", "fixed-size"))
        assert poisson.epsilon < zero.epsilon < replaced.epsilon


@pytest.mark.parametrize(("noise", "rate", "steps"), [(2.0, 0.1, 1), (2.0, 0.1, 10), (4.0, 0.05, 300)])
def test_many_steps_are_not_below_a_data_set_that_exists(noise, rate, steps):
    """All others at -C at every step: each step is then (1 - g) N(0) + g N(2) against N(0), composed exactly."""
    pld = gaussian_pld(noise / 2, rate, 1e-4).self_compose(steps)
    attained = pld._pmf_remove.get_epsilon_for_delta(1e-5)
    bound = fixed_size_epsilon(noise_multiplier=noise, sample_rate=rate, steps=steps)
    assert attained * (1 - 1e-4) <= bound.epsilon <= 1.25 * attained


def test_two_steps_are_not_below_a_simulation():
    """Two adaptive steps of the true mechanism, whose second step turns to the direction in which the first went."""
    random = np.random.default_rng(0)
    noise, rate, n, epsilon = 1.5, 0.2, 400_000, 0.8

    def draw(sign):
        shift = np.where(random.random(n) < rate, sign, -1.0)
        return shift + noise * random.normal(size=n)

    def ratio(x):
        inside, outside = (norm.pdf(x, m, noise) for m in (1.0, -1.0))
        return (rate * inside + (1 - rate) * outside) / outside

    first = draw(1.0)
    second = draw(1.0)
    other_way = -second  # with data reflected, the others at +C
    loss = np.log(ratio(first)) + np.where(first > 0, np.log(ratio(second)), np.log(ratio(-other_way)))
    simulated = np.maximum(1 - np.exp(epsilon - loss), 0)
    lower = simulated.mean() - 5 * simulated.std() / math.sqrt(n)
    bound = fixed_size_epsilon(noise_multiplier=noise, sample_rate=rate, steps=2, delta=float(lower))
    assert bound.epsilon >= epsilon


def test_rate_one_is_the_gaussian():
    for relation, size in (("replace-one", 2.0), ("zero-out", 1.0)):
        found = fixed_size_epsilon(noise_multiplier=4.0, sample_rate=1.0, steps=9, relation=relation)
        exact = bayesdp.epsilon(noise_multiplier=4.0 / size, sample_rate=1.0, steps=9)
        assert found.epsilon == pytest.approx(exact.epsilon, rel=1e-6)
        assert found.epsilon >= exact.epsilon * (1 - 1e-6)


def test_renyi_divergences_are_those_of_dp_accounting():
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant([*range(2, 65), 80, 96, 128, 160, 192, 224, 256], dp.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp.SampledWithoutReplacementDpEvent(1000, 20, dp.GaussianDpEvent(1.5)), 50)
    found = fixed_size_epsilon(noise_multiplier=3.0, sample_rate=0.02, steps=50)
    assert found.rdp_epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9)
    assert found.pld_epsilon < found.rdp_epsilon


def test_epsilon_by_name():
    settings = {"noise_multiplier": 3.0, "sample_rate": 0.02, "steps": 50}
    assert bayesdp.epsilon(**settings, sampling="fixed-size") == fixed_size_epsilon(**settings)
    assert bayesdp.epsilon(**settings, sampling="poisson") == bayesdp.epsilon(**settings)
    said = bayesdp.epsilon(**settings, sampling="fixed-size").statement()
    assert "replace-one" in said
    assert "number of records is public" in said


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampling": "shuffled"}, "sampling='shuffled': expected"),
        ({"sampling": "fixed-size", "sample_rate": 0}, "sample_rate=0: expected a rate"),
        ({"sampling": "fixed-size", "noise_multiplier": 0}, "noise_multiplier=0: expected"),
        ({"sampling": "fixed-size", "steps": 1.5}, "steps=1.5: expected"),
        ({"sampling": "fixed-size", "delta": 1}, "delta=1: expected"),
    ],
)
def test_bad_input(changes, message):
    with pytest.raises(InvalidInputError, match=message):
        bayesdp.epsilon(**{"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 10, **changes})
    with pytest.raises(InvalidInputError, match="relation='add/remove'"):
        fixed_size_epsilon(noise_multiplier=1.0, sample_rate=0.1, steps=1, relation="add/remove")


@pytest.mark.parametrize(("noise", "rate", "steps"), [(1e-6, 0.1, 10), (1e12, 1e-9, 10**6), (0.5, 1e-3, 5)])
def test_extreme_settings_give_a_bound(noise, rate, steps):
    found = fixed_size_epsilon(noise_multiplier=noise, sample_rate=rate, steps=steps)
    assert found.epsilon >= 0
    assert not math.isnan(found.epsilon)


@pytest.mark.slow
def test_much_noise_and_many_steps_are_not_an_epsilon_of_zero():
    """Log-moments of such steps are 0 in floating-point numbers; all others at -C make it half of the Gaussian."""
    found = fixed_size_epsilon(noise_multiplier=1e6, sample_rate=0.5, steps=10**8)
    assert found.rdp_epsilon >= found.epsilon >= gaussian_epsilon(0.5 * 2e-6 * 1e4, 1e-5)


def test_no_steps_cost_nothing():
    assert fixed_size_epsilon(noise_multiplier=1.0, sample_rate=0.1, steps=0).epsilon == 0


def test_quadrature_is_exact_enough():
    p, q = (lambda x, m=m: norm.pdf(x, m, 1.0) for m in (1.0, 0.0))
    exact = quad(lambda x: max(p(x) - math.e * q(x), 0.0), 0, 12, points=[1.5])[0]
    assert hockey_stick(p, q, 1.0, 12) == pytest.approx(exact, abs=1e-8)


def test_an_epsilon_of_zero_is_not_computed_again_on_a_finer_grid(monkeypatch):
    """The finer grid has a million points; the fuzzer found that it took as long for nothing."""
    grids, real = [], fixed_size._on_grid

    def counted(*arguments):
        grids.append(arguments[-1])
        return real(*arguments)

    monkeypatch.setattr(fixed_size, "_on_grid", counted)
    assert fixed_size_epsilon(noise_multiplier=2.0, sample_rate=1e-3, steps=2, delta=0.8).epsilon == 0
    assert len(grids) == 1
