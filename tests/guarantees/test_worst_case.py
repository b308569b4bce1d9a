"""The worst case through dp-accounting, and its edges."""

import math

import dp_accounting as dp
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

import bayesdp
from bayesdp.guarantees.worst_case import _renyi_of_steps, merge


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "rdp", "pld"),
    [
        (1.1, 256 / 60000, 14062, 2.597, 2.382),
        (0.8, 0.01, 10000, 10.935, 10.054),
        (4, 0.1, 1000, 3.736, 3.444),
        (6, 4096 / 60000, 292, 0.7915, 0.7208),
    ],
)
def test_reference_figures(noise, rate, steps, rdp, pld):
    result = bayesdp.epsilon(noise_multiplier=noise, sample_rate=rate, steps=steps, delta=1e-5)
    digits = 4 if rdp < 1 else 3
    assert round(result.rdp_epsilon, digits) == rdp
    assert round(result.pld_epsilon, digits) == pld
    assert result.epsilon == result.pld_epsilon
    assert result.accountant == "PLD"
    assert float(result) == result.epsilon


@pytest.mark.parametrize(
    "steps",
    [[], [(1.0, 0.1, 40)], [(1.0, 0.1, 41)], [(0.3, 1e-4, 10**6), (7.0, 1.0, 3)], [(2.0, 0.5, 2), (90.0, 0.99, 5)]],
)
def test_rdp_is_that_of_dp_accounting_to_the_last_bit(steps):
    theirs = RdpAccountant()
    theirs.compose(bayesdp.to_dp_event(steps))
    for delta in (1e-3, 1e-5, 1e-22):
        ours = _renyi_of_steps(steps).get_epsilon(delta)
        assert ours == theirs.get_epsilon(delta)


def gaussian_epsilon(mu, delta):
    """The exact epsilon of one Gaussian release of sensitivity over noise mu (Balle & Wang 2018), by bisection."""
    low, high = 0.0, 1e3
    for _ in range(200):
        e = (low + high) / 2
        excess = norm.cdf(mu / 2 - e / mu) - math.exp(min(e, 700) + norm.logcdf(-mu / 2 - e / mu))
        low, high = (e, high) if excess > delta else (low, e)
    return high


@pytest.mark.parametrize(("noise", "steps"), [(1, 1), (3, 10), (50, 1), (0.7, 3), (300, 7)])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_full_batch_is_never_below_the_exact_profile_and_close(noise, steps, delta):
    exact = gaussian_epsilon(math.sqrt(steps) / noise, delta)
    result = bayesdp.epsilon(noise_multiplier=noise, sample_rate=1.0, steps=steps, delta=delta)
    assert exact <= result.epsilon <= exact * 1.002 + 1e-6


def test_quiet_runs_get_a_finer_discretisation():
    result = bayesdp.epsilon(noise_multiplier=1000, sample_rate=0.01, steps=1000, delta=1e-5)
    assert result.epsilon < 6e-4


def test_delta_within_round_off_falls_back_to_rdp():
    result = bayesdp.epsilon(noise_multiplier=1, sample_rate=0.01, steps=1000, delta=1e-18)
    assert result.accountant == "RDP"
    assert result.pld_epsilon is None
    assert math.isfinite(result.epsilon)


def test_hopeless_noise_has_a_huge_epsilon_and_no_pld():
    result = bayesdp.epsilon(noise_multiplier=1e-6, sample_rate=1.0, steps=10**6, delta=1e-5)
    assert result.epsilon > 1e6
    assert result.pld_epsilon is None


def test_an_infinite_epsilon_is_null_with_a_reason():
    values = bayesdp.WorstCase(
        epsilon=math.inf, delta=1e-5, accountant="RDP", rdp_epsilon=math.inf, pld_epsilon=None
    ).to_dict()
    assert values["epsilon"] is None
    assert "noise" in values["reason"]


def test_no_steps_cost_nothing():
    assert bayesdp.epsilon(noise_multiplier=1, sample_rate=0.1, steps=0, delta=1e-5).epsilon == 0


def check_more_steps_and_less_noise(noise, rate, steps):
    def at(z, t):
        return bayesdp.epsilon(noise_multiplier=z, sample_rate=rate, steps=t, delta=1e-5).epsilon

    base = at(noise, steps)
    assert at(noise, 2 * steps) >= base * (1 - 1e-3)
    assert at(noise / 1.2, steps) >= base * (1 - 1e-3)


