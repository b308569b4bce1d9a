"""The gate: a promise declared before training, and one bit afterwards, met or not met.

A budget B at one order lambda is fixed before the run, so that c_lambda e^{B - lambda epsilon} = delta. The model is
released only if at most k of m audit records paid more than B, k such that more than 1 - share of such people would
pass with probability at most gamma. Then, on average over the population, (epsilon, delta') holds for

    record out: delta' = delta + (1 - share) + gamma,      record in: delta' = delta + e^epsilon (1 - share + gamma),

however the steps depend on each other (docs/theory.md has the proof). Nothing but the one bit may be read off the audit
set, or it was not fixed beforehand.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bayesdp import validation
from bayesdp.claims.claim import Claim
from bayesdp.estimators import order_statistic_rank, records_needed
from bayesdp.formatting import percent
from bayesdp.ledger import StoredLedger
from bayesdp.profiles.conversion import best_order, costs_for
from bayesdp.validation import FloatArray, refuse


@dataclass(frozen=True)
class Gate:
    """What is declared: (epsilon, delta) for a share of the population, and gamma, with ``records`` audit records.

    ``order`` is the lambda at which costs are counted; by default the one that leaves most to a Gaussian step.
    """

    epsilon: float
    delta: float
    share: float
    gamma: float
    records: int
    order: float | None = None

    def __post_init__(self) -> None:
        epsilon = validation.positive("epsilon", self.epsilon)
        delta = validation.probability("delta", self.delta)
        share, gamma = validation.probability("share", self.share), validation.probability("gamma", self.gamma)
        records = validation.count("records", self.records, minimum=1)
        needed = records_needed(share, gamma)
        if records < needed:
            raise refuse("records", records, f"at least {needed} audit records for share={share!r}, gamma={gamma!r}")
        order = best_order(epsilon, delta)[0] if self.order is None else self.order
        order = float(validation.lambdas([order], whole=True)[0])
        for name, value in (("epsilon", epsilon), ("delta", delta), ("share", share), ("gamma", gamma)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "records", records)
        object.__setattr__(self, "order", order)
        if self.budget <= 0:
            raise refuse("order", order, f"a lambda with a budget above 0 at epsilon={epsilon!r}, delta={delta!r}")

    @property
    def at(self) -> float:
        """The order lambda at which costs are counted."""
        assert self.order is not None
        return self.order

    @property
    def budget(self) -> float:
        """B, which a record may cost at ``at``."""
        return float(costs_for(np.array([self.at]), self.epsilon, self.delta)[0])

    @property
    def allowed(self) -> int:
        """k: the most audit records that may have paid more; the largest k with Pr[Bin(m, 1-share) <= k] <= gamma.

        That is Pr[Bin(m, share) >= m - k]: the same count as for a share.
        """
        rank = order_statistic_rank(self.records, self.share, self.gamma)
        assert rank is not None  # enough records were declared
        return self.records - rank

    def met(self, costs: FloatArray) -> bool:
        """Whether at most ``allowed`` records have costs [m], at order ``at``, above the budget."""
        if costs.shape != (self.records,):
            raise refuse("len(costs)", len(costs), f"one cost for each of the {self.records} audit records declared")
        return int(np.count_nonzero(~(costs <= self.budget))) <= self.allowed

    def claims(self, *, met: bool, worst_case: Claim | None = None) -> tuple[Claim, Claim]:
        """What is proved if the gate was met: record out, record in."""
        missed = 1 - self.share + self.gamma
        claim = Claim(
            epsilon=self.epsilon if met else math.inf,
            delta=min(1.0, self.delta + missed),
            audience="average",
            direction="record out",
            kind="proved",
            method=f"gate declared before the run: epsilon={self.epsilon:g}, delta={self.delta:g} for a share of "
            f"{percent(self.share)}, gamma={self.gamma:g}",
            samples=self.records,
            order=self.at,
            assumptions=(
                "the audit records were drawn from the population and not used to train or to choose",
                "nothing but whether the gate was still met was read off them before release",
                "the run was made once, not repeated until the gate was met",
            ),
            notes=("delta includes the share that is not covered, and gamma.",),
            reason=None if met else "the gate declared before the run was not met",
            worst_case=worst_case,
        )
        inward = min(1.0, self.delta + math.exp(min(self.epsilon, 700.0)) * missed)
        return claim, claim.with_figure(claim.epsilon, delta=inward, direction="record in")

    def to_json(self) -> str:
        """Text for the settings of a ledger."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Gate:
        """From the text that ``to_json`` gave."""
        values: dict[str, Any] = json.loads(text)
        return Gate(**values)


def declared_gate(ledger: StoredLedger) -> Gate | None:
    """Return the gate that was declared when a ledger was created, if there is one."""
    declared = ledger.declared_gate
    return None if declared is None else Gate.from_json(declared)
