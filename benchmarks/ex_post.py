"""Ex-post epsilons before and after: Markov's inequality with forward costs, against the hockey-stick form.

    python -m benchmarks.ex_post                   # prints the tables and writes results/ex_post.json
    python -m benchmarks.ex_post --ledgers DIR     # also reads DIR/NAME/run.ledger and DIR/NAME/seed-N/run.ledger

Ledgers come from `python -m benchmarks.recipes --keep DIR` and `bayesdp demo -o DIR/demo`; without the option their
lines stay as they are in the results.

*Before*: the Markov form with the wide mixture and the cost of the larger direction, as version 0.1.0 computed it.
*After*: the hockey-stick form with the cost of a record left out, at the wide mixture (no plan) and at orders laid out
from the plan. *Claimed*: the latter, or the epsilon for everyone left out if that is smaller. *Fixed*: the Rényi bound
if exposures had been fixed beforehand, in the same direction: what adaptivity costs is the rest.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bayesdp import Ledger, Plan
from bayesdp.claims.ex_post import hockey_stick_epsilons, markov_epsilons
from bayesdp.claims.order_layout import laid_out
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.guarantees.clip_bound import ClipBound
from bayesdp.guarantees.worst_case import worst_case_of
from bayesdp.mechanisms.log_moments import log_moments
from bayesdp.mechanisms.order_mixture import WIDE_IN, WIDE_OUT, OrderMixture
from bayesdp.profiles.conversion import record_epsilons
from bayesdp.validation import FloatArray
from bayesdp.version import __version__

RESULTS = Path(__file__).parent.parent / "results" / "ex_post.json"
DELTA, SEED, RECORDS = 1e-5, 0, 3000
FINE = OrderMixture(tuple(np.geomspace(0.25, 4096, 400).tolist()), (1 / 401,) * 400)
SHARES = (0.1, 0.5, 0.9)
QUARTER = 0.25  # of the clip bound: the quietest record that orders are laid out for
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
    parser = argparse.ArgumentParser(description="Ex-post epsilons before and after.")
    parser.add_argument("--ledgers", type=Path, metavar="DIR", help="where the ledgers of recipes and demo are kept")
    kept = parser.parse_args().ledgers
    tables = {
        "records": [line for run in RECORDS_AT_THE_CLIP for line in at_the_clip(*run)],
        "populations": populations(),
        "ledgers": json.loads(RESULTS.read_text()).get("ledgers", []) if kept is None else ledgers(kept),
    }
    for line in tables["records"]:
        name = f"z {line['noise_multiplier']:g}, q {line['sample_rate']:.4g}, T {line['steps']}"
        print(f"{name}, at {line['part']:g} of the clip: {_shown(line)}")
    for line in tables["populations"] + tables["ledgers"]:
        print(f"{line['run']}, share {line['share']:g}: {_shown(line)}")
    settings = {"delta": DELTA, "seed": SEED, "people": RECORDS, "bayesdp": __version__}
    versions = {"python": platform.python_version(), "numpy": np.__version__}
    RESULTS.write_text(json.dumps({**settings, **versions, **tables}, indent=1) + "\n")


def _shown(line: dict[str, Any]) -> str:
    return (
        f"{line['before']:.4g} -> {line['no_plan']:.4g} -> {line['plan']:.4g}, claimed {line['claimed']:.4g} "
        f"({line['less']:.0%} less; {line['above_fixed']:.1%} above fixed; everyone {line['everyone']:.4g}, "
        f"left out {line['left_out']:.4g})"
    )


def at_the_clip(noise: float, rate: float, steps: int) -> list[dict[str, Any]]:
    """One record at a fixed part of the clip bound in every step."""
    planned = laid_out([(noise, rate, steps)], "record out")
    everyone = worst_case_of([(noise, rate, steps)], delta=DELTA).epsilon
    left_out = min(everyone, float(ClipBound.of([(noise, rate, steps)]).epsilons_out([DELTA])[0]))
    lines: list[dict[str, Any]] = []
    for part in (1.0, 0.7, 0.5, QUARTER):
        at = lambda mixture: steps * log_moments(rate, [part / noise], mixture.lambdas, mixture.direction)  # noqa: B023, E731
        figures = _figures(at, planned)
        line = {"noise_multiplier": noise, "sample_rate": rate, "steps": steps, "part": part}
        lines.append({**line, **_line(figures, lambda epsilons: float(epsilons[0]), everyone, left_out)})
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
        lines += shares_of(name, [ledger])
    return lines


def ledgers(kept: Path) -> list[dict[str, Any]]:
    """The runs of each directory below ``kept``: means over its seeds."""
    lines: list[dict[str, Any]] = []
    for directory in sorted(path for path in kept.iterdir() if path.is_dir()):
        paths = sorted({*directory.glob("run.ledger"), *directory.glob("seed-*/run.ledger")})
        opened = [Ledger.open(path, write=False) for path in paths]
        if opened:
            lines += shares_of(directory.name, opened)
        for ledger in opened:
            ledger.close()
    return lines


def shares_of(name: str, runs: list[Ledger]) -> list[dict[str, Any]]:
    """Return a line for each share: means over runs, and for the excess above fixed exposures the largest."""
    by_share: dict[float, list[dict[str, Any]]] = {share: [] for share in SHARES}
    for ledger in runs:
        everyone = ledger.worst_case(DELTA).epsilon
        of_records = RecordFigures(ledger, DELTA, everyone)
        figures = _figures(of_records.mixture_costs, ledger.mixture)
        within, claims = _within_the_layout(of_records), ledger.claims(delta=DELTA, shares=SHARES)
        left_out = (claims.left_out or claims.everyone).epsilon
        above = (figures["plan"][within] / figures["fixed"][within] - 1).max(initial=0.0)
        for share, lines in by_share.items():
            line = _line(figures, lambda epsilons: float(np.quantile(epsilons, share)), everyone, left_out)  # noqa: B023
            estimate = claims.share(share).estimate.epsilon
            lines.append({**line, "above_fixed": float(above), "estimate": estimate})
    return [
        {
            "run": name,
            "share": share,
            "seeds": len(lines),
            **{
                key: float((np.max if key == "above_fixed" else np.mean)([line[key] for line in lines]))
                for key in lines[0]
            },
        }
        for share, lines in by_share.items()
    ]


def _within_the_layout(figures: RecordFigures) -> FloatArray:
    """Return which audit records are between a quarter of the clip bound and the clip bound, all steps together."""
    bound = figures.clip_bound
    assert bound is not None
    quiet = bound.settings.counts[0] @ log_moments(bound.settings.rates, QUARTER * bound.settings.exposures, [1.0])
    return figures.costs[:, 0] >= quiet[0]


def _figures(costs_at: Callable[[OrderMixture], FloatArray], planned: OrderMixture) -> dict[str, FloatArray]:
    """Return the epsilons of records in each form, [m]; ``costs_at`` gives their costs at the orders of a mixture."""
    return {
        "before": markov_epsilons(costs_at(WIDE_IN), DELTA, WIDE_IN),
        "no_plan": hockey_stick_epsilons(costs_at(WIDE_OUT), DELTA, WIDE_OUT),
        "plan": hockey_stick_epsilons(costs_at(planned), DELTA, planned),
        "fixed": record_epsilons(costs_at(FINE), FINE.lambdas, DELTA),
    }


def _line(
    figures: dict[str, FloatArray], at: Callable[[FloatArray], float], everyone: float, left_out: float
) -> dict[str, float]:
    line = {name: at(epsilons) for name, epsilons in figures.items()}
    claimed = min(line["plan"], left_out)
    return {
        **line,
        "everyone": everyone,
        "left_out": left_out,
        "claimed": claimed,
        "less": 1 - claimed / line["before"],
        "above_fixed": line["plan"] / line["fixed"] - 1,
    }


if __name__ == "__main__":
    main()
