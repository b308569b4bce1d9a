"""Estimators: what m samples say about the mean over everybody. One file each; to add one, see docs/extending.md."""

from bayesdp.estimators.bernstein import EmpiricalBernstein
from bayesdp.estimators.beta import Beta
from bayesdp.estimators.betting import Betting
from bayesdp.estimators.dirichlet import Dirichlet
from bayesdp.estimators.distribution_free import DistributionFree
from bayesdp.estimators.estimator import Estimator
from bayesdp.estimators.kullback_leibler import KullbackLeibler
from bayesdp.estimators.order_statistics import order_statistic_rank, records_needed
from bayesdp.estimators.student_t import StudentT

REGISTRY: tuple[type[Estimator], ...] = (StudentT, Beta, Dirichlet, Betting, KullbackLeibler, EmpiricalBernstein)
"""Every estimator; the contract suite runs over it."""

__all__ = [
    "REGISTRY",
    "Beta",
    "Betting",
    "Dirichlet",
    "DistributionFree",
    "EmpiricalBernstein",
    "Estimator",
    "KullbackLeibler",
    "StudentT",
    "order_statistic_rank",
    "records_needed",
]
