"""A figure of the supplement: epsilon against the order lambda at a fixed signal-to-noise ratio."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bayesdp.guarantees.worst_case import epsilon as worst_case
from bayesdp.mechanisms import SubsampledGaussian
from bayesdp.profiles.conversion import log_constant
from bayesdp.reproduce.experiment import ExperimentOptions, Result, Verdict, rounded

TITLE = "The order lambda (supplement)"
SECONDS = 5.0
CLIPS = (0.1, 0.7, 1.0)
_RATE, _STEPS, _DELTA = 64 / 60_000, 10_000, 1e-5
_LAMBDAS = np.arange(1.0, 50.0)


def compute(options: ExperimentOptions) -> Result:
    """Return epsilon at each order by Chernoff, as published, and by the tighter conversion; RDP and PLD beside them.

    There is no chance in it, and a trial computes all of it.
    """
    mechanism = SubsampledGaussian(sample_rate=_RATE)
    lines: list[dict[str, Any]] = []
    for clip in options.track(CLIPS):
        costs = _STEPS * mechanism.log_moment([clip], _LAMBDAS)[0]
        published = (costs - math.log(_DELTA)) / _LAMBDAS
        improved = np.maximum(0.0, (costs + log_constant(_LAMBDAS, "improved") - math.log(_DELTA)) / _LAMBDAS)
        classic = worst_case(noise_multiplier=1 / clip, sample_rate=_RATE, steps=_STEPS, delta=_DELTA)
        best = int(np.argmin(published))
        lines.append(
            {
                "clip": clip,
                "published": rounded(published),
                "improved": rounded(improved),
                "best_lambda": int(_LAMBDAS[best]),
                "best": float(f"{published[best]:.8g}"),
                "best_improved": float(f"{improved.min():.8g}"),
                "rdp": classic.rdp_epsilon,
                "pld": classic.pld_epsilon,
            }
        )
    settings = {"sample_rate": _RATE, "steps": _STEPS, "delta": _DELTA, "sigma": 1.0}
    return {"settings": settings, "lambdas": _LAMBDAS.astype(int).tolist(), "lines": lines}


def draw(result: Result, figure: Any) -> None:
    """Draw a curve over lambda for each clip bound, and its PLD epsilon, which needs no order, as a level."""
    axis = figure.subplots()
    for line, colour in zip(result["lines"], ("tab:blue", "tab:orange", "tab:green"), strict=True):
        axis.semilogy(result["lambdas"], line["published"], color=colour, label=f"C = {line['clip']:g}, as published")
        if line["pld"] is not None:
            axis.axhline(line["pld"], color=colour, linestyle=":", label=f"C = {line['clip']:g}, PLD")
    axis.set_ylim(1e-2, 1e2)
    axis.set_xlabel("lambda")
    axis.set_ylabel("epsilon")
    axis.legend(fontsize=8)


def template_values(result: Result) -> dict[str, Any]:
    """Return the lines of the table of minima."""
    lines = [
        [
            f"{line['clip']:g}",
            line["best_lambda"],
            f"{line['best']:.5f}",
            *(line[name] for name in ("best_improved", "rdp", "pld")),
        ]
        for line in result["lines"]
    ]
    return {"lines": lines}


def verdicts(result: Result) -> list[Verdict]:
    """Judge what the paper says of the order, at the lowest signal-to-noise ratio."""
    lowest = min(result["lines"], key=lambda line: line["clip"])
    return [
        Verdict(
            says="Epsilon depends on lambda, and at low signal-to-noise ratios the best lambda is large.",
            as_published=lowest["best_lambda"] == max(result["lambdas"]),
            accounted_right=None,
            why=f"At C = {lowest['clip']:g} the best lambda is the last of the grid, {lowest['best_lambda']}, and "
            f"gives {lowest['best']:.3g}. RDP gives {lowest['rdp']:.3g} at dp-accounting's orders, and privacy loss "
            f"distributions give {lowest['pld']:.3g}.",
        )
    ]
