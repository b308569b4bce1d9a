"""Many orders at once: a single chunk may exceed what is remembered."""

import numpy as np

from bayesdp import BayesianAccountant


def test_more_orders_than_are_remembered():
    accountant = BayesianAccountant(total_steps=10, lambdas=np.arange(1, 12_001), as_published=False)
    accountant.step([0.001, 0.002, 0.004], noise_std=1.0, sample_rate=1.0, clip=0.01)
    assert (np.diff(accountant.costs) > 0).all()
