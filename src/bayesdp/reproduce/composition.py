"""Figure 1: how epsilon grows over 100 steps, with noise at four quantiles of the gradients' norms.

DP clips at C, the quantile; BDP does not clip. The figure prints one order, lambda = 16, at which DP has epsilon 117;
at the best order it is below 1, and by privacy loss distributions 0.06.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bayesdp.claims import ClaimRequest, compute_claims
from bayesdp.reproduce.experiment import ExperimentOptions, Result, Verdict, rounded
from bayesdp.reproduce.published import weibull
from bayesdp.run_ledger import Ledger

TITLE = "Composition (Figure 1)"
SECONDS = 60.0
QUANTILES = (0.05, 0.25, 0.75, 0.95)
TOTAL_STEPS = 100
_LAMBDA = np.array([16.0])
_PEOPLE = 500
_SHARES = {"half": 0.5, "99 %": 0.99}


def compute(options: ExperimentOptions) -> Result:
    """Return epsilon after each step for DP and BDP, each as published, at the best order and accounted correctly.

    A trial has four steps, and leaves out the shares of people.
    """
    steps = list(range(1, (4 if options.small else TOTAL_STEPS) + 1))
    classic = _classic(steps)
    panels = [{**_panel(index, steps, options), **classic} for index in options.track(range(len(QUANTILES)))]
    return {
        "settings": {
            "seed": options.seed,
            "total_steps": TOTAL_STEPS,
            "sample_rate": weibull.RATE,
            "delta": weibull.DELTA,
            "lambda_published": 16,
            "lambdas": [1, 64],
            "people": _PEOPLE,
        },
        "steps": steps,
        "panels": panels,
    }


def _panel(index: int, steps: list[int], options: ExperimentOptions) -> dict[str, Any]:
    rng = np.random.default_rng([options.seed, index])
    published = weibull.published_accountant(TOTAL_STEPS, _LAMBDA)
    all_orders = weibull.published_accountant(TOTAL_STEPS, weibull.ALL_LAMBDAS)
    norms_only = weibull.norms_accountant(TOTAL_STEPS)
    curves: dict[str, list[float]] = {"bdp_published": [], "bdp_best": [], "bdp_norms": []}
    for _ in steps:
        gradients = weibull.draw_gradients(rng)
        norms = np.linalg.norm(gradients, axis=1)
        clip = float(np.quantile(norms, QUANTILES[index]))
        distances = weibull.pair_distances(gradients)
        for accountant in (published, all_orders):
            accountant.step(distances, noise_std=2 * clip, sample_rate=weibull.RATE)
        norms_only.step(norms, noise_std=clip, sample_rate=weibull.RATE)
        curves["bdp_published"].append(published.epsilon(weibull.DELTA))
        curves["bdp_best"].append(weibull.best_epsilon(all_orders))
        curves["bdp_norms"].append(weibull.best_epsilon(norms_only))
    people = {} if options.small else _people(index, steps, options)  # slow even for few steps
    return {
        "quantile": QUANTILES[index],
        **{name: rounded(values) for name, values in curves.items()},
        "people": people,
    }


def _classic(steps: list[int]) -> dict[str, Any]:
    """Return DP with clipping, the same in every panel: the exposure is 1 at each step."""
    classic = {step: weibull.classic(1.0, step) for step in steps if step in (1, 2, 5, steps[-1]) or step % 10 == 0}
    return {
        "dp_published": rounded(weibull.moments_accountant(1.0, step, _LAMBDA) for step in steps),
        "dp_moments": rounded(weibull.moments_accountant(1.0, step, weibull.ALL_LAMBDAS) for step in steps),
        "classic_steps": list(classic),
        "dp_rdp": rounded(rdp for rdp, _ in classic.values()),
        "dp_pld": [None if pld is None else float(f"{pld:.8g}") for _, pld in classic.values()],
    }


def _people(index: int, steps: list[int], options: ExperimentOptions) -> dict[str, float]:
    """Return an estimate of epsilon for shares of people without clipping, by the loss distribution of each person."""
    rng = np.random.default_rng([options.seed, index, 1])
    ledger = Ledger()
    for _ in steps:
        norms = np.linalg.norm(rng.weibull(0.5, (_PEOPLE, 1000)), axis=1)
        clip = float(np.quantile(norms, QUANTILES[index]))
        ledger.step(noise_std=clip, sample_rate=weibull.RATE, clip=None, audit=norms)
    claims = compute_claims(ledger, ClaimRequest(delta=weibull.DELTA, shares=_SHARES.values()))
    return {name: float(f"{pair.estimate.epsilon:.8g}") for name, pair in zip(_SHARES, claims.shares, strict=True)}


def draw(result: Result, figure: Any) -> None:
    """Draw epsilon over steps in four panels, logarithmically, since the curves differ by a factor of a thousand."""
    axes = figure.subplots(1, 4, sharey=True)
    for axis, panel in zip(axes, result["panels"], strict=True):
        for name, (label, colour, style) in weibull.curves(16).items():
            steps = panel["classic_steps"] if name == "dp_pld" else result["steps"]
            axis.semilogy(steps, panel[name], style, color=colour, label=label)
        axis.set_title(f"noise at the {panel['quantile']:g} quantile", fontsize=9)
        axis.set_xlabel("steps")
    axes[0].set_ylabel("epsilon")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)


def template_values(result: Result) -> dict[str, Any]:
    """Return the lines of the table on the last step, and where shares of people are better off than by DP."""
    columns = ("dp_published", "bdp_published", "dp_moments", "dp_rdp", "dp_pld", "bdp_best", "bdp_norms")
    lines = [
        [
            f"{panel['quantile']:g}",
            *((panel[name] or [None])[-1] for name in columns),
            *(panel["people"].get(share) for share in _SHARES),
        ]
        for panel in result["panels"]
    ]
    return {
        "lines": lines,
        "first": result["panels"][0],
        "pld": _pld(result),
        "better_off": {share: _better_off(result, share) for share in _SHARES},
    }


def verdicts(result: Result) -> list[Verdict]:
    """Judge BDP against DP after the last step, where noise is at the 0.25 quantile or above."""
    panels = [panel for panel in result["panels"] if panel["quantile"] >= 0.25]
    with_norms = ", ".join(f"{panel['bdp_norms'][-1]:.3g}" for panel in panels)
    return [
        Verdict(
            says="After 100 steps, with noise at the 0.25 quantile of the gradients' norms or above, BDP without "
            "clipping matches or beats DP with clipping.",
            as_published=all(panel["bdp_published"][-1] <= panel["dp_published"][-1] for panel in panels),
            accounted_right=all(panel["bdp_norms"][-1] <= panel["dp_rdp"][-1] for panel in panels),
            why=f"DP's {panels[0]['dp_published'][-1]:.4g} is an artefact of the single order that was printed: it is "
            f"{panels[0]['dp_moments'][-1]:.3g} at the best order, {panels[0]['dp_rdp'][-1]:.3g} by RDP and "
            f"{_pld(result):.2g} by privacy loss distributions. BDP by norms, without clipping, has {with_norms}.",
        )
    ]


def _better_off(result: Result, share: str) -> list[float]:
    """Return the quantiles of the noise at which this share of people is below what DP with clipping gives everyone."""
    return [panel["quantile"] for panel in result["panels"] if panel["people"].get(share, np.inf) < _pld(result)]


def _pld(result: Result) -> float:
    """Return DP's epsilon after the last step by privacy loss distributions."""
    return float(result["panels"][0]["dp_pld"][-1])
