"""Profiles of histograms against dp-accounting and finer computations."""

import mpmath as mp
import numpy as np
import pytest
from benchmarks.populations import spread
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesdp.guarantees.worst_case import epsilon as worst_case
from bayesdp.guarantees.worst_case import rdp_epsilon
from bayesdp.mechanisms import SubsampledGaussian
from bayesdp.profiles import ExposureCounts, Precision, gaussian_epsilon, profiles
from bayesdp.profiles.conversion import record_epsilons

DELTA = 1e-5
PUBLISHED = [(1.1, 256 / 60000, 14062), (0.8, 0.01, 10000), (4.0, 0.1, 1000), (6.0, 4096 / 60000, 292)]


def one_kind(noise: float, rate: float, steps: int) -> ExposureCounts:
    return ExposureCounts(np.array([rate]), np.array([1 / noise]), np.array([[float(steps)]]))


def their_epsilon(kinds: list[tuple[float, float, int]], interval: float) -> float:
    """Epsilon by dp-accounting at the same discretisation."""
    total = privacy_loss_distribution.identity(value_discretization_interval=interval)
    for noise, rate, steps in kinds:
        step = privacy_loss_distribution.from_gaussian_mechanism(
            noise, value_discretization_interval=interval, sampling_prob=rate
        )
        total = total.compose(step.self_compose(steps))
    return float(total.get_epsilon_for_delta(DELTA))


@pytest.mark.parametrize(("noise", "rate", "steps"), PUBLISHED)
def test_equal_to_dp_accounting_at_the_same_discretisation(noise, rate, steps):
    for interval in (1e-3, 2e-4):
        record = profiles(one_kind(noise, rate, steps), DELTA, precision=Precision(interval=interval, error=1e-8))
        theirs = their_epsilon([(noise, rate, steps)], interval)
        # The difference is the round-off mass that is added to delta, in proportion to the steps.
        assert record.epsilon[0] == pytest.approx(theirs, abs=1e-6, rel=5e-7)
        assert record.epsilon[0] >= theirs - 1e-9


@settings(max_examples=5)
@given(st.floats(0.6, 6), st.floats(-3, 0), st.integers(1, 3000))
def test_equal_to_dp_accounting_at_random_settings(noise, log_rate, steps):
    rate = 10.0**log_rate
    interval = float(np.clip(rdp_epsilon([(noise, rate, steps)], delta=DELTA) / 300, 1e-4, 1e-2))
    record = profiles(one_kind(noise, rate, steps), DELTA, precision=Precision(interval=interval, error=1e-8))
    theirs = their_epsilon([(noise, rate, steps)], interval)
    assert np.isfinite(theirs)
    assert record.epsilon[0] <= theirs + 1e-6 + 5e-7 * theirs  # less where Rényi divergences give less
    if record.epsilon[0] < theirs - 1e-6:
        costs = SubsampledGaussian(sample_rate=rate).log_moment([1 / noise], np.arange(1, 1025)) * steps
        assert record_epsilons(costs, np.arange(1.0, 1025.0), DELTA)[0] <= record.epsilon[0] + 1e-9


@pytest.mark.parametrize(
    ("noise", "rate", "steps"), [*PUBLISHED, (0.434, 0.103, 490), (6.9, 0.0018, 130), (1.0, 1.0, 5)]
)
def test_within_a_thousandth_of_the_converged_value(noise, rate, steps):
    converged = worst_case(noise_multiplier=noise, sample_rate=rate, steps=steps, delta=DELTA).epsilon
    assert profiles(one_kind(noise, rate, steps), DELTA).epsilon[0] == pytest.approx(converged, rel=1e-3)


def mixed(seed: int) -> ExposureCounts:
    rng = np.random.default_rng(seed)
    exposures = np.exp(rng.uniform(np.log(0.02), np.log(1.5), 6))
    rates = rng.choice([0.01, 0.1, 1.0], 6) if seed % 2 else np.full(6, 10.0 ** rng.uniform(-2.5, -0.5))
    counts = rng.integers(0, 60, (5, 6)) * (rng.random((5, 6)) < 0.6)
    return ExposureCounts(rates, exposures, counts.astype(float))


