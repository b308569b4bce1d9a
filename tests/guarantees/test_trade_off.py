"""True-positive rates, advantage and mu: never too small, close to riskcal, exact without sampling."""

import math
from functools import cache

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import assume, given
from hypothesis import strategies as st
from riskcal.analysis import get_advantage_from_pld, get_beta_from_gdp, get_beta_from_pld
from scipy.stats import norm

import bayesdp
from bayesdp.guarantees.clip_bound import ClipBound
from bayesdp.guarantees.trade_off import clip_bound_risk, gaussian_tpr, profile_risks
from bayesdp.profiles import gaussian_delta

FPR = (0.001, 0.01, 0.1, 0.5)
SAMPLED = [(1.0, 0.01, 1000), (4.0, 0.1, 1000), (6.0, 4096 / 60000, 292), (0.8, 0.01, 10000), (1.1, 0.0043, 14062)]
SHORT = [(0.5, 0.01, 5), (1.0, 0.9, 1), (0.7, 0.3, 20)]


@cache
def risk(noise, rate, steps, fpr=FPR):
    return bayesdp.attack_risk(noise_multiplier=noise, sample_rate=rate, steps=steps, fpr=fpr)


@cache
def riskcal(noise, rate, steps, interval):
    step = privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=interval, use_connect_dots=True
    )
    composed = step.self_compose(steps)
    return 1 - get_beta_from_pld(composed, alpha=np.array(FPR)), get_advantage_from_pld(composed)


@pytest.mark.parametrize("setting", SAMPLED + SHORT)
def test_never_below_riskcal_and_within_a_thousandth(setting):
    ours = risk(*setting)
    tpr, advantage = riskcal(*setting, 1e-4)  # its own default
    assert (np.array(ours.tpr) >= tpr - 1e-7).all()
    assert advantage - 1e-7 <= ours.advantage <= advantage + 1e-3
    # On long runs its rates are too small unless the grid is coarse: see below.
    coarse, _ = riskcal(*setting, 1e-3 if setting in SAMPLED else 1e-4)
    assert np.abs(np.array(ours.tpr) - coarse).max() <= 1e-3


def test_a_quiet_run_is_close_to_riskcal_too():
    quiet = (20.0, 0.001, 100)
    tpr, advantage = riskcal(*quiet, 1e-6)
    ours = risk(*quiet)
    np.testing.assert_allclose(ours.tpr, tpr, rtol=3e-4)
    assert (np.array(ours.tpr) >= tpr - 1e-9).all()
    assert advantage <= ours.advantage <= 1.001 * advantage


@pytest.mark.parametrize(("noise", "steps"), [(1.0, 1), (20.0, 100), (0.3, 2), (500.0, 40), (1e6, 1)])
def test_without_sampling_everything_is_exact(noise, steps):
    ours, mu = risk(noise, 1.0, steps), math.sqrt(steps) / noise
    exact = norm.cdf(norm.ppf(FPR) + mu)
    np.testing.assert_allclose(ours.tpr, exact, rtol=1e-9)
    assert (np.array(ours.tpr) >= exact * (1 - 1e-14)).all()
    np.testing.assert_allclose(ours.tpr, 1 - get_beta_from_gdp(mu, np.array(FPR)), rtol=1e-6)
    assert ours.mu == pytest.approx(mu, rel=1e-9)
    assert ours.advantage == pytest.approx(math.erf(mu / math.sqrt(8)), rel=1e-6)


def losses(noise, rate, steps, count):
    """Privacy losses of runs with the record in, from a seeded simulation of every step."""
    rng, exposure, total = np.random.default_rng(0), 1 / noise, np.zeros(count)
    for _ in range(steps):
        output = rng.standard_normal(count) + exposure * (rng.random(count) < rate)
        total += np.log1p(rate * np.expm1(exposure * output - exposure**2 / 2))
    return total


@pytest.mark.parametrize(("noise", "rate", "steps"), [(1.0, 1.0, 1), (2.0, 1.0, 6), (1.0, 0.05, 200), (2.0, 0.3, 40)])
def test_the_best_attacker_comes_close_and_stays_below(noise, rate, steps):
    """The likelihood ratio is the best attacker; its false-positive rate is E_in[e^-L; L > threshold]."""
    count = 200_000
    loss = np.sort(losses(noise, rate, steps, count))[::-1]
    weights = np.exp(-loss)
    false_positives, ours = np.cumsum(weights) / count, risk(noise, rate, steps)
    for allowed, fpr in zip(ours.tpr, ours.fpr, strict=True):
        flagged = int(np.searchsorted(false_positives, fpr))
        reached = flagged / count
        # The deviation of a threshold's false-positive rate, times the slope of the curve there, and of the count.
        deviation = math.hypot(math.sqrt(np.square(weights[:flagged]).sum()) / weights[flagged - 1], flagged**0.5)
        assert reached - 5 * deviation / count <= allowed <= reached + 5 * deviation / count + 2e-4


def test_riskcal_is_too_small_where_its_masses_are():
    """Round-off adds up to riskcal's masses on a fine grid: at small rates it allows less than guessing at random."""
    step = privacy_loss_distribution.from_gaussian_mechanism(1.0, sampling_prob=0.01, use_connect_dots=True)
    theirs = 1 - get_beta_from_pld(step.self_compose(1000), alpha=1e-5)
    assert theirs < 1e-5 < risk(1.0, 0.01, 1000, (1e-5,)).tpr[0]


