"""Which orders an ex-post bound weighs: laid out from the plan of a run, before its first step.

A record that costs as much as the clip bound has its best order low, a quieter one higher. The plan says where the clip
bound's is, so the orders between it and that of a record with a quarter of the exposure (a sixteenth of the cost) get
nearly all the weight: few of them where epsilon is tiny, because each one's weight costs the others theirs. Quieter
records are covered by two higher orders, and lose a little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from bayesdp.claims.plan import DeclaredPlan, Plan
from bayesdp.mechanisms.gaussian import RepeatedStep
from bayesdp.mechanisms.log_moments import log_moments
from bayesdp.mechanisms.order_mixture import OrderMixture
from bayesdp.profiles.conversion import log_constant
from bayesdp.validation import FloatArray

_DELTA = 1e-5  # orders depend little on it, so one layout serves all deltas
_CANDIDATES = np.geomspace(0.25, 4096, 256)
_ORDERS, _ORDERS_TINY = 7, 3
_TINY = 50.0  # the best order of the clip bound above which epsilon is so small that each order's weight tells
_QUIETEST = 1 / 16
_FURTHER, _WEIGHT_FURTHER = (2.0, 4.0), 0.03
_LOWEST = 1.1  # times the best order of the clip bound: the neighbours of an order help it from above


def plan_settings(plan: Plan | Sequence[Plan] | None) -> dict[str, Any]:
    """Return what a plan adds to the settings of a ledger: its text, and the orders laid out for it."""
    if plan is None:
        return {}
    declared = DeclaredPlan.of(plan)
    steps = declared.repeated_steps()
    return {
        "plan": declared.to_json(),
        "mixture": laid_out(steps, "record out"),
        "mixture_in": laid_out(steps, "record in"),
    }


def laid_out(steps: Sequence[RepeatedStep], direction: Literal["record in", "record out"]) -> OrderMixture:
    """Return the mixture for a plan of these steps (noise multiplier, sampling rate, count), in one direction.

    Sound whatever the orders are, as long as they were chosen before the run; these make it tight.
    """
    noises, rates, counts = np.array(steps, np.float64).T
    costs = counts @ log_moments(rates, 1 / noises, _CANDIDATES, direction)
    first = _LOWEST * _best_order(costs)
    last = max(_best_order(costs * _QUIETEST), 2 * first)
    sampled = bool((rates < 1).any())
    number = _ORDERS_TINY if first > _TINY and not sampled else _ORDERS
    orders = [*np.geomspace(first, last, number).tolist(), *(last * factor for factor in _FURTHER)]
    if direction == "record in" and sampled:
        orders = [max(1.0, round(order)) for order in orders]  # log-moments are exact at whole orders
    weights = [(1 - _WEIGHT_FURTHER) / number] * number + [_WEIGHT_FURTHER / len(_FURTHER)] * len(_FURTHER)
    return OrderMixture(
        tuple(min(float(f"{order:.4g}"), float(_CANDIDATES[-1])) for order in orders),
        tuple(math.floor(weight * 1e4) / 1e4 for weight in weights),
        direction,
    )


def _best_order(costs: FloatArray) -> float:
    """Return the candidate at which the Rényi bound of a record with these costs is least."""
    constants = log_constant(_CANDIDATES, "improved")
    return float(_CANDIDATES[np.argmin((costs + constants - math.log(_DELTA)) / _CANDIDATES)])
