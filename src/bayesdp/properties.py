"""What a privacy guarantee implies: the paper's propositions as functions.

Post-processing (Proposition 2): whatever is computed from a release without looking at the data again keeps the
release's (epsilon, delta). There is nothing to compute, hence no function.
"""

from __future__ import annotations

import math

from bayesdp import validation
from bayesdp.validation import refuse

_ROUND_UP = 1e-12  # on a logarithm, for its own rounding


def basic_composition(guarantees: list[tuple[float, float]]) -> tuple[float, float]:
    """(sum of epsilons, sum of deltas) for several releases on the same data (Proposition 3: k epsilon, k delta).

    delta is at most 1. Holds for any guarantees, whatever accountant they came from; loose for many steps.
    """
    checked: list[tuple[float, float]] = []
    for guarantee in guarantees:
        try:
            epsilon, delta = guarantee
        except (TypeError, ValueError):
            raise refuse("guarantee", guarantee, "a pair (epsilon, delta)") from None
        checked.append(_check(epsilon, delta))
    return math.fsum(e for e, _ in checked), min(1.0, math.fsum(d for _, d in checked))


def group_privacy(epsilon: float, delta: float, size: int) -> tuple[float, float]:
    """(k epsilon, delta (e^{k epsilon} - 1) / (e^epsilon - 1)) for k records of one person.

    The geometric sum inside the proof of Proposition 4, never above its printed k e^{k epsilon} delta; at most 1.
    """
    epsilon, delta = _check(epsilon, delta)
    size = validation.count("size", size, minimum=1)
    total = size * epsilon
    if delta == 0 or size == 1:
        return total, delta
    if epsilon == 0:
        return total, min(1.0, size * delta)
    # e^{k epsilon} itself may overflow where delta times it does not
    log_factor = total + math.log(-math.expm1(-total)) - (epsilon + math.log(-math.expm1(-epsilon)))
    return total, math.exp(min(0.0, math.log(delta) + max(log_factor, 0.0) + _ROUND_UP))


def attack_success(epsilon: float) -> float:
    """P(A) = 1 / (1 + e^-epsilon): the most that membership of one record can be guessed, from a prior of 1/2.

    Equation 1 of the paper. Holds for pure epsilon; with (epsilon, delta) add at most delta / 2.
    """
    epsilon = validation.non_negative("epsilon", epsilon)
    return 1.0 / (1.0 + math.exp(-epsilon))


def epsilon_of_attack_success(success: float) -> float:
    """The inverse of ``attack_success``: log(p / (1 - p)) for p in [0.5, 1)."""
    success = validation.probability("success", success)
    if success < 0.5:
        raise refuse("success", success, "a probability in [0.5, 1)")
    return math.log(success) - math.log1p(-success)


def markov_share(average_delta: float, delta: float) -> float:
    """The share of the population for which (epsilon, delta) holds if delta averages to ``average_delta``.

    At least 1 - average_delta / delta, by Markov's inequality (section 4.4 of the paper); 0 where that says nothing.
    The average must bound the larger of the two directions of each record.
    """
    if validation.non_negative("average_delta", average_delta) > 1:
        raise refuse("average_delta", average_delta, "a probability")
    delta = validation.probability("delta", delta)
    return max(0.0, 1.0 - average_delta / delta)


def markov_average_delta(share: float, delta: float) -> float:
    """The average delta that gives (epsilon, delta) to this share: (1 - share) delta."""
    share = validation.probability("share", share)
    return (1.0 - share) * validation.probability("delta", delta)


def _check(epsilon: float, delta: float) -> tuple[float, float]:
    epsilon = validation.non_negative("epsilon", epsilon)
    if validation.non_negative("delta", delta) > 1:
        raise refuse("delta", delta, "a probability")
    return epsilon, float(delta)
