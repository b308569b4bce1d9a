"""Mechanisms: what one noisy release costs a record. One file each; to add one, see docs/extending.md."""

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
"""Every mechanism; the contract suite runs over it."""

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
