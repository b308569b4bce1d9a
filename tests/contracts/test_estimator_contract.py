"""What every estimator in the registry promises."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesdp.estimators import (
    REGISTRY,
    Beta,
    Betting,
    Dirichlet,
    EmpiricalBernstein,
    KullbackLeibler,
    StudentT,
)

BINARY = np.r_[np.zeros(40), np.ones(3)]
SPREAD = np.linspace(0, 1, 43)
VALUES = {
    StudentT: [BINARY, SPREAD],
    Beta: [BINARY],
    Dirichlet: [BINARY, SPREAD],
    Betting: [BINARY, SPREAD],
    KullbackLeibler: [BINARY, SPREAD],
    EmpiricalBernstein: [BINARY, SPREAD],
}
CASES = [(estimator, values) for estimator in REGISTRY for values in VALUES[estimator]]


def test_every_estimator_has_values():
    assert set(VALUES) == set(REGISTRY)


@pytest.mark.parametrize(("kind", "values"), CASES, ids=lambda x: getattr(x, "__name__", f"{np.size(x)}"))
class TestContract:
    def test_above_the_mean_and_at_most_the_bound(self, kind, values):
        for gamma in (0.1, 1e-5, 1e-15):
            assert values.mean() < kind(gamma=gamma).upper(values, bound=1.0) <= 1.0

    def test_smaller_gamma_gives_more(self, kind, values):
        results = [kind(gamma=gamma).upper(values, bound=1.0) for gamma in (0.1, 1e-3, 1e-9, 1e-15, 1e-17)]
        assert results == sorted(results)

    def test_logarithms_agree(self, kind, values):
        estimator = kind(gamma=1e-6)
        with np.errstate(divide="ignore"):
            logs = np.log(values)
        assert math.exp(estimator.log_upper(logs, 0.0)) == pytest.approx(estimator.upper(values, 1.0), rel=1e-12)

    def test_scale_does_not_matter_in_log_space(self, kind, values):
        estimator = kind(gamma=1e-6)
        with np.errstate(divide="ignore"):
            logs = np.log(values)
        base = estimator.log_upper(logs, 0.0)
        for shift in (-1e4, 1e4):
            assert estimator.log_upper(logs + shift, shift) == pytest.approx(base + shift, abs=1e-7)

    def test_columns_are_estimated_one_by_one(self, kind, values):
        both = np.stack([values, 2 * values], axis=1)
        estimator = kind(gamma=1e-6)
        result = estimator.upper(both, bound=[1.0, 2.0])
        np.testing.assert_allclose(result, [estimator.upper(values, 1.0), estimator.upper(2 * values, 2.0)], rtol=1e-12)

    def test_refusals(self, kind, values):
        estimator = kind(gamma=1e-6)
        for bad, message in (
            (values[:2], "samples=2"),
            ([0.0, 1.0, math.nan], r"values\[2\]=nan"),
            ([0.0, 1.0, -1.0], r"values\[2\]=-1.0"),
        ):
            with pytest.raises(ValueError, match=message):
                estimator.upper(bad, bound=1.0)
        with pytest.raises(ValueError, match="log_bound="):
            estimator.upper(values, bound=0.5)
        for gamma in (0, 1, -1, math.nan, "0.1"):
            with pytest.raises(ValueError, match="gamma="):
                kind(gamma=gamma)

    def test_equal_values_give_the_bound_or_nearly(self, kind, values):
        assert kind(gamma=1e-15).upper(np.full(10, 0.3), bound=1.0) > 0.9

    def test_equal_values_without_a_bound_are_refused(self, kind, values):
        with pytest.raises(ValueError, match="bound"):
            kind(gamma=1e-15).upper(np.full(10, 0.3))


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=3, max_size=60), st.sampled_from([0.2, 1e-4, 1e-15]))
def test_more_ones_never_give_less(values, gamma):
    raised = [1.0, *values[1:]]
    for kind in (Beta, Dirichlet):
        assert kind(gamma=gamma).upper(raised, 1.0) >= kind(gamma=gamma).upper(values, 1.0) * (1 - 1e-9)