@settings(max_examples=settings().max_examples * 10 // 100)
@given(st.floats(4, 12), st.floats(0.05, 1), st.integers(1, 100))
def test_more_steps_and_less_noise_never_lower_epsilon(noise, rate, steps):
    check_more_steps_and_less_noise(noise, rate, steps)


@pytest.mark.slow  # losses of little noise have long tails, which takes PLD seconds
@settings(max_examples=settings().max_examples * 10 // 100)
@given(st.floats(0.8, 8), st.floats(0.001, 1), st.integers(1, 300))
def test_more_steps_and_less_noise_never_lower_epsilon_at_any_noise(noise, rate, steps):
    check_more_steps_and_less_noise(noise, rate, steps)


def test_a_history_composes_and_merges():
    history = [(4.0, 0.1, 100), (4.0, 0.1, 50), (8.0, 0.2, 10), (8.0, 0.2, 0)]
    assert merge(history) == [(4.0, 0.1, 150), (8.0, 0.2, 10)]
    together = bayesdp.worst_case_of(history, delta=1e-5)
    parts = [bayesdp.worst_case_of([entry], delta=1e-5).epsilon for entry in history]
    assert max(parts) < together.epsilon < sum(parts)


def test_events_go_there_and_back():
    history = [(4.0, 0.1, 15), (8.0, 1.0, 10), (6.0, 0.5, 1)]
    event = bayesdp.to_dp_event(history)
    assert bayesdp.from_dp_event(event) == history
    assert bayesdp.worst_case_of(event, delta=1e-5) == bayesdp.worst_case_of(history, delta=1e-5)
    assert bayesdp.to_dp_event([]) == dp.NoOpDpEvent()
    assert bayesdp.from_dp_event(dp.NoOpDpEvent()) == []
    nested = dp.SelfComposedDpEvent(dp.ComposedDpEvent([dp.GaussianDpEvent(2.0), dp.GaussianDpEvent(3.0)]), 2)
    assert bayesdp.from_dp_event(nested) == [(2.0, 1.0, 1), (3.0, 1.0, 1)] * 2


def test_events_of_other_mechanisms():
    with pytest.raises(ValueError, match="event='LaplaceDpEvent'"):
        bayesdp.from_dp_event(dp.LaplaceDpEvent(1.0))
    assert bayesdp.worst_case_of(dp.LaplaceDpEvent(1.0), delta=1e-5).epsilon == pytest.approx(1.0, abs=1e-3)
    with pytest.raises(ValueError, match="event=UnsupportedDpEvent"):
        bayesdp.worst_case_of(dp.UnsupportedDpEvent(), delta=1e-5)


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ([(0, 0.1, 1)], "noise_multiplier=0"),
        ([(1, 0.1, -1)], "steps=-1"),
        ([(1, 0.1, 1.5)], "steps=1.5"),
        ([(1, 0, 1)], "sample_rate=0"),
        ([(1, 0.1)], "history="),
        ([3], "history=3"),
    ],
)
def test_bad_histories_are_refused(history, message):
    with pytest.raises(ValueError, match=message):
        bayesdp.worst_case_of(history, delta=1e-5)


@pytest.mark.parametrize(
    ("noise", "rate", "delta", "exact"),
    # one step: delta(epsilon) of the subsampled Gaussian in closed form, computed with 30 digits
    [
        pytest.param(1.0, 1e-6, 1e-9, 2.2e-5, marks=pytest.mark.slow),
        (1e6, 1.0, 1e-9, 2.7e-6),
        (1e3, 1e-6, 1e-11, 1.9e-9),
    ],
)
def test_quiet_steps_are_not_needlessly_large(noise, rate, delta, exact):
    epsilon = bayesdp.epsilon(noise_multiplier=noise, sample_rate=rate, steps=1, delta=delta).epsilon
    assert 0.9 * exact <= epsilon <= 1.2 * exact + 1e-7


@pytest.mark.parametrize("delta", [3e-12, 1e-15, 1e-30])
def test_full_batch_is_exact_at_tiny_delta(delta):
    result = bayesdp.epsilon(noise_multiplier=1.0, sample_rate=1.0, steps=1, delta=delta)
    assert result.accountant == "Gaussian"
    exact = gaussian_epsilon(1.0, delta)
    assert exact * (1 - 1e-9) <= result.epsilon <= exact * (1 + 1e-6)


@pytest.mark.parametrize("noise", [1e-200, 1e-7, 1e13, 1e300])
def test_noise_beyond_what_libraries_compute_is_refused(noise):
    with pytest.raises(ValueError, match="noise_multiplier="):
        bayesdp.epsilon(noise_multiplier=noise, sample_rate=0.5, steps=1, delta=1e-5)


@pytest.mark.parametrize(
    ("noise", "rate", "delta"), [(1e8, 0.1, 1e-14), (1e9, 0.01, 1e-13), (1e7, 0.5, 1e-11), (1e12, 0.9, 1e-14)]
)
def test_much_noise_is_no_epsilon_of_zero(noise, rate, delta):
    """dp-accounting's Rényi divergences cancel to 0 there, but the total variation of one step exceeds delta."""
    assert rate * math.erf(1 / (noise * math.sqrt(8))) > delta
    result = bayesdp.epsilon(noise_multiplier=noise, sample_rate=rate, steps=1, delta=delta)
    assert result.epsilon > 0
    assert result.rdp_epsilon > 0


def test_enough_noise_is_an_epsilon_of_zero():
    assert bayesdp.epsilon(noise_multiplier=1e9, sample_rate=0.1, steps=1, delta=1e-5).epsilon == 0
