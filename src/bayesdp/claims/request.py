"""Which claims are wanted: checked once, before anything is computed or written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bayesdp import validation
from bayesdp.claims.ex_post import FORMS, Form
from bayesdp.estimators import Betting, DistributionFree, EmpiricalBernstein, KullbackLeibler, StudentT
from bayesdp.validation import refuse

DEFAULT_SHARES = (0.5, 0.9, 0.99)
"""The shares of the population that are claimed unless others are asked for, also on the report."""
ESTIMATORS: dict[str, type[DistributionFree]] = {
    "betting": Betting,
    "kullback-leibler": KullbackLeibler,
    "empirical-bernstein": EmpiricalBernstein,
}


@dataclass(frozen=True, kw_only=True)
class ClaimRequest:
    """The arguments of ``Ledger.claims``, which explains them, and ``paper_gamma``.

    ``paper_gamma`` is the failure probability of the paper's estimator at each order. Values are converted to their
    proper types, so that equal requests compare equal. Raises InvalidInputError for values out of range.
    """

    delta: float = 1e-5
    gamma: float = 0.01
    shares: Iterable[float] = DEFAULT_SHARES
    joint: bool = False
    estimator: str = "betting"
    fixed_exposures: bool = False
    private: bool = False
    rows: int = 1
    paper_gamma: float = 1e-15
    form: Form = "hockey-stick"
    looks: int = 1

    def __post_init__(self) -> None:
        checked = {
            "delta": validation.probability("delta", self.delta),
            "gamma": validation.probability("gamma", self.gamma),
            "shares": tuple(
                validation.probability("shares", share)
                for share in validation.listed("shares", self.shares, "probabilities strictly between 0 and 1")
            ),
            "looks": validation.count("looks", self.looks, minimum=1),
            "rows": validation.count("rows", self.rows, minimum=1),
            "paper_gamma": StudentT(gamma=validation.probability("paper_gamma", self.paper_gamma)).gamma,
        }
        if self.estimator not in ESTIMATORS:
            raise refuse("estimator", self.estimator, "one of " + ", ".join(ESTIMATORS))
        if self.form not in FORMS:
            raise refuse("form", self.form, "one of " + ", ".join(FORMS))
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def average_estimator(self) -> DistributionFree:
        """The estimator of the average, with failure probability gamma for all looks together."""
        return ESTIMATORS[self.estimator](gamma=self.gamma / self.looks)