@pytest.mark.parametrize("seed", range(6))
def test_never_below_a_computation_a_hundred_times_finer(seed):
    given = mixed(seed)
    epsilons = np.array([0.05, 0.2, 1.0, 3.0])
    coarse = Precision(interval=0.02, error=1e-4)
    fine = Precision(interval=0.0002, error=1e-9)
    rough, exact = (profiles(given, DELTA, epsilons=epsilons, precision=setting) for setting in (coarse, fine))
    for name in ("epsilon_in", "epsilon_out"):
        assert (getattr(rough, name) >= getattr(exact, name) * (1 - 1e-9)).all()
    for name in ("delta_in", "delta_out"):
        assert (getattr(rough, name) >= getattr(exact, name) - 1e-11).all()
    usual = profiles(given, DELTA)
    finer = profiles(given, DELTA, precision=Precision(grid=1e-8, error=1e-9))  # errors fall with the square
    assert (usual.epsilon >= finer.epsilon * (1 - 1e-9)).all()
    np.testing.assert_allclose(usual.epsilon, finer.epsilon, rtol=1e-3)


def test_a_mixture_of_steps_as_dp_accounting_composes_it():
    kinds = [(2.0, 0.1, 40), (5.0, 0.1, 300), (1.0, 0.01, 100)]
    given = ExposureCounts(
        np.array([rate for _, rate, _ in kinds]),
        np.array([1 / noise for noise, _, _ in kinds]),
        np.array([[float(steps) for _, _, steps in kinds]]),
    )
    composed = profiles(given, DELTA, precision=Precision(interval=1e-3, error=1e-8)).epsilon[0]
    assert composed == pytest.approx(their_epsilon(kinds, 1e-3), abs=1e-6)


def test_spread_lies_eight_per_cent_below_renyi():
    exposures = spread(4000, seed=0) / 6
    rate = 4096 / 60000
    levels = np.append(np.geomspace(1e-4, 1 / 6, 512)[:-1], 1 / 6)
    place = np.minimum(np.searchsorted(levels, exposures), len(levels) - 1)
    counts = np.stack([np.bincount(column, minlength=len(levels)) for column in place.T]).astype(float)
    epsilons = profiles(ExposureCounts(np.full(len(levels), rate), levels, counts), DELTA).epsilon
    lambdas = np.arange(1.0, 257.0)
    mechanism = SubsampledGaussian(sample_rate=rate)
    fine = np.linspace(0, 1 / 36, 20001)  # squared exposures; costs between them are nearly linear
    table = mechanism.log_moment(np.sqrt(fine), lambdas)
    costs = np.zeros((exposures.shape[1], len(lambdas)))
    for step in exposures:
        costs += table[np.rint(step**2 * 36 * 20000).astype(int)]
    renyi = record_epsilons(costs, lambdas, DELTA)
    for share in (0.1, 0.5, 0.9):
        assert np.quantile(epsilons, share) <= 0.92 * np.quantile(renyi, share)


def test_without_sampling_it_is_the_gaussian_profile():
    given = ExposureCounts(np.ones(2), np.array([0.1, 0.3]), np.array([[50.0, 7.0], [0.0, 3.0]]))
    expected = gaussian_epsilon(np.sqrt(given.counts @ given.exposures**2), DELTA)
    epsilons = profiles(given, DELTA).epsilon
    assert (epsilons >= expected * (1 - 1e-9)).all()
    np.testing.assert_allclose(epsilons, expected, rtol=4e-4)


QUIET = [
    ([1e-6], [1.0], 1e-11, None),
    ([3.036e-6, 4.126e-7], [16.0, 13.0], 8.86e-12, None),
    ([1.138e-6], [1.0], 2.85e-12, None),
    ([0.7151], [1.0], 6.74e-12, 2.74e-5),
    ([2.0], [1.0], 1e-12, 1e-4),
]


