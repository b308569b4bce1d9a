"""A second accountant, written from the definitions alone: slow, to 30 digits, and without a line of bayesdp in it.

Nothing here is clever. Integrals are sums over an even grid (the trapezoidal rule, which converges exponentially for
these integrands: the error is about e^{-2 pi d / h}, where d is the distance of the nearest singularity from the real
line), equations are solved by bisection, binomial tails are added up as whole numbers. ``tests/oracles`` compares
the library with it.

One step: Q = N(0, 1) without the record, M = (1 - q) Q + q N(e, 1) with it, at exposure e and rate q. The loss of
an output x is L = +-log(1 - q + q e^{e x - e^2 / 2}); "in" is the loss of someone who was in the data, "out" of someone
who was not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import mpmath as mp
import numpy as np

DIGITS = 30
mp.mp.dps = DIGITS + 10


def _grid(exposure: float, left: float, right: float) -> tuple[mp.mpf, list[mp.mpf]]:
    """Return the step h and points of an even grid that is fine enough for 30 digits."""
    singularity = mp.pi / exposure  # where 1 - q + q e^{...} vanishes, above the real line
    step = min(mp.mpf("0.4"), 2 * mp.pi * singularity / 85)
    first, last = int(mp.floor(left / step)), int(mp.ceil(right / step))
    return step, [number * step for number in range(first, last + 1)]


def log_moment(exposure: float, rate: float, order: float, direction: str) -> mp.mpf:
    """Return log E[e^{order L}] of one step, by quadrature: log E_Q[(M/Q)^{order+1}], or log E_Q[(M/Q)^{-order}]."""
    e, q, order = mp.mpf(exposure), mp.mpf(rate), mp.mpf(order)
    power = order + 1 if direction == "in" else -order
    width = mp.mpf(14) + mp.log(1 + order)
    left, right = (-width, power * e + width) if direction == "in" else (power * e - width, width)
    step, points = _grid(e, left, right)
    total = mp.fsum(mp.exp(-x * x / 2) * ((1 - q) + q * mp.exp(e * x - e * e / 2)) ** power for x in points)
    return mp.log(total * step / mp.sqrt(2 * mp.pi))


def closed_log_moment(exposure: float, rate: float, order: int) -> mp.mpf:
    """Return the same for a whole order and "in", by the binomial theorem: a check of the quadrature."""
    e, q = mp.mpf(exposure), mp.mpf(rate)
    terms = (
        mp.binomial(order + 1, k) * q**k * (1 - q) ** (order + 1 - k) * mp.exp(k * (k - 1) * e * e / 2)
        for k in range(order + 2)
    )
    return mp.log(mp.fsum(terms))


def composed_epsilon(costs: Sequence[mp.mpf], orders: Sequence[float], delta: float, *, improved: bool) -> mp.mpf:
    """Return min over orders of (K + log c - log delta) / order, at least 0, from log-moments K of a whole run."""
    found = []
    for cost, order in zip(costs, map(mp.mpf, orders), strict=True):
        constant = order * mp.log(order) - (order + 1) * mp.log(order + 1) if improved else mp.mpf(0)
        found.append((cost + constant - mp.log(mp.mpf(delta))) / order)
    return max(mp.mpf(0), min(found))


def gaussian_delta(mu: float, epsilon: float) -> mp.mpf:
    """Return delta(epsilon) of N(mu, 1) against N(0, 1)."""
    mu, epsilon = mp.mpf(mu), mp.mpf(epsilon)
    with mp.workdps(DIGITS + 60):  # the two terms may agree in many digits
        return mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)


def step_delta(exposure: float, rate: float, epsilon: mp.mpf, direction: str) -> mp.mpf:
    """Return the hockey-stick divergence of one step at any real epsilon, from the place where the loss crosses it."""
    e, q, epsilon = mp.mpf(exposure), mp.mpf(rate), mp.mpf(epsilon)
    sign = 1 if direction == "in" else -1
    ratio = (mp.exp(sign * epsilon) - 1 + q) / q
    if ratio <= 0:  # M / Q is never below 1 - q
        return max(mp.mpf(0), 1 - mp.exp(epsilon)) if direction == "in" else mp.mpf(0)
    x = (mp.log(ratio) + e * e / 2) / e
    if direction == "in":
        without, with_record = mp.ncdf(-x), (1 - q) * mp.ncdf(-x) + q * mp.ncdf(e - x)
        return with_record - mp.exp(epsilon) * without
    without, with_record = mp.ncdf(x), (1 - q) * mp.ncdf(x) + q * mp.ncdf(x - e)
    return without - mp.exp(epsilon) * with_record


def two_step_delta(exposure: float, rate: float, epsilon: float, direction: str) -> mp.mpf:
    """Return the hockey-stick divergence of two steps: the mean over the first output of what the second one adds.

    By tanh-sinh quadrature to about 15 digits, up to the first output x beyond which the second step cannot matter any
    more (its loss is bounded on one side by log(1 - q)); beyond it "in" adds a closed form and "out" nothing.
    """
    e, q, epsilon = mp.mpf(exposure), mp.mpf(rate), mp.mpf(epsilon)

    def integrand(x: mp.mpf) -> mp.mpf:
        likelihood = (1 - q) + q * mp.exp(e * x - e * e / 2)
        density = mp.npdf(x) * (likelihood if direction == "in" else 1)
        loss = mp.log(likelihood) if direction == "in" else -mp.log(likelihood)
        return density * step_delta(exposure, rate, epsilon - loss, direction)

    crossing = mp.exp(epsilon if direction == "in" else -epsilon) / (1 - q)
    if crossing <= 1 - q:
        return mp.mpf(0)
    last = (mp.log((crossing - 1 + q) / q) + e * e / 2) / e
    ends = [*(last - distance for distance in (6, 2, mp.mpf("0.5"), mp.mpf("0.05"), mp.mpf("0.005"))), last]
    ends = [mp.mpf(-11), *(x for x in [mp.mpf(-4), mp.mpf(0)] if x < ends[0]), *(end for end in ends if end > -11)]
    with mp.workdps(18):
        total = mp.quad(integrand, ends, maxdegree=5)
    if direction == "in":
        total += (1 - q) * mp.ncdf(-last) + q * mp.ncdf(e - last) - mp.exp(epsilon) * mp.ncdf(-last)
    return total


def epsilon_at(delta_of: Callable[[mp.mpf], mp.mpf], delta: float, most: float = 200.0, halvings: int = 60) -> mp.mpf:
    """Return the least epsilon of at least 0 at which a falling function is at most ``delta``, by bisection."""
    low, high = mp.mpf(0), mp.mpf(most)
    if delta_of(low) <= delta:
        return low
    assert delta_of(high) <= delta
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (low, middle) if delta_of(middle) <= delta else (middle, high)
    return (low + high) / 2


def convolved_deltas(
    exposure: float, rate: float, steps: int, epsilon: float, direction: str, spacing: float
) -> tuple[float, float]:
    """Return a lower and an upper bound of delta(epsilon) of several steps, by brute-force convolution.

    The loss of a step is rounded down, or up, onto multiples of ``spacing``, and its law is convolved with itself, sum
    by sum, in double precision: all terms are positive, so nothing cancels. Mass beyond 9 standard deviations is left
    out of the lower bound and counts in full in the upper one.
    """
    sign = 1 if direction == "in" else -1

    def loss(x: float) -> float:
        return sign * math.log1p(rate * math.expm1(exposure * x - exposure**2 / 2))

    ends = sorted([loss(-9.0), loss(9.0 + exposure)])
    first, last = math.floor(ends[0] / spacing), math.ceil(ends[1] / spacing)
    edges = [(number * spacing) for number in range(first, last + 1)]
    below = [_mass_below(exposure, rate, edge, direction) for edge in edges]
    masses = np.diff(below)
    found = []
    for rounded_up in (False, True):
        sums, start = masses, first + rounded_up
        for _ in range(steps - 1):
            sums = np.convolve(sums, masses)
        losses = spacing * (steps * start + np.arange(len(sums)))
        beyond = losses > epsilon
        delta = float((sums[beyond] * -np.expm1(epsilon - losses[beyond])).sum())
        found.append(delta + steps * (1.0 - (below[-1] - below[0])) if rounded_up else delta)
    return found[0] * (1 - 1e-9), found[1] * (1 + 1e-9) + 1e-15


def _mass_below(exposure: float, rate: float, loss: float, direction: str) -> float:
    """Return the probability that the loss of a step is at most ``loss``, under the law that is true of the record."""

    def normal(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    ratio = (math.expm1(loss if direction == "in" else -loss) + rate) / rate
    if ratio <= 0:
        return 0.0 if direction == "in" else 1.0
    x = (math.log(ratio) + exposure**2 / 2) / exposure
    if direction == "in":
        return (1 - rate) * normal(x) + rate * normal(x - exposure)
    return normal(-x)  # the loss falls with x


def markov_epsilon(costs: Sequence[float], orders: Sequence[float], weights: Sequence[float], delta: float) -> mp.mpf:
    """Return the root of sum_j w_j e^{order_j epsilon - K_j} = 1 / delta."""
    return _rising_root(lambda at: _mixture(costs, orders, weights, at) * mp.mpf(delta) - 1)


def hockey_stick_epsilon(
    costs: Sequence[float], orders: Sequence[float], weights: Sequence[float], delta: float
) -> mp.mpf:
    """Return max_L [L + log(1 - delta M(L))], at least 0; its derivative vanishes where delta (M + M') = 1."""
    risen = [weight * (1 + order) for order, weight in zip(orders, weights, strict=True)]
    best = _rising_root(lambda at: _mixture(costs, orders, risen, at) * mp.mpf(delta) - 1)
    return max(mp.mpf(0), best + mp.log(1 - mp.mpf(delta) * _mixture(costs, orders, weights, best)))


def _mixture(costs: Sequence[float], orders: Sequence[float], weights: Sequence[float], at: mp.mpf) -> mp.mpf:
    return mp.fsum(
        mp.mpf(weight) * mp.exp(mp.mpf(order) * at - mp.mpf(cost))
        for cost, order, weight in zip(costs, orders, weights, strict=True)
    )


def _rising_root(function: Callable[[mp.mpf], mp.mpf]) -> mp.mpf:
    low, high = mp.mpf(-1), mp.mpf(1)
    while function(low) > 0:
        low *= 2
    while function(high) < 0:
        high *= 2
    for _ in range(140):
        middle = (low + high) / 2
        low, high = (low, middle) if function(middle) >= 0 else (middle, high)
    return (low + high) / 2


def rank(m: int, share: float, gamma: float) -> int | None:
    """Return the least k with Pr[Bin(m, share) >= k] <= gamma, in whole numbers; None if there is none up to m."""
    p, limit = Fraction(share), Fraction(gamma)
    hit, miss = p.numerator, p.denominator - p.numerator
    allowed = limit * p.denominator**m
    tail, best = 0, None
    for k in range(m, 0, -1):
        tail += math.comb(m, k) * hit**k * miss ** (m - k)
        if tail > allowed:
            break
        best = k
    return best


BETS = (1.0, 0.99, 0.95, 0.9, *(0.8 * 0.5**k for k in range(16)))
BET_WEIGHTS = (Fraction(1, 2), *(Fraction(1, 2 * (len(BETS) - 1)),) * (len(BETS) - 1))


def betting_bound(values: Sequence[float], bound: float, gamma: float) -> mp.mpf:
    """Return bound * inf{u : W(u) >= 1 / gamma}, W the wealth of fixed bets against the mean u; ``bound`` if none."""
    fractions = [mp.mpf(value) / mp.mpf(bound) for value in values]

    def wealth(u: mp.mpf) -> mp.mpf:
        slopes = [(u - z) / (1 - u) for z in fractions]
        return mp.fsum(
            mp.mpf(weight.numerator) / weight.denominator * mp.fprod(1 + mp.mpf(bet) * slope for slope in slopes)
            for bet, weight in zip(BETS, BET_WEIGHTS, strict=True)
        )

    low, high = mp.fsum(fractions) / len(fractions), mp.mpf(1)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if wealth(middle) >= 1 / mp.mpf(gamma) else (middle, high)
    return mp.mpf(bound) * high


def clopper_pearson(hits: int, trials: int, confidence: float) -> tuple[mp.mpf, mp.mpf]:
    """Return the interval whose ends have ``hits`` or more, or ``hits`` or fewer, with half the failure probability."""
    each = (1 - mp.mpf(confidence)) / 2

    def tail(p: mp.mpf, counts: range) -> mp.mpf:
        return mp.fsum(mp.binomial(trials, k) * p**k * (1 - p) ** (trials - k) for k in counts)

    def root(rising: Callable[[mp.mpf], mp.mpf]) -> mp.mpf:
        low, high = mp.mpf(0), mp.mpf(1)
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (low, middle) if rising(middle) >= 0 else (middle, high)
        return (low + high) / 2

    lower = mp.mpf(0) if hits == 0 else root(lambda p: tail(p, range(hits, trials + 1)) - each)
    upper = mp.mpf(1) if hits == trials else root(lambda p: each - tail(p, range(hits + 1)))
    return lower, upper
