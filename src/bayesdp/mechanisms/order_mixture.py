"""A mixture of orders, declared before a run: at which orders costs are kept along the run, and with which weights.

A bound that holds however steps depend on each other may choose no order afterwards; instead it weighs several that
were fixed beforehand (``bayesdp.claims.ex_post``). So the mixture is part of a ledger's settings.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bayesdp.validation import FloatArray


@dataclass(frozen=True)
class OrderMixture:
    """Orders lambda in ascending order, their weights, which add up to at most 1, and whose costs are counted.

    ``direction`` "record out" counts what a step costs somebody who was left out; "record in" is never below that, and
    was what ledgers counted up to version 0.1.0.
    """

    orders: tuple[float, ...]
    weights: tuple[float, ...]
    direction: Literal["record in", "record out"] = "record out"

    def __post_init__(self) -> None:
        assert len(self.orders) == len(self.weights)
        assert list(self.orders) == sorted(self.orders)
        assert sum(self.weights) <= 1

    @property
    def lambdas(self) -> FloatArray:
        """The orders as an array, [L]."""
        return np.array(self.orders)

    def to_json(self) -> str:
        """Return the mixture as text, for the settings of a ledger."""
        return json.dumps({"orders": self.orders, "weights": self.weights, "direction": self.direction})

    @staticmethod
    def from_json(text: str) -> OrderMixture:
        """Return the mixture from the text that ``to_json`` gave."""
        kept = json.loads(text)
        return OrderMixture(tuple(kept["orders"]), tuple(kept["weights"]), kept["direction"])


WIDE_OUT = OrderMixture((2, 4, 8, 16, 32, 64, 128, 256, 512, 1024), (*(0.12,) * 8, 0.02, 0.02))
"""For runs without a plan: most weight on the orders that suit ordinary runs, little on those of very quiet runs."""
WIDE_IN = OrderMixture(WIDE_OUT.orders, WIDE_OUT.weights, "record in")
"""The same for the direction of the record in, which costs more where steps are sampled."""
KEPT_BY_0_1_0 = OrderMixture((2, 4, 8, 16, 32, 64, 128, 256), (0.12,) * 8, "record in")
"""Of ledgers that say nothing about it, because version 0.1.0 wrote them."""