@pytest.mark.parametrize(("exposures", "steps", "delta", "interval"), QUIET)
def test_round_off_does_not_reach_the_figure_where_delta_is_tiny(exposures, steps, delta, interval):
    """Windows of up to a million points, against the exact Gaussian profile in high precision."""
    given = ExposureCounts(np.ones(len(exposures)), np.array(exposures), np.array([steps]))
    record = profiles(given, delta, epsilons=[0.0], precision=Precision(interval=interval))
    with mp.workdps(50):
        mu = mp.sqrt(sum(mp.mpf(n) * mp.mpf(e) ** 2 for n, e in zip(steps, exposures, strict=True)))

        def exact(epsilon):
            return mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)

        for epsilon in (*record.epsilon_in, *record.epsilon_out):
            assert exact(mp.mpf(float(epsilon))) <= delta
        assert record.delta_in[0, 0] >= exact(mp.mpf(0))


def test_steps_that_are_too_loud_are_left_to_renyi():
    given = ExposureCounts(np.array([0.1, 0.1]), np.array([0.3, 1e5]), np.array([[5.0, 0.0], [5.0, 1.0]]))
    records = profiles(given, DELTA, epsilons=[1.0])
    assert records.epsilon[0] < 2
    assert records.epsilon[1] > 1e6
    assert records.delta[1, 0] == 1


@pytest.mark.parametrize("steps", [10**6, 10**8, 10**10, 10**12, 10**15])
@pytest.mark.parametrize(("rate", "exposure"), [(0.075, 13.72), (0.9, 20.0), (1e-3, 1.0)])
def test_runs_that_no_grid_resolves_are_left_to_renyi(rate, exposure, steps):
    """A run of 10^12 loud steps has an epsilon of 10^14; a grid for it would have e^loss overflow."""
    record = profiles(one_kind(1 / exposure, rate, steps), 0.3)
    alone = profiles(one_kind(1 / exposure, rate, 1), 0.3)
    assert alone.epsilon[0] <= record.epsilon[0] < np.inf


@pytest.mark.parametrize("delta", [1e-300, 1e-308, 5e-324])
def test_the_smallest_deltas(delta):
    assert 10 < profiles(one_kind(1.0, 0.1, 100), delta).epsilon[0] < np.inf
    assert 10 < gaussian_epsilon(1.0, delta) < np.inf


def test_records_without_or_beyond_any_exposure():
    given = ExposureCounts(np.full(3, 0.1), np.array([0.0, 0.5, np.inf]), np.array([[9.0, 0, 0], [5, 3, 0], [5, 3, 1]]))
    records = profiles(given, DELTA, epsilons=[1.0])
    assert records.epsilon[0] == 0
    assert 0 < records.epsilon[1] < 5
    assert records.epsilon[2] == np.inf
    assert records.delta[0, 0] == 0
    assert 0 < records.delta[1, 0] < 1
    assert records.delta[2, 0] == 1


@pytest.mark.parametrize("delta", [1e-14, 1e-30, 0.3, 0.999])
def test_delta_beyond_the_errors_falls_back_to_renyi(delta):
    epsilon = profiles(one_kind(1.0, 0.1, 100), delta).epsilon[0]
    lambdas = np.arange(1.0, 257.0)
    costs = SubsampledGaussian(sample_rate=0.1).log_moment([1.0], lambdas) * 100
    renyi = record_epsilons(costs, lambdas, delta)[0]
    assert epsilon <= renyi * 1.02 + 1e-9
    assert np.isfinite(epsilon)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"counts": np.ones((2, 3))}, "counts.shape"),
        ({"counts": -np.ones((1, 1))}, r"counts\[0, 0\]=-1"),
        ({"counts": np.full((1, 1), np.nan)}, "nan"),
        ({"counts": np.full((1, 1), 0.5)}, "counts=0.5: expected whole numbers"),
    ],
)
def test_bad_counts_are_refused(change, message):
    good = one_kind(1.0, 0.1, 10)
    values = {"rates": good.rates, "exposures": good.exposures, "counts": good.counts} | change
    with pytest.raises(ValueError, match=message):
        profiles(ExposureCounts(**values), DELTA)


@pytest.mark.parametrize("wrong", [{"grid": 0}, {"error": 1.0}, {"interval": -1}, {"interval": 3.0}])
def test_bad_precision_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Precision(**wrong)
