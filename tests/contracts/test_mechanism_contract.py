"""What every mechanism in the registry promises."""

import numpy as np
import pytest

from bayesdp.mechanisms import (
    REGISTRY,
    GaussianLaws,
    Laplace,
    PoissonSubsampled,
    RandomizedResponse,
    SubsampledGaussian,
    UnequalGaussians,
)

SCALARS = np.array([0.0, 1e-8, 1e-3, 0.1, 1.0, 3.0, 30.0, 1e3])


def growing_laws(exposures):
    return GaussianLaws(
        np.stack([exposures, 0 * exposures], axis=1), np.stack([1 + 0 * exposures, np.exp(-exposures / 10)], axis=1)
    )


# An instance and, for increasing numbers, its exposures in increasing order.
EXAMPLES = {
    SubsampledGaussian: [(SubsampledGaussian(sample_rate=0.01), np.asarray), (SubsampledGaussian(), np.asarray)],
    Laplace: [(Laplace(), np.asarray)],
    RandomizedResponse: [(RandomizedResponse(), np.asarray), (RandomizedResponse(answers=7), np.asarray)],
    UnequalGaussians: [(UnequalGaussians(GaussianLaws(np.zeros((1, 2)), np.ones((1, 2)))), growing_laws)],
    PoissonSubsampled: [
        (PoissonSubsampled(mechanism=Laplace(), sample_rate=0.1), np.asarray),
        (
            PoissonSubsampled(
                mechanism=UnequalGaussians(GaussianLaws(np.zeros((1, 2)), np.ones((1, 2)))), sample_rate=0.1
            ),
            growing_laws,
        ),
    ],
}
CASES = [(m, e) for examples in EXAMPLES.values() for m, e in examples]
ORDERS = [1, 2, 8, 64, 512]


def test_every_mechanism_has_an_example():
    assert set(EXAMPLES) == set(REGISTRY)


@pytest.mark.parametrize(("mechanism", "exposures"), CASES, ids=lambda x: getattr(x, "__name__", type(x).__name__))
class TestContract:
    def test_shape_sign_and_zero(self, mechanism, exposures):
        value = mechanism.log_moment(exposures(SCALARS), ORDERS)
        assert value.shape == (len(SCALARS), len(ORDERS))
        assert value.dtype == np.float64
        assert (value[0] == 0).all()
        assert (value[1:] > 0).all()
        assert not np.isnan(value).any()

    def test_increasing_in_exposure_and_order(self, mechanism, exposures):
        value = mechanism.log_moment(exposures(SCALARS), ORDERS)
        with np.errstate(invalid="ignore"):
            assert (np.nan_to_num(np.diff(value, axis=0)) >= 0).all()
            assert (np.nan_to_num(np.diff(value, axis=1)) >= 0).all()

    def test_order_per_unit_is_a_divergence_that_grows(self, mechanism, exposures):
        value = mechanism.log_moment(exposures(SCALARS[3:6]), ORDERS) / ORDERS
        with np.errstate(invalid="ignore"):
            assert (np.nan_to_num(np.diff(value, axis=1)) >= -1e-12).all()

    def test_is_the_larger_direction(self, mechanism, exposures):
        value = mechanism.log_moment(exposures(SCALARS), ORDERS)
        assert (value >= mechanism.forward(exposures(SCALARS), ORDERS)).all()
        if not (isinstance(mechanism, PoissonSubsampled) and mechanism.mechanism.forward_is_larger):
            # There reverse is a loose bound; the exact one is compared in tests/mechanisms/test_others.py.
            assert (value >= mechanism.reverse(exposures(SCALARS), ORDERS) * (1 - 1e-10)).all()  # both are rounded up

    def test_refuses_bad_orders(self, mechanism, exposures):
        for bad in ([0], [-1], [np.nan], [np.inf], []):
            with pytest.raises(ValueError, match="lambdas="):
                mechanism.log_moment(exposures(SCALARS), bad)


@pytest.mark.parametrize("mechanism", [m for m, e in CASES if e is np.asarray], ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("bad", [-0.1, np.nan])
def test_refuses_bad_exposures(mechanism, bad):
    with pytest.raises(ValueError, match=r"exposure\[1\]="):
        mechanism.log_moment([0.1, bad], [1])


def test_without_reverse_the_forward_direction_must_be_the_larger():
    class OneDirection(Laplace):
        forward_is_larger = False

    with pytest.raises(TypeError, match="OneDirection must define reverse"):
        OneDirection().log_moment([0.1], [1])
