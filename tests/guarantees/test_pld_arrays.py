"""Distributions composed and read by arrays are dp-accounting's, to the last bit."""

import numpy as np
import pytest
from dp_accounting.pld.pld_pmf import DensePLDPmf, create_pmf_pessimistic_connect_dots_fixed_gap
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from bayesdp.guarantees.gaussian_pld import gaussian_pld
from bayesdp.guarantees.pld_arrays import connected_dots, least_epsilon, self_composed

DELTAS = (0.9, 0.3, 1e-3, 1e-5, 1e-9, 2e-12)


def masses(distribution):
    pmfs = [pmf.to_dense_pmf() for pmf in (distribution._pmf_remove, distribution._pmf_add)]
    return [(pmf._lower_loss, pmf._probs.tolist(), pmf._infinity_mass) for pmf in pmfs]


@pytest.mark.parametrize(
    ("noise", "rate", "interval", "times"),
    [
        (1.0, 0.01, 1e-3, 1000),
        (0.4, 1e-4, 5e-3, 37),
        (0.6, 0.3, 2e-3, 1),
        (0.6, 0.9, 2e-3, 10),
        (3.0, 1.0, 1e-3, 4),  # the same in both directions
        (2.0, 0.05, 1e-3, 30_000),
        (0.05, 0.5, 0.2, 3),  # losses whose e^-loss is 0
        (20.0, 0.1, 0.02, 50),  # few points
        (1.0, 1e-9, 5e-3, 10),
    ],
)
def test_compositions_and_their_epsilons(noise, rate, interval, times):
    step = gaussian_pld(noise, rate, interval)
    composed, expected = self_composed(step, times), step.self_compose(times)
    assert masses(composed) == masses(expected)
    for delta in DELTAS:
        with np.errstate(over="ignore"):
            epsilon = expected.get_epsilon_for_delta(delta)
        assert least_epsilon(composed, delta) == epsilon


def test_a_delta_below_the_mass_at_infinity_and_losses_beyond_floats():
    for lowest in (-2_000_000, 2_000_000, -1500):
        for infinite in (0.0, 1e-4):
            pmf = DensePLDPmf(1e-3, lowest, np.full(3000, (1 - infinite) / 3000), infinite, True)
            distribution = PrivacyLossDistribution(pmf)
            for delta in (1e-5, 0.5, 0.9999):
                try:
                    expected = distribution.get_epsilon_for_delta(delta)
                except OverflowError:
                    with pytest.raises(OverflowError):
                        least_epsilon(distribution, delta)
                else:
                    assert least_epsilon(distribution, delta) == expected


@pytest.mark.parametrize("points", [2, 900, 3000])
def test_connected_dots(points):
    deltas = np.sort(np.random.default_rng(points).random(points))[::-1] ** 3
    found = connected_dots(1e-2, -7, points - 8, deltas).to_dense_pmf()
    expected = create_pmf_pessimistic_connect_dots_fixed_gap(1e-2, -7, points - 8, deltas).to_dense_pmf()
    assert found._probs.tolist() == expected._probs.tolist()
    assert (found._lower_loss, found._infinity_mass) == (expected._lower_loss, expected._infinity_mass)


def test_deltas_that_rise_are_refused():
    deltas = np.linspace(1, 0, 3000)
    deltas[1500] = 0.9
    with pytest.raises(ValueError, match="rise"):
        connected_dots(1e-2, 0, 2999, deltas)
