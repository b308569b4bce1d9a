"""Rényi divergences of sampled steps are those of dp-accounting, to the last bit, at every order."""

import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from bayesdp.guarantees.renyi_divergences import sampled_divergences
from bayesdp.guarantees.worst_case import to_dp_event


@pytest.mark.parametrize(
    ("noise_multiplier", "rate"),
    [(1.1, 256 / 60000), (0.8, 0.01), (4.0, 0.1), (0.3, 0.5), (0.05, 1e-6), (50.0, 0.999), (1.0, 1e-12), (9.0, 0.3)],
)
def test_as_dp_accounting_order_by_order(noise_multiplier, rate):
    accountant = RdpAccountant().compose(to_dp_event([(noise_multiplier, rate, 1)]))
    own = sampled_divergences(noise_multiplier, rate, np.asarray(accountant._orders, float))
    np.testing.assert_array_equal(own, accountant._rdp)
    assert np.isfinite(own).any()
