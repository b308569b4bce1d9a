"""What the tables of nodes remember: bounded, and without influence on the result."""

import numpy as np
import pytest

from bayesdp import BayesianAccountant
from bayesdp.paper import nodes


def test_memory_and_tables_stay_bounded_over_many_steps():
    rng = np.random.default_rng(0)
    accountant = BayesianAccountant(total_steps=400, lambdas=range(1, 9))
    for _ in range(400):
        accountant.step(np.exp(rng.normal(0, 2, 50)), noise_std=1.0, sample_rate=0.1)
    remembered = accountant._tables[0.1]._nodes
    assert sum(table.powers.size for table in remembered._tables.values()) <= 5_000_000
    assert len(remembered._chunks) * 128 * 8 <= 1_500_000 + 128 * 8


def test_more_orders_than_are_remembered(monkeypatch):
    """A single chunk of nodes, and a single table, may exceed what is remembered."""

    def costs():
        accountant = BayesianAccountant(total_steps=10, lambdas=np.arange(1, 201))
        for clip in (0.01, 1.0, 0.01):
            accountant.step([0.001, 0.002, 0.004], noise_std=1.0, sample_rate=1.0, clip=clip)
        return accountant.costs

    remembered = costs()
    assert (np.diff(remembered) > 0).all()
    monkeypatch.setattr(nodes, "_REMEMBERED", nodes._CHUNK * 200 - 1)
    monkeypatch.setattr(nodes, "_TABULATED", 1)
    monkeypatch.setattr(nodes, "_BOUNDS", 1)
    np.testing.assert_array_equal(costs(), remembered)


@pytest.mark.slow
def test_twelve_thousand_orders():
    accountant = BayesianAccountant(total_steps=10, lambdas=np.arange(1, 12_001))
    accountant.step([0.001, 0.002, 0.004], noise_std=1.0, sample_rate=1.0, clip=0.01)
    assert (np.diff(accountant.costs) > 0).all()
