"""Auditing with a single run: many canaries, each in with probability 1/2, and how many of them are guessed right.

Steinke, Nasr and Jagielski 2023, "Privacy auditing with one (1) training run", Theorem 5.2: if the mechanism is
(epsilon, delta)-DP, then among r guesses about m canaries, the rest abstained from, the number W of right ones has

    Pr[W >= v] <= Pr[B >= v] + 2 m delta max_{i = 1 .. v} Pr[v > B >= v - i] / i,

where B ~ Bin(r, e^epsilon / (1 + e^epsilon)).

Mahloujifar, Melis and Chaudhuri 2024, "Auditing f-differential privacy in one run" (arXiv 2410.22235), use the whole
trade-off instead. Let p_j be the probability that j of r guesses about m canaries are right, and

    a_i = sum_{j >= i} p_j j / m,    b_i = sum_{j >= i} p_j (r - j) / m.

Under a mu-Gaussian trade-off b_i >= Phi(Phi^-1(a_(i+1)) - mu) for every i, since the canaries are exchangeable and what
is known about all but one of them is an event like any other. If v or more right guesses had probability alpha, the
least sums that these inequalities allow must stay below a_0 + b_0 = r / m.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from bayesdp import validation
from bayesdp.validation import FloatArray, refuse

_LARGEST = 50.0
_DIGITS = 1e-6


def one_run_p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float = 0.0) -> float:
    """Return the bound of the probability of at least ``right`` right guesses under (epsilon, delta)-DP.

    Raises InvalidInputError unless 0 <= right <= guesses <= canaries, and for epsilon and delta out of range.
    """
    canaries = validation.count("canaries", canaries, minimum=1)
    guesses = validation.count("guesses", guesses, minimum=0)
    right = validation.count("right", right, minimum=0)
    if not right <= guesses <= canaries:
        raise refuse("right", right, f"at most guesses={guesses}, and these at most canaries={canaries}")
    epsilon = validation.non_negative("epsilon", epsilon)
    if delta:
        delta = validation.probability("delta", delta)
    accuracy = 1 / (1 + math.exp(-epsilon))
    beyond = float(binom.sf(right - 1, guesses, accuracy))
    below: FloatArray = np.cumsum(binom.pmf(right - np.arange(1, right + 1), guesses, accuracy))
    most = float(np.max(below / np.arange(1, right + 1), initial=0.0))
    return min(1.0, beyond + 2 * canaries * delta * most)


def one_run_epsilon(canaries: int, guesses: int, right: int, delta: float = 0.0, alpha: float = 0.05) -> float:
    """Return the largest epsilon that so many right guesses refute at level ``alpha``, rounded down; 0 if none.

    A lower bound of epsilon at ``delta`` with confidence 1 - ``alpha``. The p-value is below alpha at all epsilons on
    the way up to it, so the search stops at the first that is not refuted.
    """
    alpha = validation.probability("alpha", alpha)
    low, high = 0.0, _LARGEST
    if one_run_p_value(canaries, guesses, right, low, delta) > alpha:
        return 0.0
    while high - low > _DIGITS:
        middle = (low + high) / 2
        if one_run_p_value(canaries, guesses, right, middle, delta) <= alpha:
            low = middle
        else:
            high = middle
    return low


def refuted_mu(canaries: int, guesses: int, right: int, mu: float, alpha: float = 0.05) -> bool:
    """Return whether so many right guesses have a probability of at most ``alpha`` under a mu-Gaussian trade-off.

    By going down from a_v = alpha v / m and b_v = alpha (r - v) / m: b_i is the larger of b_(i+1) and what the
    trade-off demands, and a_i grows by i / (r - i) times as much as b_i does.
    """
    correct, wrong = alpha * right / canaries, alpha * (guesses - right) / canaries
    for number in range(right - 1, -1, -1):
        demanded = max(wrong, float(ndtr(ndtri(correct) - mu)))
        correct = min(1.0, correct + number / (guesses - number) * (demanded - wrong))
        wrong = demanded
    return correct + wrong > guesses / canaries


def one_run_mu(canaries: int, guesses: int, right: int, alpha: float = 0.05) -> float:
    """Return the largest mu that so many right guesses refute at level ``alpha``, rounded down; 0 if none.

    A lower bound of mu with confidence 1 - ``alpha``, for mechanisms whose trade-off is that of a Gaussian.
    """
    alpha = validation.probability("alpha", alpha)
    if not 0 <= right <= guesses <= canaries:
        raise refuse("right", right, f"at most guesses={guesses}, and these at most canaries={canaries}")
    low, high = 0.0, _LARGEST
    while high - low > _DIGITS:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted_mu(canaries, guesses, right, middle, alpha) else (low, middle)
    return low


def guess_most_certain(scores: FloatArray, included: FloatArray, guesses: int) -> int:
    """Return how many of the most certain guesses are right: highest scores are guessed in, lowest out, half each.

    ``scores`` [m] and ``included`` [m], 1 for in and 0 for out. The number of guesses is fixed beforehand.
    """
    order = np.argsort(scores)
    half = guesses // 2
    return int(np.count_nonzero(included[order[-half:]] == 1) + np.count_nonzero(included[order[:half]] == 0))
