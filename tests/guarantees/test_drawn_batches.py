"""Laws of batches by force: every batch of a small data set, adversarial neighbours, exact likelihoods, adaptive steps.

A data set is vectors [n, 2] of norm 1 at most, the record in question first. In each step the others turn by an angle
that depends on the output before, so that steps are adaptive. The hockey-stick divergence of all outputs together is
estimated by Monte Carlo from exact likelihoods; a bound may not be below it by more than chance allows.
"""

import itertools
import math

import numpy as np
import pytest

import bayesdp

AWAY, ASIDE = np.array([-1.0, 0.0]), np.array([0.0, 1.0])
OTHERS = {"opposite": [AWAY] * 3, "aside": [ASIDE, ASIDE, -ASIDE], "nothing": [0 * AWAY] * 3, "same": [-AWAY] * 3}
NOTHING = np.zeros(2)


def turned(vectors, outputs):
    """The vectors [runs, n, 2] of the next step: turned by half a circle where the last output went to the left."""
    sign = np.ones(len(outputs)) if outputs.shape[1] == 0 else np.where(outputs[:, -1, 0] < 0, -1.0, 1.0)
    return sign[:, None, None] * vectors


def run(vectors, choices, noise, runs, random):
    """Outputs [runs, steps, 2] of a choice for each run; ``choices`` [m, steps, n] holds who is in which step."""
    chosen = choices[random.integers(len(choices), size=runs)]
    outputs = np.zeros((runs, 0, 2))
    for step in range(choices.shape[1]):
        total = np.einsum("rn,rnd->rd", chosen[:, step], turned(vectors, outputs))
        outputs = np.concatenate([outputs, (total + noise * random.normal(size=total.shape))[:, None]], axis=1)
    return outputs


def log_likelihood(vectors, choices, noise, outputs):
    """Up to a constant, exactly: the mean over all choices."""
    exponents = np.zeros((len(outputs), len(choices)))
    for step in range(choices.shape[1]):
        sums = np.einsum("mn,rnd->rmd", choices[:, step], turned(vectors, outputs[:, :step]))
        exponents -= ((outputs[:, step, None] - sums) ** 2).sum(2) / (2 * noise**2)
    return np.logaddexp.reduce(exponents, axis=1)


def lower_deltas(pairs, choices, noise, epsilons, runs):
    """The largest divergence of all pairs of data sets at each epsilon, less five standard errors."""
    random = np.random.default_rng(0)
    found = np.zeros(len(epsilons))
    for p, q in pairs:
        outputs = run(p, choices, noise, runs, random)
        losses = log_likelihood(p, choices, noise, outputs) - log_likelihood(q, choices, noise, outputs)
        for index, epsilon in enumerate(epsilons):
            values = np.maximum(1 - np.exp(epsilon - losses), 0)
            found[index] = max(found[index], values.mean() - 5 * values.std() / math.sqrt(runs))
    return found


def data_sets(neighbours):
    """Pairs of data sets in both directions: the record at +C, and what may be in its place."""
    for others, neighbour in itertools.product(OTHERS.values(), neighbours):
        with_it, without = np.array([-AWAY, *others]), np.array([neighbour, *others])
        yield from ((with_it, without), (without, with_it))


def fixed_size_choices(size, steps):
    batches = [np.isin(range(4), batch).astype(float) for batch in itertools.combinations(range(4), size)]
    return np.array(list(itertools.product(batches, repeat=steps)))


def allocation_choices(steps):
    return np.array([np.eye(steps)[list(places)].T for places in itertools.product(range(steps), repeat=4)])


def never_below(lower, epsilons, **settings):
    assert lower[0] > 0.01  # there is something to bound
    for epsilon, delta in zip(epsilons, lower, strict=True):
        if delta > 0:
            assert bayesdp.epsilon(**settings, delta=float(delta)).epsilon >= epsilon


EPSILONS = (0.05, 0.6)


@pytest.mark.parametrize(
    ("sampling", "neighbours"),
    [
        pytest.param("fixed-size", [AWAY, ASIDE, NOTHING], marks=pytest.mark.slow, id="replace-one"),
        pytest.param("fixed-size, zero-out", [NOTHING], id="zero-out"),
    ],
)
@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_batches_of_a_fixed_size(sampling, neighbours, size):
    lower = lower_deltas(data_sets(neighbours), fixed_size_choices(size, 2), 1.2, EPSILONS, 3_000)
    settings = {"noise_multiplier": 1.2, "sample_rate": size / 4, "steps": 2}
    never_below(lower, EPSILONS, **settings, sampling=sampling)


@pytest.mark.parametrize("steps", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_random_allocation(steps):
    lower = lower_deltas(data_sets([NOTHING]), allocation_choices(steps), 0.8, EPSILONS, 3_000)
    settings = {"noise_multiplier": 0.8, "sample_rate": 1 / steps, "steps": steps}
    never_below(lower, EPSILONS, **settings, sampling="random-allocation")


def test_poisson_sampling_is_found_too_small_for_batches_of_a_fixed_size():
    """The force of this file: the epsilon of another law is refuted by it."""
    lower = lower_deltas(data_sets([AWAY]), fixed_size_choices(1, 2), 1.2, EPSILONS, 3_000)
    settings = {"noise_multiplier": 1.2, "sample_rate": 0.25, "steps": 2}
    assert bayesdp.epsilon(**settings, delta=float(lower[1])).epsilon < EPSILONS[1]
