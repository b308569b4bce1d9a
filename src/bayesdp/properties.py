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
    """Return (sum of epsilons, sum of deltas) of several releases on the same data; delta is at most 1.

    The paper's Proposition 3, there for equal releases: (k epsilon, k delta). It holds for guarantees (epsilon, delta)
    from any accountant, but is loose for many steps, which an accountant composes better. No releases give (0, 0).
    Raises InvalidInputError for anything but pairs of a finite epsilon of at least 0 and a probability.
    """
    checked: list[tuple[float, float]] = []
    for guarantee in validation.listed("guarantees", guarantees, "pairs (epsilon, delta)"):
        try:
            epsilon, delta = guarantee
        except (TypeError, ValueError):
            raise refuse("guarantee", guarantee, "a pair (epsilon, delta)") from None
        checked.append(_check(epsilon, delta))
    return math.fsum(e for e, _ in checked), min(1.0, math.fsum(d for _, d in checked))


def group_privacy(epsilon: float, delta: float, size: int) -> tuple[float, float]:
    """Return what (epsilon, delta) for one record implies for k = ``size`` records, such as all rows of one person.

    (k epsilon, delta (e^{k epsilon} - 1) / (e^epsilon - 1)), delta at most 1: the geometric sum inside the proof of the
    paper's Proposition 4, never above the k e^{k epsilon} delta that is printed there. Errs upwards by at most 1e-12
    relative, and does not overflow. Raises InvalidInputError for a negative epsilon, a delta that is no probability, or
    a size below 1.
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
    """Return P(A) = 1 / (1 + e^-epsilon): how often membership of one record can at most be guessed right.

    Equation 1 of the paper, from a prior of 1/2: 0.5 at epsilon 0 is guessing. It holds for pure epsilon; with
    (epsilon, delta) add at most delta / 2. Raises InvalidInputError unless epsilon is finite and at least 0.
    """
    epsilon = validation.non_negative("epsilon", epsilon)
    return 1.0 / (1.0 + math.exp(-epsilon))


def epsilon_of_attack_success(success: float) -> float:
    """Return the epsilon at which an attack succeeds with probability p: log(p / (1 - p)), from a prior of 1/2.

    The inverse of ``attack_success``. Raises InvalidInputError unless p is in [0.5, 1).
    """
    success = validation.probability("success", success)
    if success < 0.5:
        raise refuse("success", success, "a probability in [0.5, 1)")
    return math.log(success) - math.log1p(-success)


def markov_share(average_delta: float, delta: float) -> float:
    """Return the least share of the population that has (epsilon, delta) if deltas average to ``average_delta``.

    1 - average_delta / delta, by Markov's inequality (section 4.4 of the paper); 0 where that says nothing. The average
    is over the population, at one epsilon, of the larger of the two directions of each record. Raises InvalidInputError
    for an average that is no probability, or a delta that is not strictly between 0 and 1.
    """
    average = validation.non_negative("average_delta", average_delta)
    if average > 1:
        raise refuse("average_delta", average_delta, "a probability")
    return max(0.0, 1.0 - average / validation.probability("delta", delta))


def markov_average_delta(share: float, delta: float) -> float:
    """Return the average delta that gives (epsilon, delta) to ``share`` of the population: (1 - share) delta.

    The inverse of ``markov_share``. Raises InvalidInputError unless both are strictly between 0 and 1.
    """
    share = validation.probability("share", share)
    return (1.0 - share) * validation.probability("delta", delta)


def _check(epsilon: float, delta: float) -> tuple[float, float]:
    epsilon = validation.non_negative("epsilon", epsilon)
    if validation.non_negative("delta", delta) > 1:
        raise refuse("delta", delta, "a probability")
    return epsilon, float(delta)
