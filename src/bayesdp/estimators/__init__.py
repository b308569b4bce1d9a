"""Estimators: what m samples say about the mean of a population. One file each; docs/extending.md says how to add one.

estimator.py            the interface: upper, log_upper
student_t.py, beta.py, dirichlet.py
                        the paper's, which rest on a model
distribution_free.py    the interface of those that rest on none
betting.py, kullback_leibler.py, bernstein.py
                        distribution-free, from the sharpest to the simplest
order_statistics.py     which of m sorted samples covers a share of the population
"""

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
"""Every estimator; the contract suite (tests/contracts) runs over all of them."""

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
