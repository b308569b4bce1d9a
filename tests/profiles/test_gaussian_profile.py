"""The profile of a Gaussian release against high precision."""

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesdp.profiles import gaussian_delta, gaussian_epsilon


def exact_delta(mu: float, epsilon: float) -> mp.mpf:
    with mp.workdps(60):
        m, e = mp.mpf(mu), mp.mpf(epsilon)
        return mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)


@given(st.floats(-6, 2), st.floats(0, 8))
def test_never_below_and_close(log_mu, spreads):
    mu = 10.0**log_mu
    epsilon = mu * mu / 2 + spreads * mu
    exact = exact_delta(mu, epsilon)
    delta = float(gaussian_delta(mu, epsilon))
    assert exact <= delta <= min(1.0, float(exact) * (1 + 1e-6 + 1e-11 / mu) + 1e-300)


@given(st.floats(-5, 1.5), st.sampled_from([0.1, 1e-5, 1e-9, 1e-30]))
def test_epsilon_is_the_least_that_serves(log_mu, delta):
    mu = 10.0**log_mu
    epsilon = gaussian_epsilon(mu, delta)
    assert exact_delta(mu, epsilon) <= delta
    if epsilon > 0:
        assert exact_delta(mu, epsilon * (1 - 1e-6)) > delta * (1 - 1e-9)


def test_many_at_once_and_the_edges():
    values = gaussian_epsilon([0.0, 1.0, 2.0, np.inf], 1e-5)
    assert values[0] == 0
    assert values[3] == np.inf
    assert values[1] == gaussian_epsilon(1.0, 1e-5) == pytest.approx(4.377177, abs=1e-5)
    assert gaussian_epsilon(1e-9, 1e-5) == 0.0
    assert gaussian_delta(np.inf, 3.0) == 1.0
    assert gaussian_delta(0.0, 0.0) == 0.0


@pytest.mark.parametrize(
    ("mu", "delta", "message"), [(-1, 1e-5, "mu=-1"), (np.nan, 1e-5, "mu=nan"), (1, 0, "delta=0"), (1, 2, "delta=2")]
)
def test_refused(mu, delta, message):
    with pytest.raises(ValueError, match=message):
        gaussian_epsilon(mu, delta)
