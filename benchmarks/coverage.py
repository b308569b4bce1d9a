"""How often an upper estimate lies below the truth: every estimator of a mean, and order statistics, on ten laws.

    python -m benchmarks.coverage [--runs 2000] [--seed 0]

A miss is an estimate below the true mean, or a k-th smallest sample below the true quantile, by more than a relative
1e-9 (rounding is no miss). All get the same known bound. Beta is asked where there are two values, Dirichlet where
there are finitely many; their gamma, like that of Student-t, is a probability within a model. Prints all counts and the
table of docs/sharp-edges.md, and writes results/coverage.json; exit code 1 if a distribution-free method misses more
often than it may, with an allowance for chance.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from bayesdp.estimators import (
    Beta,
    Betting,
    Dirichlet,
    DistributionFree,
    EmpiricalBernstein,
    Estimator,
    KullbackLeibler,
    StudentT,
    order_statistic_rank,
)
from benchmarks.machine import description

GAMMAS = (0.05, 0.01, 1e-15)
SAMPLES = (30, 300, 3000)
SHARES = (0.5, 0.9, 0.99)
DISTRIBUTION_FREE = (Betting, KullbackLeibler, EmpiricalBernstein)
MODEL_BASED = (StudentT, Beta, Dirichlet)
CHANCE = 1e-6  # how often a count that keeps its promise is called a failure
SLACK = 1 - 1e-9
RUNS_AT_A_TIME = 2000
RESULT = Path(__file__).parents[1] / "results" / "coverage.json"


@dataclass(frozen=True)
class Population:
    """A law on [0, bound], given by its quantiles: ``quantile(u)`` for u uniform is a draw from it.

    ``values`` is how many different values there are, the bound among them, if they are few.
    """

    name: str
    details: str
    bound: float
    mean: float
    quantile: Callable[[Any], Any]
    values: int | None = None

    def draw(self, rng: np.random.Generator, samples: int, runs: int) -> np.ndarray:
        """[samples, runs]."""
        return self.quantile(rng.random((runs, samples))).T


def lognormal(name: str, sd: float, clip: float) -> Population:
    """min(e^{sd N}, clip), N standard normal."""
    log_clip = math.log(clip)
    mean = math.exp(sd**2 / 2) * ndtr(log_clip / sd - sd) + clip * ndtr(-log_clip / sd)
    clipped = 100 * ndtr(-log_clip / sd)
    details = f"median 1, standard deviation of the logarithm {sd:g}, clipped at {clip:g} ({clipped:.2g} %)"
    return Population(name, details, clip, float(mean), lambda u: np.minimum(np.exp(sd * ndtri(u)), clip))


def outliers(name: str, rate: float) -> Population:
    """1 to 1.001, evenly; at the given rate 10,000 more."""

    def quantile(u: Any) -> Any:
        outlying = u > 1 - rate
        within = np.where(outlying, (u - (1 - rate)) / rate, u / (1 - rate))
        return 1 + 0.001 * within + 10_000 * outlying

    return Population(name, "1 to 1.001, outliers 10,000 more", 10_001.001, 1.0005 + 10_000 * rate, quantile)


def steps(name: str, probabilities: dict[float, float]) -> Population:
    """Finitely many values, in ascending order, and how probable each is."""
    values, weights = np.array([*probabilities]), np.array([*probabilities.values()])
    ends = np.cumsum(weights)[:-1]
    details = ", ".join(f"{value:g} in {100 * weight:g} %" for value, weight in probabilities.items())
    return Population(
        name, details, values[-1], float(values @ weights), lambda u: values[np.searchsorted(ends, u)], len(values)
    )


POPULATIONS = (
    lognormal("lognormal", sd=1.5, clip=1000.0),
    lognormal("clipped lognormal", sd=1.0, clip=2.0),
    outliers("0.1 % outliers", 0.001),
    outliers("1 % outliers", 0.01),
    Population("two points", "1 in 5 % of cases, 0 otherwise", 1.0, 0.05, lambda u: (u > 0.95) * 1.0, values=2),
    Population("uniform", "0 to 1", 1.0, 0.5, lambda u: u),
    Population("constant", "always 0.3, known bound 1", 1.0, 0.3, lambda u: np.full_like(u, 0.3), values=2),
    Population("rare ones", "1 in 0.1 % of cases, 0 otherwise", 1.0, 0.001, lambda u: (u > 0.999) * 1.0, values=2),
    Population(
        "two far apart",
        "10,001 in 1 % of cases, 1 otherwise",
        10_001.0,
        101.0,
        lambda u: 1 + 1e4 * (u > 0.99),
        values=2,
    ),
    steps("five values", {0.0: 0.5, 0.25: 0.3, 0.5: 0.15, 0.75: 0.045, 1.0: 0.005}),
)


Misses = Callable[[Population, np.ndarray], int]


def below_mean(estimator: Estimator) -> Misses:
    """How many columns of values [m, runs] lead to an estimate below the true mean."""

    def misses(population: Population, values: np.ndarray) -> int:
        threshold = population.mean * SLACK
        if isinstance(estimator, DistributionFree):
            return int(estimator.supports(values, threshold, bound=population.bound).sum())
        return int((estimator.upper(values, population.bound) <= threshold).sum())

    return misses


def below_quantile(share: float, rank: int) -> Misses:
    """How many columns have a sample of that rank below the true quantile of that share."""

    def misses(population: Population, values: np.ndarray) -> int:
        quantile = float(population.quantile(np.array(share)))
        return int((np.partition(values, rank - 1, axis=0)[rank - 1] < quantile * SLACK).sum())

    return misses


def methods(population: Population, samples: int, gamma: float) -> dict[str, Misses]:
    """Everything that is counted, by name; shares that so many samples cannot support are left out."""
    kinds: list[type[Estimator]] = [StudentT, *DISTRIBUTION_FREE]
    kinds += [Beta] if population.values == 2 else []
    kinds += [Dirichlet] if population.values is not None else []
    means = {kind.__name__: below_mean(kind(gamma=gamma)) for kind in kinds}
    ranks = {share: order_statistic_rank(samples, share, gamma) for share in SHARES}
    return means | {
        f"order statistic, share {share:g}": below_quantile(share, rank) for share, rank in ranks.items() if rank
    }


def rows(
    population: Population, samples: int, *, runs: int, seed: int, gammas: tuple[float, ...] = GAMMAS
) -> list[dict[str, Any]]:
    """One row for each gamma: the misses of every method, all in the same ``runs`` draws of so many samples."""
    rng = np.random.default_rng([seed, POPULATIONS.index(population), samples])
    counts = {gamma: methods(population, samples, gamma) for gamma in gammas}
    misses = {gamma: Counter(dict.fromkeys(counts[gamma], 0)) for gamma in gammas}
    for begin in range(0, runs, RUNS_AT_A_TIME):
        values = population.draw(rng, samples, min(RUNS_AT_A_TIME, runs - begin))
        for gamma in gammas:
            misses[gamma].update({name: count(population, values) for name, count in counts[gamma].items()})
    place = {"population": population.name, "samples": samples}
    return [place | {"gamma": gamma, "misses": dict(misses[gamma])} for gamma in gammas]


def too_many(row: dict[str, Any], runs: int) -> list[str]:
    """The methods that promise at most gamma and miss more often than chance explains; a model promises nothing."""
    allowed = binom.isf(CHANCE, runs, row["gamma"])
    models = [kind.__name__ for kind in MODEL_BASED]
    return [name for name, misses in row["misses"].items() if name not in models and misses > allowed]


def markdown(report: dict[str, Any]) -> str:
    """The table of docs/sharp-edges.md: misses in per cent, one line for each population, and what these are."""
    runs, sizes, populations = (report["settings"][key] for key in ("runs", "samples", "populations"))
    columns = [("StudentT", 0.01), ("StudentT", 1e-15)]
    columns += [(kind.__name__, 0.01) for kind in (Beta, Dirichlet, *DISTRIBUTION_FREE)]
    misses = {(row["population"], row["samples"], row["gamma"]): row["misses"] for row in report["rows"]}
    lines = [f"Misses in % of {runs} draws of m = {' / '.join(map(str, sizes))} samples:", ""]
    lines += ["| population | " + " | ".join(f"`{name}` at {gamma:g}" for name, gamma in columns) + " |"]
    lines.append("|---|" + "---|" * len(columns))
    for population in populations:
        shares = [
            " / ".join(
                f"{100 * misses[population, m, gamma][name] / runs:.3g}"
                for m in sizes
                if name in misses[population, m, gamma]
            )
            or "–"
            for name, gamma in columns
        ]
        lines.append(f"| {population} | " + " | ".join(shares) + " |")
    lines += ["", *(f"- {name}: {details}" for name, details in populations.items())]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Count everything, print, write, and say whether anything misses more often than it may."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    settings = {"runs": options.runs, "seed": options.seed, "gammas": GAMMAS, "samples": SAMPLES, "shares": SHARES}
    settings["populations"] = {population.name: population.details for population in POPULATIONS}
    report: dict[str, Any] = {"machine": description(), "settings": settings, "rows": []}
    begin, failed = time.perf_counter(), False
    for population in POPULATIONS:
        for samples in SAMPLES:
            for row in rows(population, samples, runs=options.runs, seed=options.seed):
                wrong = too_many(row, options.runs)
                failed |= bool(wrong)
                report["rows"].append(row)
                listed = "; ".join(f"{name} {misses}" for name, misses in row["misses"].items())
                print(
                    f"{population.name}, m = {samples}, gamma {row['gamma']:g}: {listed}; too many: {wrong or 'none'}"
                )
    report["seconds"] = round(time.perf_counter() - begin, 1)
    print(f"{options.runs} runs a row, {report['seconds']} seconds\n\n{markdown(report)}")
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(report, indent=2) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
