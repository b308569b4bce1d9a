"""Mechanisms: what one noisy release costs a record. One file each; docs/extending.md says how to add one.

mechanism.py            the interface: forward, reverse, log_moment
gaussian.py             the subsampled Gaussian (DP-SGD); gaussian_moments.py computes its sums
laplace.py, randomized_response.py, unequal_gaussians.py
subsampling.py          Poisson subsampling of any other mechanism
binomial.py             logarithms of binomial probabilities
float_grid.py           grids that round by the bits of a float
log_moments.py          log-moments of steps that differ in their sampling rates
kept_results.py         the latest results of slow functions of arrays
"""

from bayesdp.mechanisms.gaussian import SubsampledGaussian, published_reverse_cost
from bayesdp.mechanisms.laplace import Laplace
from bayesdp.mechanisms.mechanism import Mechanism
from bayesdp.mechanisms.randomized_response import RandomizedResponse
from bayesdp.mechanisms.subsampling import PoissonSubsampled
from bayesdp.mechanisms.unequal_gaussians import GaussianLaws, UnequalGaussians

REGISTRY: tuple[type[Mechanism], ...] = (
    SubsampledGaussian,
    Laplace,
    RandomizedResponse,
    UnequalGaussians,
    PoissonSubsampled,
)
"""Every mechanism; the contract suite (tests/contracts) runs over all of them."""

__all__ = [
    "REGISTRY",
    "GaussianLaws",
    "Laplace",
    "Mechanism",
    "PoissonSubsampled",
    "RandomizedResponse",
    "SubsampledGaussian",
    "UnequalGaussians",
    "published_reverse_cost",
]
