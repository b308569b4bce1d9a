"""A figure of the supplement: epsilon against the order lambda at a fixed signal-to-noise ratio."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bayesdp.guarantees.worst_case import epsilon as worst_case
from bayesdp.mechanisms import SubsampledGaussian
from bayesdp.profiles.conversion import log_constant
from bayesdp.reproduce.experiment import Found, Options, Verdict, short, table

TITLE = "The order lambda (supplement)"
SECONDS = 5.0
CLIPS = (0.1, 0.7, 1.0)
_RATE, _STEPS, _DELTA = 64 / 60_000, 10_000, 1e-5
_LAMBDAS = np.arange(1.0, 50.0)


def compute(options: Options) -> Found:
    """Epsilon at each order, by Chernoff as published and by the tighter conversion; and without any order."""
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
                "published": short(published),
                "improved": short(improved),
                "best_lambda": int(_LAMBDAS[best]),
                "best": float(f"{published[best]:.8g}"),
                "best_improved": float(f"{improved.min():.8g}"),
                "rdp": classic.rdp_epsilon,
                "pld": classic.pld_epsilon,
            }
        )
    settings = {"sample_rate": _RATE, "steps": _STEPS, "delta": _DELTA, "sigma": 1.0}
    return {"settings": settings, "lambdas": _LAMBDAS.astype(int).tolist(), "lines": lines}


def draw(found: Found, figure: Any) -> None:
    """One line for each clip bound, and the exact value as a level."""
    axis = figure.subplots()
    for line, colour in zip(found["lines"], ("tab:blue", "tab:orange", "tab:green"), strict=True):
        axis.semilogy(found["lambdas"], line["published"], color=colour, label=f"C = {line['clip']:g}, as published")
        if line["pld"] is not None:
            axis.axhline(line["pld"], color=colour, linestyle=":", label=f"C = {line['clip']:g}, PLD")
    axis.set_ylim(1e-2, 1e2)
    axis.set_xlabel("lambda")
    axis.set_ylabel("epsilon")
    axis.legend(fontsize=8)


def story(found: Found) -> str:
    """The minima in a table."""
    heads = [
        "C",
        "best lambda",
        "epsilon there, as published",
        "tighter conversion",
        "RDP, dp-accounting's orders",
        "PLD",
    ]
    rows = [
        [f"{one['clip']:g}", one["best_lambda"], f"{one['best']:.5f}", one["best_improved"], one["rdp"], one["pld"]]
        for one in found["lines"]
    ]
    return f"""q = 64/60000, sigma = 1, 10,000 steps, delta 1e-5.

{table(heads, rows)}

The order matters, and the best one moves up as the signal-to-noise ratio goes down. Privacy loss distributions need no
order at all."""


def verdicts(found: Found) -> list[Verdict]:
    """On the effect of the order."""
    lowest = min(found["lines"], key=lambda line: line["clip"])
    return [
        Verdict(
            says="Epsilon depends on lambda, and at low signal-to-noise ratios the best lambda is far out.",
            as_published=lowest["best_lambda"] == max(found["lambdas"]),
            accounted_right=None,
            why=f"At C = {lowest['clip']:g} the best is at the end of the grid, {lowest['best_lambda']}, with "
            f"{lowest['best']:.3g}; RDP at dp-accounting's orders gives {lowest['rdp']:.3g}, privacy loss "
            f"distributions {lowest['pld']:.3g}.",
        )
    ]
