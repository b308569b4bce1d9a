"""Ex-post epsilons before and after: Markov's inequality with forward costs, against the hockey-stick form.

    python -m benchmarks.ex_post            # prints the tables and writes results/ex_post.json

*Before*: the Markov form with the wide mixture and the cost of the larger direction, as version 0.1.0 computed it.
*After*: the hockey-stick form with the cost of a record left out, at the wide mixture (no plan) and at orders laid out
from the plan. *Fixed*: the Rényi bound if exposures had been fixed beforehand, in the same direction: what adaptivity
costs is the rest.
"""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import numpy as np

from bayesdp import Ledger, Plan
from bayesdp.claims.ex_post import hockey_stick_epsilons, markov_epsilons
from bayesdp.claims.order_layout import laid_out
from bayesdp.mechanisms.log_moments import log_moments
from bayesdp.mechanisms.order_mixture import WIDE_IN, WIDE_OUT, OrderMixture
from bayesdp.profiles.conversion import record_epsilons
from bayesdp.version import __version__

RESULTS = Path(__file__).parent.parent / "results" / "ex_post.json"
DELTA, SEED, RECORDS = 1e-5, 0, 3000
FINE = np.geomspace(0.25, 4096, 400)
SHARES = (0.1, 0.5, 0.9)
RECORDS_AT_THE_CLIP = [
    # noise multiplier, rate, steps
    (5.0, 1.0, 1),
    (1.6, 1.0, 1),
    (1.0, 1.0, 1),
    (0.6, 1.0, 1),
    (1.0, 0.01, 1000),
    (0.5, 0.01, 300),
    (3.0, 0.05, 100),
    (1.1, 256 / 60000, 14062),
    (6.0, 4096 / 60000, 292),
]


def main() -> None:
    tables = {
        "records": [line for run in RECORDS_AT_THE_CLIP for line in at_the_clip(*run)],
        "populations": populations(),
    }
    for line in tables["records"]:
        print(
            f"z {line['noise_multiplier']:g}, q {line['sample_rate']:.4g}, T {line['steps']}, "
            f"at {line['part']:g} of the clip: {line['before']:.3f} -> {line['no_plan']:.3f} -> {line['plan']:.3f} "
            f"(fixed {line['fixed']:.3f}; {line['less']:.0%} less, {line['plan'] / line['fixed'] - 1:.1%} above fixed)"
        )
    for line in tables["populations"]:
        print(
            f"{line['population']}, share {line['share']:g}: {line['before']:.3f} -> {line['no_plan']:.3f} -> "
            f"{line['plan']:.3f} ({line['less']:.0%} less); everyone {line['everyone']:.3f}, "
            f"estimate {line['estimate']:.3f}"
        )
    settings = {"delta": DELTA, "seed": SEED, "records": RECORDS, "bayesdp": __version__}
    versions = {"python": platform.python_version(), "numpy": np.__version__}
    RESULTS.write_text(json.dumps({**settings, **versions, **tables}, indent=1) + "\n")


def at_the_clip(noise: float, rate: float, steps: int) -> list[dict[str, Any]]:
    """One record at a fixed part of the clip bound in every step."""
    planned = laid_out([(noise, rate, steps)], "record out")
    lines: list[dict[str, Any]] = []
    for part in (1.0, 0.7, 0.5, 0.25):
        at = lambda mixture: steps * log_moments(rate, [part / noise], mixture.lambdas, mixture.direction)  # noqa: B023, E731
        fixed = record_epsilons(steps * log_moments(rate, [part / noise], FINE, "record out"), FINE, DELTA)
        lines.append(
            {
                "noise_multiplier": noise,
                "sample_rate": rate,
                "steps": steps,
                "part": part,
                **_figures(at, planned, lambda epsilons: float(epsilons[0])),
                "fixed": float(fixed[0]),
            }
        )
    return lines


def populations() -> list[dict[str, Any]]:
    """The populations of the project's tests: "spread" and "easy"."""
    rng = np.random.default_rng(SEED)
    spread = np.exp(-1 + 0.9 * rng.standard_normal(RECORDS)) * np.exp(0.5 * rng.standard_normal((292, RECORDS)))
    easy = 0.1 * np.exp(0.75 * rng.standard_normal(RECORDS)) * np.exp(0.3 * rng.standard_normal((1000, RECORDS)))
    lines: list[dict[str, Any]] = []
    for name, norms, noise, rate in (("spread", spread, 6.0, 4096 / 60000), ("easy", easy, 1.0, 0.01)):
        ledger = Ledger(plan=Plan(steps=len(norms), noise_std=noise, sample_rate=rate, clip=1.0))
        for row in norms:
            ledger.step(noise_std=noise, sample_rate=rate, clip=1.0, audit=row)
        claims = ledger.claims(shares=SHARES)
        for share in SHARES:
            quantile = lambda epsilons: float(np.quantile(epsilons, share))  # noqa: B023, E731
            lines.append(
                {
                    "population": name,
                    "share": share,
                    **_figures(ledger.mixture_costs, ledger.mixture, quantile),
                    "claimed": claims.share(share).ex_post.epsilon,
                    "estimate": claims.share(share).estimate.epsilon,
                    "everyone": claims.everyone.epsilon,
                }
            )
    return lines


def _figures(costs_at: Any, planned: OrderMixture, figure: Any) -> dict[str, float]:
    before = figure(markov_epsilons(costs_at(WIDE_IN), DELTA, WIDE_IN))
    no_plan = figure(hockey_stick_epsilons(costs_at(WIDE_OUT), DELTA, WIDE_OUT))
    plan = figure(hockey_stick_epsilons(costs_at(planned), DELTA, planned))
    return {"before": before, "no_plan": no_plan, "plan": plan, "less": 1 - plan / before}


if __name__ == "__main__":
    main()
