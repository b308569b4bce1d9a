"""Fuzzed calls of the library: each draws arguments, calls, and checks what the docstring promises."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import bayesdp
from bayesdp import estimators, properties
from bayesdp.estimators import order_statistic_rank, records_needed
from bayesdp.guarantees.selection import Selection
from bayesdp.profiles.gaussian_profile import gaussian_delta, gaussian_epsilon
from benchmarks.fuzz_judge import are_figures, is_figure, require
from benchmarks.fuzz_values import Values

ALL_ESTIMATORS = ("StudentT", "Beta", "Dirichlet", "Betting", "KullbackLeibler", "EmpiricalBernstein")
FREE = ("Betting", "KullbackLeibler", "EmpiricalBernstein")


def log_moment(values: Values) -> None:
    """Log-moments of all mechanisms: no NaN, at least 0, and not smaller at a larger exposure."""
    exposure = values.array(lambda n: np.sort(values.rng.exponential(values.log_uniform(1e-6, 10), n)))
    kind = int(values.rng.integers(5))
    orders = values.orders()
    of_a_million = isinstance(orders, list) and len(orders) == 1 and orders[0] == 1e6
    if of_a_million and (isinstance(exposure, list) or (isinstance(exposure, np.ndarray) and exposure.ndim)):
        exposure = exposure[:2]  # a sum over up to a million trials for each
    if kind == 0:
        mechanism: Any = bayesdp.Laplace()
    elif kind == 1:
        mechanism = bayesdp.RandomizedResponse(answers=values.count(20))
    elif kind == 2:
        are_figures(bayesdp.published_reverse_cost(exposure, orders, values.rate()))
        return
    else:
        mechanism = bayesdp.SubsampledGaussian(sample_rate=values.rate())
    moments = mechanism.reverse(exposure, orders) if values.chance(0.2) else mechanism.log_moment(exposure, orders)
    are_figures(moments, "log-moments")
    require(moments.dtype == np.float64, "log-moments of another type", moments.dtype)
    given = np.asarray(exposure)
    if given.ndim == 1 and kind > 2 and given.dtype == np.float64 and (np.diff(given) >= 0).all():
        require((np.diff(moments, axis=0) >= -1e-9 * moments[1:]).all(), "log-moments fall with exposure", moments)


def estimator(values: Values) -> None:
    """Estimators: no NaN; those for any law lie between the mean of the sample and the bound."""
    name = values.one_of(ALL_ESTIMATORS)
    chosen = getattr(estimators, name)(gamma=values.probability())
    sample = values.array(lambda n: values.rng.random(n) ** values.one_of((1, 8, 100)), (0, 2, 3, 5, 20, 60))
    bound = values.one_of((None, 1.0, 1.0, 1.0, values.positive()))
    if values.chance(0.2):
        found = chosen.log_upper(sample, bound)
        require(not np.isnan(found).any(), "an upper bound is NaN", found)
        return
    if name in FREE and values.chance(0.2):
        require(isinstance(chosen.supports(sample, 0.5, bound=bound), bool | np.ndarray), "supports is no bool")
        return
    found = chosen.upper(sample, bound)
    are_figures(found, "an upper bound")
    if name in FREE and bound is not None:
        mean = np.asarray(sample, dtype=float).mean(axis=0)
        require(np.all(found >= mean * (1 - 1e-9)), "an upper bound is below the sample's mean", found, mean)
        most = np.asarray(bound, dtype=float)
        require(np.all(found * (1 - 1e-9) <= most), "an upper bound is above the bound", found, bound)


def ranks(values: Values) -> None:
    """Ranks from 1 to m, or None exactly if there are too few samples."""
    m, share, gamma = values.count(values.one_of((5, 100, 10_000, 10**9))), values.probability(), values.probability()
    found = order_statistic_rank(m, share, gamma)
    enough = int(m) >= records_needed(share, gamma)
    require((found is not None) == enough, "a rank does not fit records_needed", found, m, share, gamma)
    require(found is None or (isinstance(found, int) and 1 <= found <= m), "an impossible rank", found, m)


def implications(values: Values) -> None:
    """The functions of ``bayesdp.properties``."""
    kind = int(values.rng.integers(6))
    epsilon, delta = values.positive(1e-9, 1e4), values.probability()
    if kind == 0:
        pairs: Any = [(values.positive(), values.probability()) for _ in range(int(values.rng.integers(4)))]
        total = properties.basic_composition(
            pairs if values.chance(0.9) else values.one_of((None, 3, [1], "ab", [(1,)]))
        )
        is_figure(total[0])
        require(0 <= total[1] <= 1, "delta is no probability", total)
    elif kind == 1:
        total = properties.group_privacy(epsilon, delta, values.count(1000))
        require(
            is_figure(total[0]) >= 0 and float(delta) * (1 - 1e-9) <= total[1] <= 1, "delta of a group", total, delta
        )
    elif kind == 2:
        success = properties.attack_success(epsilon)
        require(0.5 <= success <= 1, "success is out of range", success)
    elif kind == 3:
        is_figure(properties.epsilon_of_attack_success(values.probability()))
    elif kind == 4:
        require(0 <= properties.markov_share(values.probability(), delta) <= 1, "a share is out of range")
    else:
        require(0 <= properties.markov_average_delta(values.probability(), delta) <= delta, "an average delta")


def gaussian_profile(values: Values) -> None:
    """delta of a Gaussian is a probability, and its epsilon leads back to no more than delta."""
    mu, epsilon = values.positive(1e-6, 1e4), values.positive(1e-6, 1e4)
    if values.chance(0.8):
        delta = gaussian_delta(mu if values.chance(0.8) else values.norms(), epsilon)
        require(np.all((delta >= 0) & (delta <= 1)), "delta is no probability", delta)
        return
    delta = values.probability()
    found = gaussian_epsilon(mu, delta)
    are_figures(found)
    if np.ndim(found) == 0 and math.isfinite(found) and delta >= 1e-300:
        require(gaussian_delta(mu, found) <= float(delta), "epsilon is too small for delta", mu, found, delta)


def declarations(values: Values) -> None:
    """Plans, budgets, gates and selections are refused or kept, and come back from their JSON as they were."""
    kind = int(values.rng.integers(4))
    if kind == 0:
        bayesdp.Plan(
            steps=values.count(1000), noise_std=values.positive(), sample_rate=values.rate(), clip=values.positive()
        )
    elif kind == 1:
        budget = bayesdp.Budget(
            epsilon=values.positive(), delta=values.probability(), for_changes=values.scalar(values.rng.random)
        )
        require(bayesdp.Budget.from_json(budget.to_json()) == budget, "a budget is not what it was", budget)
    elif kind == 2:
        selection = Selection(mean=values.positive(1, 1e6), exposure=values.one_of((None, values.positive())))
        require(Selection.from_json(selection.to_json()) == selection, "a selection is not what it was", selection)
        require(1 <= selection.trials(values.rng.random()) <= 1e9, "a number of trials", selection)
    else:
        gate = bayesdp.Gate(
            epsilon=values.positive(0.1, 10),
            delta=values.probability(),
            share=values.probability(),
            gamma=values.probability(),
            records=values.count(2000),
        )
        require(bayesdp.Gate.from_json(gate.to_json()) == gate, "a gate is not what it was", gate)


def bayesian_accountant(values: Values) -> None:
    """The paper's accountant: epsilon at least 0 and rising with steps, or infinite; refused steps change nothing."""
    accountant = bayesdp.BayesianAccountant(
        values.count(20),
        lambdas=values.orders(most=1e4),
        conversion=values.one_of(("improved", "chernoff", "improved", "other", None)),
        as_published=values.chance(0.2),
    )
    last = 0.0
    delta = 0.01 if values.chance(0.8) else values.probability()
    for _ in range(int(values.rng.integers(1, 3))):
        before, steps = accountant.costs, accountant.steps
        try:
            accountant.step(
                values.norms((2, 3, 5, 20)),
                noise_std=values.positive(0.1, 10),
                sample_rate=values.rate(),
                clip=values.one_of((None, 1.0, values.positive())),
            )
        except bayesdp.InvalidInputError:
            require((accountant.costs == before).all() and accountant.steps == steps, "a refused step changed costs")
            raise
        found = is_figure(accountant.epsilon(delta))
        require(found >= last * (1 - 1e-12), "epsilon fell with a further step", last, found)
        last = found
    require(0 <= accountant.delta(values.positive()) <= 1, "delta is no probability")
    accountant.claim(delta).to_dict()


