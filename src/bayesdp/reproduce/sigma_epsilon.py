"""Two figures of the supplement: epsilon of one step against sigma, with clipping for both, and for DP only."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bayesdp.reproduce import weibull
from bayesdp.reproduce.experiment import Found, Options, Verdict, short, table

TITLE = "Noise against epsilon (supplement)"
SECONDS = 15.0
QUANTILES = {"clip": (0.01, 0.5, 0.99), "noclip": (0.05, 0.5, 0.95)}
_LAMBDA = np.array([24.0])
_WORDS = {"clip": "clipped for both, at the", "noclip": "clipped for DP only, noise at the"}


def compute(options: Options) -> Found:
    """Epsilon at each sigma, six ways, for two times three clip bounds."""
    sigmas = [float(sigma) for sigma in np.arange(0.55, 1.36, 0.05)][:: 8 if options.small else 1]
    classic = {
        "dp_published": short(weibull.moments_accountant(1 / sigma, 1, _LAMBDA) for sigma in sigmas),
        "dp_moments": short(weibull.moments_accountant(1 / sigma, 1, weibull.ALL_LAMBDAS) for sigma in sigmas),
        "dp_same": short(weibull.same_orders(1 / sigma, 1) for sigma in sigmas),
        "dp_pld": [weibull.classic(1 / sigma, 1)[1] for sigma in sigmas],
    }
    which = [(mode, index) for mode, quantiles in QUANTILES.items() for index in range(len(quantiles))]
    panels = [{**_panel(mode, index, sigmas, options.seed), **classic} for mode, index in options.track(which)]
    return {
        "settings": {
            "seed": options.seed,
            "sample_rate": weibull.RATE,
            "delta": weibull.DELTA,
            "lambda_published": 24,
            "floor": -math.log(weibull.DELTA) / 24,
        },
        "sigmas": short(sigmas),
        "panels": panels,
    }


def _panel(mode: str, index: int, sigmas: list[float], seed: int) -> dict[str, Any]:
    quantile = QUANTILES[mode][index]
    rng = np.random.default_rng([seed, 100 + index, mode == "clip"])
    gradients = weibull.gradients(rng)
    norms = np.linalg.norm(gradients, axis=1)
    clip = float(np.quantile(norms, quantile))
    if mode == "clip":
        gradients, norms = gradients * np.minimum(1, clip / norms)[:, None], np.minimum(norms, clip)
    distances = weibull.pair_distances(gradients)
    lines: dict[str, list[float]] = {"bdp_published": [], "bdp_best": [], "bdp_norms": []}
    for sigma in sigmas:
        accountants = {
            "bdp_published": weibull.as_published(1, _LAMBDA),
            "bdp_best": weibull.as_published(1, weibull.ALL_LAMBDAS),
            "bdp_norms": weibull.of_norms(1),
        }
        for name, accountant in accountants.items():
            alone = name == "bdp_norms"
            accountant.step(
                norms if alone else distances,
                noise_std=sigma * clip * (1 if alone else 2),
                sample_rate=weibull.RATE,
                clip=clip if alone and mode == "clip" else None,
            )
            lines[name].append(weibull.best(accountant))
    return {"mode": mode, "quantile": quantile, **{name: short(values) for name, values in lines.items()}}


def draw(found: Found, figure: Any) -> None:
    """Two rows of three panels."""
    axes = figure.subplots(2, 3, sharex=True, sharey=True)
    for axis, panel in zip(axes.ravel(), found["panels"], strict=True):
        for name, (label, colour, style) in weibull.lines(24).items():
            axis.semilogy(found["sigmas"], panel[name], style, color=colour, label=label)
        axis.set_title(f"{_WORDS[panel['mode']]} {panel['quantile']:g} quantile", fontsize=8)
    for axis in axes[1]:
        axis.set_xlabel("sigma")
    for axis in axes[:, 0]:
        axis.set_ylabel("epsilon")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)


def story(found: Found) -> str:
    """Smallest and largest sigma in a table."""
    heads = ["", "quantile", "sigma", "DP, as published", "BDP, as published", "DP, moments", "DP, PLD", "BDP, norms"]
    rows = [
        [
            "with clipping" if panel["mode"] == "clip" else "without",
            f"{panel['quantile']:g}",
            f"{found['sigmas'][place]:.3g}",
            *(panel[name][place] for name in ("dp_published", "bdp_published", "dp_moments", "dp_pld", "bdp_norms")),
        ]
        for panel in found["panels"]
        for place in (0, -1)
    ]
    first = found["panels"][0]
    return f"""One step, sampling rate 1/1000, delta 1e-5, C a quantile of the gradients' norms. {weibull.NOISE}

{table(heads, rows)}

The published curves are those of one order, lambda = 24. At the smallest sigma one step costs everyone
{first["dp_pld"][0]:.2g} by privacy loss distributions, not {first["dp_published"][0]:.3g}; at the largest
{first["dp_pld"][-1]:.2g}. No published curve can be below the floor -log(delta)/lambda =
{found["settings"]["floor"]:.3g}, which is there before the first step."""


def verdicts(found: Found) -> list[Verdict]:
    """On the three panels with clipping."""
    panels = {panel["quantile"]: panel for panel in found["panels"] if panel["mode"] == "clip"}
    tightest, widest = panels[min(panels)], panels[max(panels)]
    gap, wide_gap = (one["dp_published"][0] / one["bdp_published"][0] for one in (tightest, widest))
    norms_gaps = {quantile: one["dp_same"][0] / one["bdp_norms"][0] for quantile, one in panels.items()}
    gains = ", ".join(f"{100 * (1 - 1 / ratio):.2g} % at the {at:g} quantile" for at, ratio in norms_gaps.items())
    return [
        Verdict(
            says="With clipping, BDP always needs less noise than DP.",
            as_published=all(_below(one["bdp_published"], one["dp_published"]) for one in panels.values()),
            accounted_right=all(_below(one["bdp_norms"], one["dp_same"]) for one in panels.values()),
            why="With norms and at the same orders it never needs more, since a norm is at most the clip bound. What "
            f"it gains in epsilon at sigma {found['sigmas'][0]:.3g}: {gains}; where nearly all gradients are clipped "
            "there is nothing to gain. And privacy loss distributions give everyone "
            f"{tightest['dp_pld'][0]:.2g} where BDP has {tightest['bdp_norms'][0]:.3g}.",
        ),
        Verdict(
            says="As the clip bound goes down, the BDP curve approaches the DP curve.",
            as_published=gap < min(1.1, wide_gap),
            accounted_right=norms_gaps[min(panels)] < min(1.1, norms_gaps[max(panels)]),
            why=f"As published, at the {tightest['quantile']:g} quantile DP is {gap:.2g} times BDP, at the "
            f"{widest['quantile']:g} quantile {wide_gap:.2g} times (smallest sigma): gradients that are nearly all "
            "clipped to C are still closer to each other than the 2C that the noise is set for. Their norms are C.",
        ),
    ]


def _below(bayesian: list[float], classic: list[float]) -> bool:
    """Not above at any sigma, up to a rounding error, and clearly below where there is the least noise."""
    not_above = all(one <= (1 + 1e-6) * other for one, other in zip(bayesian, classic, strict=True))
    return not_above and bayesian[0] < 0.999 * classic[0]
