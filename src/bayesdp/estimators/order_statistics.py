"""Which of m sorted samples covers a share of the population, at a failure probability, whatever the law."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from functools import lru_cache

from scipy.special import betainc

from bayesdp import validation

_ROUND_UP = 1.0 + 1e-9  # more than betainc loses at any m that fits in memory


def order_statistic_rank(m: int, share: float, gamma: float) -> int | None:
    """Return the rank k, counted from 1, of the sample that covers ``share`` of the population: None if none does.

    k is the least with Pr[Bin(m, share) >= k] <= gamma; there is none if share^m > gamma (see ``records_needed``).

    Formal guarantees: with probability at least 1 - gamma over m independent samples of any law, at least ``share`` of
    the population has no larger value than the k-th smallest sample. For that fails only if k or more samples lie below
    the quantile q of that share, and each does with probability Pr[X < q] <= share.

    Where the tail is within a relative 1e-9 of gamma, k may be the next larger rank. Raises InvalidInputError unless m
    is a whole number of at least 1 and both ``share`` and ``gamma`` are strictly between 0 and 1.
    """
    m = validation.count("m", m, minimum=1)
    share, gamma = validation.probability("share", share), validation.probability("gamma", gamma)
    if not _power_is_at_most(share, m, gamma):
        return None
    fails, holds = 0, m
    while holds - fails > 1:
        k = (fails + holds) // 2
        tail = float(betainc(k, m - k + 1, share))  # Pr[Bin(m, share) >= k]
        fails, holds = (fails, k) if tail * _ROUND_UP <= gamma else (k, holds)
    return holds


def records_needed(share: float, gamma: float) -> int:
    """Return the least m with share^m <= gamma; with fewer samples, nothing can be said about ``share``.

    Exact, ties included. Raises InvalidInputError unless both arguments are strictly between 0 and 1.
    """
    return _needed(validation.probability("share", share), validation.probability("gamma", gamma))


@lru_cache(maxsize=1024)
def _needed(share: float, gamma: float) -> int:
    with localcontext(prec=60):
        m = math.ceil(Decimal(gamma).ln() / Decimal(share).ln())
    return m - 1 if _power_is_at_most(share, m - 1, gamma) else m


@lru_cache(maxsize=1024)
def _power_is_at_most(share: float, m: int, gamma: float) -> bool:
    with localcontext(prec=60):
        return Decimal(share) ** m <= Decimal(gamma)