def record_budgets(values: Values) -> None:
    """Budgets of records: norms to clip to are never above the clip bound."""
    records = values.count(6)
    if values.chance(0.5):
        budgets = bayesdp.RecordBudgets.for_epsilon(
            records, epsilon=values.positive(0.1, 10), delta=values.probability()
        )
    elif values.chance(0.5):
        budgets = bayesdp.RecordBudgets.for_gaussian(records, mu=values.positive())
    else:
        budgets = bayesdp.RecordBudgets(records, values.one_of(({2: 1.0}, {}, {0.5: 1}, {1: -1}, None, {2: math.inf})))
    for _ in range(int(values.rng.integers(1, 4))):
        if values.chance(0.5):
            budgets.refresh(values.norms((int(budgets.records),) * 3 + (2,)))
        clip = values.positive()
        levels = budgets.step(noise_std=values.positive(), sample_rate=values.rate(), clip=clip)
        are_figures(levels)
        require((levels <= float(clip)).all(), "a norm above the clip bound", levels, clip)


def worst_case(values: Values) -> None:
    """The worst case of a run: at least 0, and not smaller for one more step."""
    settings = {
        "noise_multiplier": values.positive(0.05, 100),
        "sample_rate": values.rate(),
        "delta": values.probability(),
        **(
            {"sampling": values.one_of(("fixed-size", "random-allocation", "other", None))}
            if values.chance(0.1)
            else {}
        ),
    }
    steps = values.count(values.one_of((1, 10, 1000, 100_000)))
    found = bayesdp.epsilon(steps=steps, **settings)
    is_figure(found.epsilon)
    more = bayesdp.epsilon(steps=int(steps) + 1, **settings)
    # Each is an upper bound on a grid of its own, so one more step may cost less by what the grid adds.
    require(more.epsilon >= found.epsilon * (1 - 3e-3) - 2e-4, "epsilon fell with a further step", found, more)


def calibration(values: Values) -> None:
    """The noise for a target keeps it."""
    settings = {"sample_rate": values.rate(), "steps": values.count(1000), "delta": values.probability()}
    target = values.positive(0.05, 20)
    if values.chance(0.3):
        bayesdp.calibrate_risk(tpr=values.probability(), fpr=values.probability(), **settings)
        return
    found = bayesdp.calibrate(target_epsilon=target, **settings)
    kept = found.worst_case.epsilon
    require(kept <= float(target), "calibrated noise misses its target", kept, target)


def attack_risk(values: Values) -> None:
    """Rates of an attacker are probabilities, and not below the false-positive rate."""
    settings = {"sample_rate": values.rate(), "steps": values.count(200), "delta": values.probability()}
    fpr = values.one_of(((0.01,), (values.probability(),), (), None, (0.001, 0.5)))
    risk = bayesdp.attack_risk(
        noise_multiplier=values.positive(0.3, 30), **settings, **({} if fpr is None else {"fpr": fpr})
    )
    require(all(0 <= rate <= 1 for rate in risk.tpr), "a rate is no probability", risk)
    require(0 <= risk.advantage <= 1, "the advantage is no probability", risk)
