"""Estimators: what m samples say about the mean over everybody. One file each; to add one, see docs/extending.md."""

from bayesdp.estimators.beta import Beta
from bayesdp.estimators.dirichlet import Dirichlet
from bayesdp.estimators.estimator import Estimator
from bayesdp.estimators.student_t import StudentT

REGISTRY: tuple[type[Estimator], ...] = (StudentT, Beta, Dirichlet)
"""Every estimator; the contract suite runs over it."""

__all__ = ["REGISTRY", "Beta", "Dirichlet", "Estimator", "StudentT"]
