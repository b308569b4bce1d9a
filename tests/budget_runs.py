"""Runs with enforced budgets: random settings, norms and budgets, how to play them, and exact costs."""

import math
from fractions import Fraction
from functools import cache

import mpmath as mp
import numpy as np
from hypothesis import strategies as st

from bayesdp import SubsampledGaussian
from bayesdp.budgets import RecordBudgets

RECORDS = 4
PLAIN = {"noise_std": 1.0, "sample_rate": 1.0, "clip": 1.0}


def setting(noise_std=1.0, sample_rate=1.0, clip=1.0):
    return {"noise_std": noise_std, "sample_rate": sample_rate, "clip": clip}


@cache
def exact_cost(level, noise_std, sample_rate, order):
    """kappa to 40 digits, as a fraction."""
    with mp.workdps(40):
        u, q, n = (mp.mpf(level) / mp.mpf(noise_std)) ** 2, mp.mpf(sample_rate), int(order) + 1
        if sample_rate == 1:
            kappa = mp.mpf(order) * (mp.mpf(order) + 1) * u / 2
        else:
            weights = [mp.binomial(n, k) * q**k * (1 - q) ** (n - k) for k in range(2, n + 1)]
            kappa = mp.log1p(sum(w * mp.expm1(k * (k - 1) * u / 2) for k, w in enumerate(weights, start=2)))
        sign, mantissa, exponent, _ = kappa._mpf_
        return (-1) ** sign * Fraction(int(mantissa)) * Fraction(2) ** exponent


def costs(levels, step, lambdas):
    """kappa of each record at each order, [n, L]."""
    exposure = np.asarray(levels) / step["noise_std"]
    return SubsampledGaussian(sample_rate=step["sample_rate"]).log_moment(exposure, lambdas)


norms = st.floats(0.1, 2.0) | st.sampled_from([0.0, 1e-7, 0.5, 1.0, 2.0])
steps = st.builds(
    setting,
    noise_std=st.floats(1.0, 9.0),
    sample_rate=st.sampled_from([1.0, 0.5, 0.05]),
    clip=st.sampled_from([1.0, 0.7, 1.7]),
)
events = st.lists(
    st.tuples(steps, st.integers(1, 12)) | st.lists(norms, min_size=RECORDS, max_size=RECORDS), min_size=3, max_size=9
)
budgets = st.dictionaries(
    st.sampled_from([1.0, 2.0, 4.0, 7.0]), st.floats(0.05, 2.0) | st.just(0.0), min_size=1, max_size=3
).map(lambda squares: {order: order * (order + 1) / 2 * square for order, square in squares.items()})


def played(filter_, events):
    """Each step of a run: its setting, the norms that records want, what was left before, the clip norms returned."""
    wanted = np.full(RECORDS, math.inf)
    for event in events:
        if isinstance(event, list):
            wanted = np.array(event)
            filter_.refresh(event)
        else:
            step, times = event
            for _ in range(times):
                before = filter_.private_remaining()
                yield step, np.minimum(step["clip"], wanted), before, filter_.step(**step)


def running():
    """Budgets of three records in the middle of a run."""
    filter_ = RecordBudgets(3, {1.5: 4.0, 2.0: 5.0})
    filter_.refresh([0.5, 1.0, 0.9])
    filter_.step(**PLAIN)
    filter_.step(**PLAIN)
    return filter_


def equal_states(first, second):
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)
