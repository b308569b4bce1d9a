"""The worst case of batches of a fixed size: exactly B of N records in each step, all sets of B equally likely.

Removing a record would bring another into its batch, so add/remove of one record is the wrong relation. Two fit; N is
public in both:

replace-one  the record is another one. The sum changes by up to 2C.
zero-out     the record contributes nothing, and batches are drawn as before.

With g = B/N, a step is M = g A + (1 - g) O: A if the record is in the batch, O if not; for the neighbour
M' = g A' + (1 - g) O. Advanced joint convexity (Balle, Barthe & Gaboardi 2018, Theorem 2) is an identity between
hockey-stick divergences H: for a >= 1, a' = 1 + g (a - 1), b = a'/a,

    H_a'(M || M') = g H_a(A || (1 - b) O + b A') <= g [(1 - b) H_a(A || O) + b H_a(A || A')].

A batch with the record is a batch without it in which another record was exchanged for it, so A and O are mixtures of
pairs of Gaussians that differ by at most 2C (by C if the record contributes nothing), and H is jointly convex:

replace-one  A, O and A' differ by 2C from each other:      H_a'(M || M') <= g G(2/z)
zero-out     forward, A from O by 2C and from A' by C:      H_a'(M || M') <= g [(1 - b) G(2/z) + b G(1/z)]
             reverse, A' from O and from A by C:            H_a'(M' || M) <= g G(1/z)

G(mu) is the Gaussian profile at log a (Balle & Wang 2018) and z the noise multiplier. Below 1, H_a(X || Y) is
a H_{1/a}(Y || X) + 1 - a. Steps compose as privacy loss distributions with this profile (Zhu, Dong & Wang 2022, Theorem
10), also where a step depends on earlier outputs. For a single step under replace-one the bound is attained.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from bayesdp import validation
from bayesdp.guarantees.bounded_pld import PLD_ROUND_OFF
from bayesdp.guarantees.pld_arrays import connected_dots, least_epsilon, self_composed
from bayesdp.guarantees.worst_case import WorstCase, rdp_epsilon
from bayesdp.profiles import gaussian_delta, gaussian_epsilon
from bayesdp.validation import FloatArray, refuse

Relation = Literal["replace-one", "zero-out"]
RELATIONS: tuple[Relation, ...] = ("replace-one", "zero-out")
ASSUMED = {
    "replace-one": "a neighbouring data set has another record in the place of this one (replace-one), and the number "
    "of records is public",
    "zero-out": "to remove a record means that its contribution becomes zero, while batches stay as they are "
    "(zero-out), and the number of records is public",
}
DRAWN = "each batch is a set of exactly the same number of records, drawn at random afresh at each step"
"""What a loader must do; shuffling once an epoch does not."""

Profile = Callable[[FloatArray], FloatArray]
"""Hockey-stick divergences [n] at epsilons [n] of at least 0."""

_TAIL = 1e-16  # of a step: delta beyond the grid, which becomes an infinite loss
_INTERVAL, _MOST_POINTS = 1e-4, 1 << 20
_LEAST_NOISE = 0.1  # below it losses are in the hundreds, and no epsilon is worth computing
_MOST_STEPS = 10**6  # beyond which composition takes minutes
_MOST_MASS = 100.0  # of all steps together: what is added where bounds are not convex must stay small
_RENYI_ROUND_OFF = 1e-12  # of a step, by which dp-accounting's Rényi divergences may be too small
_ORDERS = [*range(2, 65), 80, 96, 128, 160, 192, 224, 256]  # above 256 dp-accounting approximates


def fixed_size_epsilon(
    *, noise_multiplier: float, sample_rate: float, steps: int, delta: float = 1e-5, relation: Relation = "replace-one"
) -> WorstCase:
    """Return the worst case of ``steps`` steps whose batches have a fixed size, under the relation that is named.

    ``sample_rate`` is the size of a batch over the number of records. ``noise_multiplier`` is the standard deviation of
    the noise on the sum over the clip bound, as everywhere; under replace-one the sum can change by twice that bound.

    Formal guarantee: an upper bound of epsilon in both directions of the relation: the smallest by privacy loss
    distributions (the profile in this file), by Rényi divergences under replace-one (Wang, Balle & Kasiviswanathan
    2019, as dp-accounting computes it) and by the Gaussian without sampling. Discretisation errs upwards.

    Raises InvalidInputError for a noise multiplier outside [1e-6, 1e12], a rate outside (0, 1], a number of steps that
    is not whole, a delta that is not strictly between 0 and 1, or another relation.
    """
    noise = validation.noise_multiplier(noise_multiplier)
    rate = validation.sample_rate(sample_rate)
    steps = validation.count("steps", steps, minimum=0)
    delta = validation.probability("delta", delta)
    if relation not in RELATIONS:
        raise refuse("relation", relation, " or ".join(f'"{name}"' for name in RELATIONS))
    assumptions = (ASSUMED[relation], DRAWN) if rate < 1 else (ASSUMED[relation],)
    if steps == 0:
        return WorstCase(
            epsilon=0.0, delta=delta, accountant="RDP", rdp_epsilon=0.0, pld_epsilon=None, assumptions=assumptions
        )
    largest = 2.0 if relation == "replace-one" else 1.0  # what a record can change, in clip bounds
    gaussian = float(gaussian_epsilon(largest / noise * math.sqrt(steps) * (1 + 2.0**-40), delta))
    # Whatever replaces a record may contribute nothing, so replace-one bounds zero-out too.
    rdp = _renyi(noise / 2, rate, steps, delta)
    pld = _pld(noise, rate, steps, delta, relation) if rate < 1 else None
    bounds = {"PLD": pld, "RDP": rdp, "Gaussian": gaussian}
    finite = {name: value for name, value in bounds.items() if value is not None}
    best = min(finite, key=finite.__getitem__)
    return WorstCase(
        epsilon=finite[best],
        delta=delta,
        accountant=best,
        rdp_epsilon=rdp,
        pld_epsilon=pld,
        assumptions=assumptions,
    )


def _renyi(noise: float, rate: float, steps: int, delta: float) -> float:
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    accountant: Any = RdpAccountant(_ORDERS, dp.NeighboringRelation.REPLACE_ONE)
    try:
        with np.errstate(all="ignore"):
            # Log-moments near 0 cancel, and divergences of 0 would become an epsilon of 0.
            divergences = steps * _step_divergences(noise, rate)
            accountant._rdp = (1 + _RENYI_ROUND_OFF) * divergences + _RENYI_ROUND_OFF * steps
            found = float(accountant.get_epsilon(delta))
    except (ValueError, OverflowError):  # at the limits of floats
        found = math.inf
    plain = rdp_epsilon([(noise, 1.0, steps)], delta=delta) if noise >= 1e-6 else math.inf  # without sampling
    return plain if math.isnan(found) else min(max(found, 0.0), plain)


@lru_cache(maxsize=256)
def _step_divergences(noise: float, rate: float) -> FloatArray:
    """Return the Rényi divergences [A] of one step at ``_ORDERS``; kept, because they are slow."""
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    accountant: Any = RdpAccountant(_ORDERS, dp.NeighboringRelation.REPLACE_ONE)
    event: Any = dp.GaussianDpEvent(noise)
    if rate < 1:  # only the ratio of the two sizes counts
        event = dp.SampledWithoutReplacementDpEvent(1, rate, event)  # pyright: ignore[reportArgumentType]
    accountant.compose(event)
    divergences: FloatArray = accountant._rdp
    divergences.setflags(write=False)
    return divergences


def step_profiles(noise: float, rate: float, relation: Relation) -> tuple[Profile, Profile]:
    """Return the profiles of a step, bounds of H(M || M') and H(M' || M) at e^epsilon for epsilons of at least 0."""

    def inner(epsilons: FloatArray) -> FloatArray:
        return np.logaddexp(0.0, np.log(np.expm1(np.maximum(epsilons, 1e-300))) - math.log(rate))

    def far(epsilons: FloatArray) -> FloatArray:
        return rate * gaussian_delta(2 / noise, inner(epsilons))

    def near(epsilons: FloatArray) -> FloatArray:
        return rate * gaussian_delta(1 / noise, inner(epsilons))

    def between(epsilons: FloatArray) -> FloatArray:
        weight = np.exp(epsilons - inner(epsilons))  # b = a'/a
        return np.minimum((1 - weight) * far(epsilons) + weight * near(epsilons), far(epsilons))

    return (far, far) if relation == "replace-one" else (between, near)


def _pld(noise: float, rate: float, steps: int, delta: float, relation: Relation) -> float | None:
    """Return epsilon by privacy loss distributions; None where it is not finite or delta is within round-off."""
    if delta <= 2 * PLD_ROUND_OFF or noise < _LEAST_NOISE or steps > _MOST_STEPS:
        return None
    found = _refined(noise, rate, steps, delta, relation)
    if found is None and relation == "zero-out":  # which replace-one bounds too
        return _refined(noise, rate, steps, delta, "replace-one")
    return found


def _refined(noise: float, rate: float, steps: int, delta: float, relation: Relation) -> float | None:
    profiles = step_profiles(noise, rate, relation)
    largest = max(_support(profile, _TAIL / steps) for profile in profiles)
    coarsest = 2 * largest / _MOST_POINTS
    found = _on_grid(*profiles, steps, delta, largest, max(_INTERVAL, coarsest))
    if found and 1e-3 * found < 0.5 * _INTERVAL:  # the grid is to be fine beside epsilon; there is none below 0
        finer = _on_grid(*profiles, steps, delta, largest, max(1e-3 * found, 1e-6, coarsest))
        found = found if finer is None else min(found, finer)
    return found


def _on_grid(
    forward: Profile, reverse: Profile, steps: int, delta: float, largest: float, interval: float
) -> float | None:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    try:
        one = losses(forward, reverse, largest, interval)
        other = None if forward is reverse else losses(reverse, forward, largest, interval)
        mass = max(float(pmf.to_dense_pmf()._probs.sum()) for pmf in (one, other) if pmf is not None)
        if steps * math.log(mass) > math.log(_MOST_MASS):  # dp-accounting composes infinite losses as if it were 1
            return None
        found = least_epsilon(self_composed(PrivacyLossDistribution(one, other), steps), delta - PLD_ROUND_OFF)
    except (ValueError, MemoryError):  # at the limits of floats
        return None
    return max(0.0, found) if math.isfinite(found) else None


def losses(above: Profile, below: Profile, largest: float, interval: float) -> Any:
    """Return a dp-accounting PLDPmf whose profile is nowhere below that of (X, Y), on a grid up to ``largest``.

    ``above`` bounds H_a(X || Y) for a >= 1, and ``below`` bounds H_a(Y || X). The true profile is convex in a = e^eps,
    so between grid points it lies below the chords of any points above it (Doroshenko et al. 2022, "Connect the dots").
    Where the bounds are not convex, chords would need negative masses; they become 0, which adds to every delta.
    """
    count = math.ceil(largest / interval)
    positive: FloatArray = np.arange(count + 1, dtype=np.float64) * interval
    up, down = above(positive), below(positive)
    up[0] = down[0] = min(up[0], down[0])  # at a = 1 both directions are the same total variation
    mirrored = np.exp(-positive) * down - np.expm1(-positive)
    deltas = np.minimum.accumulate(np.clip(np.concatenate([mirrored[:0:-1], up]), 0.0, 1.0))
    return connected_dots(interval, -count, count, deltas)


def _support(profile: Profile, delta: float) -> float:
    """Return an epsilon at which the profile is at most ``delta``, by doubling and bisection, rounded up."""
    high = 1e-3
    while profile(np.array([high]))[0] > delta:
        high *= 2
    low = 0.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if profile(np.array([middle]))[0] <= delta else (middle, high)
    return high
