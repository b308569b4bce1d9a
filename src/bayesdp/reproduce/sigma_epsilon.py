"""Two figures of the supplement: epsilon of one step against sigma, with clipping for both, and for DP only."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bayesdp.reproduce.experiment import ExperimentOptions, Result, Verdict, rounded
from bayesdp.reproduce.published import weibull

TITLE = "Epsilon against noise (supplement)"
SECONDS = 15.0
QUANTILES = {"clip": (0.01, 0.5, 0.99), "noclip": (0.05, 0.5, 0.95)}
_LAMBDA = np.array([24.0])
_PANEL_TITLES = {"clip": "both clipped at the {:g} quantile", "noclip": "only DP clipped, noise at the {:g} quantile"}


def compute(options: ExperimentOptions) -> Result:
    """Return epsilon of one step at each sigma, for three quantiles with clipping for both and three for DP only.

    A trial has three sigmas.
    """
    sigmas = [float(sigma) for sigma in np.arange(0.55, 1.36, 0.05)][:: 8 if options.small else 1]
    classic = {
        "dp_published": rounded(weibull.moments_accountant(1 / sigma, 1, _LAMBDA) for sigma in sigmas),
        "dp_moments": rounded(weibull.moments_accountant(1 / sigma, 1, weibull.ALL_LAMBDAS) for sigma in sigmas),
        "dp_same": rounded(weibull.same_orders(1 / sigma, 1) for sigma in sigmas),
        "dp_pld": [weibull.classic(1 / sigma, 1)[1] for sigma in sigmas],
    }
    keys = [(mode, index) for mode, quantiles in QUANTILES.items() for index in range(len(quantiles))]
    panels = [{**_panel(mode, index, sigmas, options.seed), **classic} for mode, index in options.track(keys)]
    return {
        "settings": {
            "seed": options.seed,
            "sample_rate": weibull.RATE,
            "delta": weibull.DELTA,
            "lambda_published": 24,
            "floor": -math.log(weibull.DELTA) / 24,
        },
        "sigmas": rounded(sigmas),
        "panels": panels,
    }


def _panel(mode: str, index: int, sigmas: list[float], seed: int) -> dict[str, Any]:
    quantile = QUANTILES[mode][index]
    rng = np.random.default_rng([seed, 100 + index, mode == "clip"])
    gradients = weibull.draw_gradients(rng)
    norms = np.linalg.norm(gradients, axis=1)
    clip = float(np.quantile(norms, quantile))
    if mode == "clip":
        gradients, norms = gradients * np.minimum(1, clip / norms)[:, None], np.minimum(norms, clip)
    distances = weibull.pair_distances(gradients)
    curves: dict[str, list[float]] = {"bdp_published": [], "bdp_best": [], "bdp_norms": []}
    for sigma in sigmas:
        for name, accountant in (
            ("bdp_published", weibull.published_accountant(1, _LAMBDA)),
            ("bdp_best", weibull.published_accountant(1, weibull.ALL_LAMBDAS)),
        ):
            accountant.step(distances, noise_std=sigma * clip * 2, sample_rate=weibull.RATE)
            curves[name].append(weibull.best_epsilon(accountant))
        by_norms = weibull.norms_accountant(1)
        by_norms.step(norms, noise_std=sigma * clip, sample_rate=weibull.RATE, clip=clip if mode == "clip" else None)
        curves["bdp_norms"].append(weibull.best_epsilon(by_norms))
    return {"mode": mode, "quantile": quantile, **{name: rounded(values) for name, values in curves.items()}}


def draw(result: Result, figure: Any) -> None:
    """Draw epsilon over sigma in two rows of three panels."""
    axes = figure.subplots(2, 3, sharex=True, sharey=True)
    for axis, panel in zip(axes.ravel(), result["panels"], strict=True):
        for name, (label, colour, style) in weibull.curves(24).items():
            axis.semilogy(result["sigmas"], panel[name], style, color=colour, label=label)
        axis.set_title(_PANEL_TITLES[panel["mode"]].format(panel["quantile"]), fontsize=8)
    for axis in axes[1]:
        axis.set_xlabel("sigma")
    for axis in axes[:, 0]:
        axis.set_ylabel("epsilon")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)


def template_values(result: Result) -> dict[str, Any]:
    """Return the lines of the table on the smallest and the largest sigma."""
    columns = ("dp_published", "bdp_published", "dp_moments", "dp_pld", "bdp_norms")
    lines = [
        [
            "with clipping" if panel["mode"] == "clip" else "without clipping",
            f"{panel['quantile']:g}",
            f"{result['sigmas'][place]:.3g}",
            *(panel[name][place] for name in columns),
        ]
        for panel in result["panels"]
        for place in (0, -1)
    ]
    return {"lines": lines, "first": result["panels"][0]}


def verdicts(result: Result) -> list[Verdict]:
    """Judge what the paper says of BDP with clipping, by the three panels that have it."""
    panels = {panel["quantile"]: panel for panel in result["panels"] if panel["mode"] == "clip"}
    tightest, widest = panels[min(panels)], panels[max(panels)]
    gap, wide_gap = (panel["dp_published"][0] / panel["bdp_published"][0] for panel in (tightest, widest))
    norms_gaps = {quantile: panel["dp_same"][0] / panel["bdp_norms"][0] for quantile, panel in panels.items()}
    gains = ", ".join(f"{100 * (1 - 1 / ratio):.2g} % at the {at:g} quantile" for at, ratio in norms_gaps.items())
    return [
        Verdict(
            says="With clipping, BDP always needs less noise than DP.",
            as_published=all(_is_below(panel["bdp_published"], panel["dp_published"]) for panel in panels.values()),
            accounted_right=all(_is_below(panel["bdp_norms"], panel["dp_same"]) for panel in panels.values()),
            why="By norms and at the same orders it never needs more, because no norm exceeds the clip bound. Its gain "
            f"in epsilon at sigma {result['sigmas'][0]:.3g} is {gains}; where nearly all gradients are clipped, there "
            "is nothing to gain. Besides, privacy loss distributions give everyone "
            f"{tightest['dp_pld'][0]:.2g} where BDP has {tightest['bdp_norms'][0]:.3g}.",
        ),
        Verdict(
            says="As the clip bound falls, the BDP curve approaches the DP curve.",
            as_published=gap < min(1.1, wide_gap),
            accounted_right=norms_gaps[min(panels)] < min(1.1, norms_gaps[max(panels)]),
            why=f"As published, at the smallest sigma, DP is {gap:.2g} times BDP at the {tightest['quantile']:g} "
            f"quantile and {wide_gap:.2g} times BDP at the {widest['quantile']:g} quantile: gradients that are nearly "
            "all clipped to C are still closer together than the 2C for which the noise is set. Their norms, however, "
            "are C.",
        ),
    ]


def _is_below(bayesian: list[float], classic: list[float]) -> bool:
    """Tell whether a curve is nowhere above another, up to rounding, and clearly below where the noise is least."""
    nowhere_above = all(low <= (1 + 1e-6) * high for low, high in zip(bayesian, classic, strict=True))
    return nowhere_above and bayesian[0] < 0.999 * classic[0]
