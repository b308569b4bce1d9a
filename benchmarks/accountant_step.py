"""One step of the Bayesian accountant against the plain way: a logsumexp per order over every sample.

    python -m benchmarks.accountant_step        (or: make bench)

Both run interleaved in one process, on fresh samples at every step. The plain way is vectorised NumPy in log space, the
fastest simple code there is for one order. Prints and writes results/accountant_step.json; exit code 1 if a line
fails its target.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import gammaln, logsumexp

from bayesdp import BayesianAccountant, SubsampledGaussian
from bayesdp.estimators import StudentT
from bayesdp.estimators.student_t import standard_errors
from benchmarks.machine import description

GAMMA, RATE, CLIP, NOISE, TOTAL_STEPS = 1e-15, 0.01, 1.0, 1.0, 1000
CASES = [
    {"samples": 1225, "lambdas": 64, "milliseconds": 0.25, "times_faster": 200, "rounds": 15},
    {"samples": 10_000, "lambdas": 256, "milliseconds": 1.2, "times_faster": 4000, "rounds": 4},
]
STEPS_PER_ROUND = 60
RESULT = Path(__file__).parents[1] / "results" / "accountant_step.json"


def draw(rng: np.random.Generator, m: int) -> np.ndarray:
    """Lognormal norms, about a quarter of them above the clip."""
    return np.exp(-0.5 + 0.8 * rng.standard_normal(m))


def plain_cost(norms: np.ndarray, order: int) -> float:
    """c_t(lambda) as printed: every sample, every term, in log space."""
    u = np.minimum(norms, CLIP)[:, None] ** 2 / NOISE**2
    k = np.arange(order + 2)
    log_weight = gammaln(order + 2) - gammaln(k + 1) - gammaln(order + 2 - k)
    log_weight += k * np.log(RATE) + (order + 1 - k) * np.log1p(-RATE)
    exponent = TOTAL_STEPS * logsumexp(log_weight + u * (k * (k - 1) / 2), axis=1)
    top = exponent.max()
    values = np.exp(exponent - top)
    estimate = values.mean() + standard_errors(GAMMA, len(norms)) * values.std()
    return min(float((np.log(estimate) + top) / TOTAL_STEPS), float(exponent.max() / TOTAL_STEPS))


def exact_costs(accountant: BayesianAccountant, norms: np.ndarray) -> np.ndarray:
    """Every sample at every order, as the accountant does it for other mechanisms: the yardstick of accuracy."""
    exposure = np.minimum(norms, CLIP) / NOISE
    return accountant._estimate(SubsampledGaussian(sample_rate=RATE), exposure, CLIP / NOISE)[0]


def run(case: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    """Interleaved rounds of both ways; medians, ratio, worst errors, memory, growth."""
    rng = np.random.default_rng(seed)
    m, orders = case["samples"], range(1, case["lambdas"] + 1)
    tracemalloc.start()
    accountant = BayesianAccountant(total_steps=TOTAL_STEPS, lambdas=orders, estimator=StudentT(gamma=GAMMA))
    begin = time.perf_counter()
    accountant.step(draw(rng, m), noise_std=NOISE, sample_rate=RATE, clip=CLIP)
    first = time.perf_counter() - begin
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    fast: list[list[float]] = []
    plain: list[float] = []
    worst_above, worst_below = 0.0, 0.0
    for _ in range(case["rounds"]):
        fast.append([])
        for _ in range(STEPS_PER_ROUND):
            norms = draw(rng, m)
            begin = time.perf_counter()
            accountant.step(norms, noise_std=NOISE, sample_rate=RATE, clip=CLIP)
            fast[-1].append(time.perf_counter() - begin)
            if accountant.steps == TOTAL_STEPS:
                accountant.steps = 0  # only the clock is of interest
        norms = draw(rng, m)
        begin = time.perf_counter()
        for order in orders:
            plain_cost(norms, order)
        plain.append(time.perf_counter() - begin)
        single = BayesianAccountant(total_steps=TOTAL_STEPS, lambdas=orders, estimator=StudentT(gamma=GAMMA))
        single._tables = accountant._tables
        single.step(norms, noise_std=NOISE, sample_rate=RATE, clip=CLIP)
        relative = single.costs / exact_costs(single, norms) - 1
        worst_above, worst_below = max(worst_above, relative.max()), min(worst_below, relative.min())
    # The quietest round: what the code takes while the machine is not busy with others; the median of all is beside it.
    step, plain_step = min(map(statistics.median, fast)), min(plain)
    return {
        "samples": m,
        "lambdas": case["lambdas"],
        "step_milliseconds": 1e3 * step,
        "step_milliseconds_median_of_all_rounds": 1e3 * statistics.median(t for times in fast for t in times),
        "plain_milliseconds": 1e3 * plain_step,
        "times_faster": plain_step / step,
        "first_step_milliseconds": 1e3 * first,
        "largest_relative_error": worst_above,
        "below_exact": worst_below,
        "peak_megabytes": peak / 1e6,
        "late_over_early": late_over_early(case, rng),
        "steps_timed": sum(map(len, fast)),
        "seed": seed,
    }


def late_over_early(case: dict[str, Any], rng: np.random.Generator) -> float:
    """Time of a step after 800 others over that of one of the first, on the same samples, interleaved."""
    orders = range(1, case["lambdas"] + 1)
    early, late = (BayesianAccountant(total_steps=TOTAL_STEPS, lambdas=orders) for _ in range(2))
    for accountant, steps in ((late, 800), (early, 5)):
        for _ in range(steps):
            accountant.step(draw(rng, case["samples"]), noise_std=NOISE, sample_rate=RATE, clip=CLIP)
    times: dict[int, list[float]] = {id(early): [], id(late): []}
    for turn in range(180):
        norms = draw(rng, case["samples"])
        for accountant in (early, late) if turn % 2 else (late, early):
            begin = time.perf_counter()
            accountant.step(norms, noise_std=NOISE, sample_rate=RATE, clip=CLIP)
            times[id(accountant)].append(time.perf_counter() - begin)
    return statistics.median(times[id(late)]) / statistics.median(times[id(early)])


def failures(case: dict[str, Any], result: dict[str, Any]) -> list[str]:
    """The lines of the target that the result misses."""
    checks = {
        f"step within {case['milliseconds']} ms": result["step_milliseconds"] <= case["milliseconds"],
        f"{case['times_faster']} times faster": result["times_faster"] >= case["times_faster"],
        "no order off by more than 1e-5": result["largest_relative_error"] <= 1e-5,
        "none below exact": result["below_exact"] >= -1e-15,
        "under 100 MB": result["peak_megabytes"] < 100,
        "no growth with past steps": result["late_over_early"] < 1.2,
    }
    return [name for name, held in checks.items() if not held]


def main() -> int:
    """Run all cases, print, write, and say whether the targets hold."""
    settings = {"gamma": GAMMA, "sample_rate": RATE, "clip": CLIP, "noise_std": NOISE, "total_steps": TOTAL_STEPS}
    report: dict[str, Any] = {"machine": description(), "settings": settings, "cases": []}
    missed = False
    for case in CASES:
        result = run(case)
        result["missed"] = failures(case, result)
        missed |= bool(result["missed"])
        report["cases"].append(result)
        print(
            f"m = {result['samples']}, lambdas 1..{result['lambdas']}: {result['step_milliseconds']:.3f} ms a step "
            f"({result['step_milliseconds_median_of_all_rounds']:.3f} over all rounds), "
            f"plain {result['plain_milliseconds']:.0f} ms, {result['times_faster']:.0f} times faster; "
            f"error at most {result['largest_relative_error']:.1e}, "
            f"{'never' if result['below_exact'] >= -1e-15 else 'SOMETIMES'} below exact; "
            f"after 800 steps {result['late_over_early']:.2f} times as long; "
            f"peak {result['peak_megabytes']:.0f} MB; missed: {result['missed'] or 'nothing'}"
        )
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(report, indent=2) + "\n")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
