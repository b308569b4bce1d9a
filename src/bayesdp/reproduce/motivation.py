"""The example of section 3: incomes of a small town, one of them far above the rest, and an attacker who guesses.

The mean income is released with Laplace noise that hides the largest income with epsilon_0. The attacker sees the mean,
knows everyone else, and decides whether the rich person lives in the town. And what about the others?
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bayesdp.properties import attack_success
from bayesdp.reproduce.experiment import Found, Options, Verdict, short, table
from bayesdp.validation import FloatArray

TITLE = "The income example (section 3)"
SECONDS = 10.0
EPSILONS = (0.5, 1.0, 2.0, 5.0, 10.0)
_RESIDENTS = 1000
_RATIO = 1000.0  # the rich person's income over the median
_SHARES = (0.5, 0.9, 0.99)
_TAIL = 0.5  # the attacker also says "present" only if the mean is above so many scales beyond the income's effect


def compute(options: Options) -> Found:
    """How often the attacker is right, and the epsilon of everyone else."""
    rng = np.random.default_rng(options.seed)
    incomes = rng.lognormal(0.0, 0.6, _RESIDENTS)
    others = incomes / (_RATIO * float(np.median(incomes)))  # as parts of the largest, which noise must hide
    trials = 20_000 if options.small else 2_000_000
    rows = [_guess(epsilon, trials, rng) for epsilon in options.track(EPSILONS)]
    return {
        "settings": {"seed": options.seed, "residents": _RESIDENTS, "ratio": _RATIO, "trials": trials},
        "attacks": rows,
        "others": {"shares": list(_SHARES), "parts": short(np.quantile(others, share) for share in _SHARES)},
    }


def _guess(epsilon: float, trials: int, rng: np.random.Generator) -> dict[str, float]:
    """The mean without the rich person is 0 and with them 1, in units of their effect; noise of scale 1/epsilon."""
    present = rng.random(trials) < 0.5
    mean: FloatArray = present + rng.laplace(0.0, 1 / epsilon, trials)
    guessed = mean > 0.5  # Bayes-optimal from even odds
    sure = mean > 1 + _TAIL / epsilon  # so high that it is e^epsilon times as likely with the rich person
    number = np.count_nonzero(sure)
    right = np.count_nonzero(present & sure) / number
    return {
        "epsilon": epsilon,
        "bound": attack_success(epsilon),
        "optimal": np.count_nonzero(guessed == present) / trials,
        "optimal_exact": 1 - math.exp(-epsilon / 2) / 2,
        "when_sure": right,
        "when_sure_error": math.sqrt(max(right * (1 - right), 1 / number) / number),
        "how_often_sure": number / trials,
    }


def draw(found: Found, figure: Any) -> None:
    """Success over epsilon."""
    axis = figure.subplots()
    grid = np.linspace(0.01, 10, 200)
    axis.plot(grid, 1 / (1 + np.exp(-grid)), color="black", label="the paper's bound 1/(1 + e^-epsilon)")
    axis.plot(grid, 1 - np.exp(-grid / 2) / 2, color="tab:blue", linestyle=":", label="best guess, exact")
    for name, label, marker in (("when_sure", "when the mean is very high", "^"), ("optimal", "best guess", "o")):
        axis.plot(
            [one["epsilon"] for one in found["attacks"]], [one[name] for one in found["attacks"]], marker, label=label
        )
    axis.set_xlabel("epsilon of the mechanism")
    axis.set_ylabel("the attacker is right")
    axis.legend(fontsize=8)


def story(found: Found) -> str:
    """Attacks, and everyone else."""
    heads = [
        "epsilon",
        "1/(1 + e^-epsilon)",
        "right when the mean is very high",
        "how often it is",
        "best guess",
        "best guess, exact",
    ]
    rows = [
        [
            f"{one['epsilon']:g}",
            f"{one['bound']:.4f}",
            f"{one['when_sure']:.4f} ± {one['when_sure_error']:.4f}",
            f"{one['how_often_sure']:.3f}",
            f"{one['optimal']:.4f}",
            f"{one['optimal_exact']:.4f}",
        ]
        for one in found["attacks"]
    ]
    parts = found["others"]["parts"]
    epsilons = [[f"{one['epsilon']:g}", *(one["epsilon"] * part for part in parts)] for one in found["attacks"]]
    settings = found["settings"]
    return f"""{settings["residents"]} incomes, and one person with {settings["ratio"]:g} times the median income; the
mean with Laplace noise that hides that person with epsilon; {settings["trials"]:,} trials.

{table(heads, rows)}

The paper's bound is reached, but only when the mean happens to be so high that it is e^epsilon times as likely with
the person as without. Over all outcomes even the best guess is right less often, 1 - e^(-epsilon/2)/2.

For the other residents the same noise hides far more. Epsilon of the mean for a resident, at shares of the town:

{table(["epsilon for the rich person", "half of the others", "90 %", "99 %"], epsilons)}

That is the paper's point. With noise and denominator fixed beforehand it is proved, person by person."""


def verdicts(found: Found) -> list[Verdict]:
    """On the attacker and on the others."""
    attacks, median = found["attacks"], found["others"]["parts"][0]
    bounded = all(
        one["optimal"] <= one["bound"] and one["when_sure"] <= one["bound"] + 4 * one["when_sure_error"]
        for one in attacks
    )
    return [
        Verdict(
            says="An attacker who sees a mean with epsilon is right with probability at most 1/(1 + e^-epsilon).",
            as_published=None,
            accounted_right=bounded,
            why="It is reached for means as high as the one with the person, or higher; over all outcomes the best "
            "guess is right with probability 1 - e^(-epsilon/2)/2.",
        ),
        Verdict(
            says="The epsilon that hides the richest hides everyone else far better.",
            as_published=None,
            accounted_right=median < 0.01,
            why=f"Half of the others have {median:.2g} times that epsilon or less, by construction: with noise and "
            "denominator fixed beforehand epsilon is proportional to the income, and noise was set for one "
            f"{found['settings']['ratio']:g} times the median.",
        ),
    ]
