"""The gate: a promise declared before training, and a single bit afterwards: met or not met.

A budget B at one order lambda is fixed before the run such that c_lambda e^{B - lambda epsilon} = delta. The model is
released only if at most k of the m audit records cost more than B. The number k is the largest for which a population
with more than a fraction 1 - share of such people would pass with probability at most gamma. Then (epsilon, delta')
holds on average over the population, with

    record out: delta' = delta + a,      record in: delta' = delta + min_t [e^t a + c_lambda e^{B - lambda t}],

where a is the smaller of 1 - share + gamma and (k+1)/(m+1), however the steps depend on each other (docs/theory.md has
the proof). Only that one bit may be read from the audit set before the release: whoever looks at more could adapt to
it, and the promise would no longer be fixed beforehand.
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
from bayesdp.guarantees.trade_off import probability_with
from bayesdp.ledger import StoredLedger
from bayesdp.profiles.conversion import best_order, costs_for, record_deltas
from bayesdp.validation import FloatArray, refuse

_POINTS = 128  # epsilons at which the bound of the record in is computed; any are sound
UNSEEN = (
    "the audit records were drawn from the population and not used to train or to choose",
    "before release, nothing was read from the audit records except whether the gate was still met",
)
"""What the gate assumes about the audit records."""


@dataclass(frozen=True)
class Gate:
    """The promise itself: (epsilon, delta) for a share of the population, checked on ``records`` audit records.

    Pass it to ``Ledger.create(path, gate=...)`` before the first step: it becomes part of the ledger's hash chain.

    Attributes:
        epsilon: The privacy loss that a covered person may have, at ``delta``.
        delta: The failure probability for a covered person; ``claims`` says which delta results for the population.
        share: The fraction of the population that must stay within the budget.
        gamma: The probability that a population with too few such people passes all the same.
        records: The number of audit records; at least as many as ``share`` and ``gamma`` need.
        order: The order lambda at which costs are counted. By default the one at which a Gaussian step may be loudest.

    Raises:
        InvalidInputError: For values out of range, too few records, or an order whose budget is not above 0.
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
    def chosen_order(self) -> float:
        """The order lambda at which costs are counted."""
        assert self.order is not None
        return self.order

    @property
    def budget(self) -> float:
        """The budget B: the most that a record may cost at the order ``chosen_order``."""
        return float(costs_for(np.array([self.chosen_order]), self.epsilon, self.delta)[0])

    @property
    def allowed(self) -> int:
        """How many audit records may cost more than the budget: the largest k with Pr[Bin(m, 1-share) <= k] <= gamma.

        This probability is Pr[Bin(m, share) >= m - k], so k follows from the rank of an order statistic.
        """
        rank = order_statistic_rank(self.records, self.share, self.gamma)
        assert rank is not None  # enough records were declared
        return self.records - rank

    def met(self, costs: FloatArray) -> bool:
        """Return whether at most ``allowed`` of the costs [m], at the order ``chosen_order``, exceed the budget.

        NaN counts as exceeding it. Raises InvalidInputError if there is not one cost for each declared record.
        """
        if costs.shape != (self.records,):
            raise refuse("len(costs)", len(costs), f"one cost for each of the {self.records} audit records declared")
        return int(np.count_nonzero(~(costs <= self.budget))) <= self.allowed

    def claims(self, *, met: bool, worst_case: Claim | None = None) -> tuple[Claim, Claim]:
        """Return the claims (record out, record in): proved on average if the gate was met, without a figure if not.

        They contain nothing about the audit records except whether the gate was met.
        """
        # Whoever was left out is exchangeable with the audit records, so passes the gate by chance this often at most.
        missed = min(1 - self.share + self.gamma, (self.allowed + 1) / (self.records + 1))
        claim = Claim(
            epsilon=self.epsilon if met else math.inf,
            delta=min(1.0, self.delta + missed),
            audience="average",
            direction="record out",
            kind="proved",
            method=f"gate declared before the run: epsilon={self.epsilon:g}, delta={self.delta:g} for a share of "
            f"{percent(self.share)}, gamma={self.gamma:g}",
            samples=self.records,
            order=self.chosen_order,
            assumptions=(*UNSEEN, "the run was made once, not repeated until the gate was met"),
            notes=("delta includes how probably a person costs more than the budget although the gate is met.",),
            reason=None if met else "the gate declared before the run was not met",
            worst_case=worst_case,
        )
        epsilons = np.linspace(0.0, min(2 * self.epsilon, 700.0), _POINTS)
        deltas = record_deltas(np.array([[self.budget]]), np.array([self.chosen_order]), epsilons)[0]
        inward = min(1.0, self.delta + float(probability_with(np.array(missed), epsilons, deltas)))
        return claim, claim.with_figure(claim.epsilon, delta=inward, direction="record in")

    def to_json(self) -> str:
        """Return the gate as text for the settings of a ledger."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Gate:
        """Return the gate that ``to_json`` wrote."""
        values: dict[str, Any] = json.loads(text)
        return Gate(**values)


def declared_gate(ledger: StoredLedger) -> Gate | None:
    """Return the gate that was declared when a ledger was created, if there is one."""
    declared = ledger.declared_gate
    return None if declared is None else Gate.from_json(declared)