settings_drawn = st.tuples(
    st.floats(0.5, 30), st.sampled_from([0.001, 0.01, 0.1, 0.5, 0.95, 1.0]), st.sampled_from([1, 3, 50, 700])
)


@given(settings_drawn)
def test_the_gaussian_dominates_the_whole_profile(setting):
    fpr = (1e-6, 1e-4, 0.003, 0.02, 0.2, 0.7, 0.99)
    ours = risk(*setting, fpr)
    assert (np.array(ours.tpr) <= gaussian_tpr(ours.mu, fpr) + ours.delta * (1 + 1e-9)).all()
    assert ours.advantage <= 2 * norm.cdf(ours.mu / 2) - 1 + 1e-12
    bound = ClipBound.of([setting])
    epsilons = np.linspace(0, 1.5 * bound.epsilon(1e-5), 211)
    deltas = bound.deltas(epsilons, 1e-6)
    assert (deltas <= gaussian_delta(ours.mu, epsilons) + ours.delta).all()
    # On runs of many steps it is the tightest: one that is 1 % narrower is crossed before delta is too small to count.
    above = deltas > gaussian_delta(0.99 * ours.mu, epsilons)
    assert setting[2] < 200 or (above & (deltas > 0.9 * ours.delta)).any()


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=12),
    st.lists(st.floats(1e-3, 2), min_size=12, max_size=12),
    st.sampled_from([1e-5, 0.01, 0.3]),
)
def test_any_lines_at_all_are_dominated(deltas, gaps, slack):
    """The guarantee of mu needs no convexity: errors may have been added to deltas in any way."""
    given_deltas = np.array(deltas)
    epsilons = np.concatenate([[0.0], np.cumsum(gaps)])[: len(given_deltas)]
    fpr = np.concatenate([np.geomspace(1e-9, 0.5, 60), 1 - np.geomspace(1e-9, 0.5, 60)])
    found = profile_risks(epsilons, given_deltas[None, :], fpr, slack)
    slopes = np.exp(epsilons)[:, None]
    lines = np.minimum(slopes * fpr + given_deltas[:, None], 1 - (1 - fpr - given_deltas[:, None]) / slopes)
    np.testing.assert_allclose(found.tpr[0], np.minimum(lines.min(axis=0), 1), rtol=1e-9, atol=1e-14)
    assume(np.isfinite(found.mu[0]))
    assert (found.tpr[0] <= gaussian_tpr(found.mu[0], fpr) + slack + 1e-12).all()


@given(settings_drawn, st.integers(2, 40))
def test_fewer_epsilons_give_larger_figures(setting, every):
    bound = ClipBound.of([setting])
    epsilons = np.linspace(0, 1.1 * bound.epsilon(1e-6), 321)
    deltas = bound.deltas(epsilons, 1e-6)[None, :]
    some = np.unique(np.append(np.arange(0, 321, every), 320))
    fine = profile_risks(epsilons, deltas, FPR, 1e-5)
    coarse = profile_risks(epsilons[some], deltas[:, some], FPR, 1e-5)
    assert (coarse.tpr >= fine.tpr).all()
    assert coarse.advantage == fine.advantage
    rates = np.geomspace(1e-7, 0.5, 50)
    finest = profile_risks(epsilons, deltas, rates, 1e-5).tpr[0]
    assert (finest <= gaussian_tpr(coarse.mu[0], rates) + 1e-5).all()


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ((2.0, 0.1, 50), (1.8, 0.1, 50)),
        ((2.0, 0.1, 50), (2.0, 0.12, 50)),
        ((2.0, 0.1, 50), (2.0, 0.1, 60)),
        ((2.0, 0.1, 50), (2.0, 1.0, 50)),
    ],
)
def test_more_exposure_is_more_risk(less, more):
    below, above = risk(*less), risk(*more)
    assert (np.array(below.tpr) < above.tpr).all()
    assert below.advantage < above.advantage
    assert below.mu < above.mu
    assert list(below.tpr) == sorted(below.tpr)
    assert all(tpr >= fpr for tpr, fpr in zip(below.tpr, below.fpr, strict=True))


def test_extremes():
    nothing = clip_bound_risk(ClipBound.of([]), 1e-5)
    assert (nothing.tpr, nothing.advantage, nothing.mu) == ((0.001, 0.01), 0.0, 0.0)
    loud = risk(0.04, 0.1, 100)  # exposures beyond those whose profile is computed: still dominated by q = 1
    assert loud.advantage == pytest.approx(1 - 0.9**100)  # whoever was never drawn left no trace
    assert loud.tpr[-1] == 1.0
    assert loud.mu == pytest.approx(10 / 0.04)
    quiet = risk(1e6, 0.01, 10)
    assert 0 < quiet.mu < 1e-5
    infinite = profile_risks(np.array([0.0, 1.0]), np.ones((1, 2)), FPR, 1e-5)
    assert infinite.mu[0] == math.inf
    assert (infinite.tpr == 1).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fpr": (0.01, 0)}, "fpr=0"),
        ({"fpr": (1.0,)}, "fpr=1.0"),
        ({"delta": 0}, "delta=0"),
        ({"sample_rate": 2}, "sample_rate=2"),
        ({"noise_multiplier": 0}, "noise_multiplier=0"),
        ({"steps": 1.5}, "steps=1.5"),
    ],
)
def test_bad_input_is_refused(change, message):
    with pytest.raises(bayesdp.InvalidInputError, match=message):
        bayesdp.attack_risk(**{"noise_multiplier": 1, "sample_rate": 0.1, "steps": 10, **change})
