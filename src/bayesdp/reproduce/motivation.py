"""The example of section 3: the incomes of a small town, one of them far above the rest, and an attacker who guesses.

The mean income is released with Laplace noise that hides the largest income with epsilon_0. The attacker sees the mean,
knows everyone else's income, and decides whether the rich person lives in the town. What does that leave the others?
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bayesdp.properties import attack_success
from bayesdp.reproduce.experiment import ExperimentOptions, Result, Verdict, rounded
from bayesdp.validation import FloatArray

TITLE = "The income example (section 3)"
SECONDS = 10.0
EPSILONS = (0.5, 1.0, 2.0, 5.0, 10.0)
_RESIDENTS = 1000
_RATIO = 1000.0  # the rich person's income over the median
_SHARES = (0.5, 0.9, 0.99)
_TAIL = 0.5  # a mean is "very high" if it exceeds the rich person's effect by this many noise scales


def compute(options: ExperimentOptions) -> Result:
    """Return how often the attacker is right at each epsilon, and how the others' incomes compare with the largest."""
    rng = np.random.default_rng(options.seed)
    incomes = rng.lognormal(0.0, 0.6, _RESIDENTS)
    others = incomes / (_RATIO * float(np.median(incomes)))  # as parts of the largest, which the noise must hide
    trials = 20_000 if options.small else 2_000_000
    attacks = [_attack(epsilon, trials, rng) for epsilon in options.track(EPSILONS)]
    return {
        "settings": {"seed": options.seed, "residents": _RESIDENTS, "ratio": _RATIO, "trials": trials},
        "attacks": attacks,
        "others": {"shares": list(_SHARES), "parts": rounded(np.quantile(others, share) for share in _SHARES)},
    }


def _attack(epsilon: float, trials: int, rng: np.random.Generator) -> dict[str, float]:
    """Simulate the attack from even odds: the mean is 0 without the rich person, 1 with them; noise of scale 1/epsilon.

    Units are those of the rich person's effect on the mean. The attacker either always guesses, or only where the mean
    is so high that it is e^epsilon times as likely with the person as without.
    """
    present = rng.random(trials) < 0.5
    mean: FloatArray = present + rng.laplace(0.0, 1 / epsilon, trials)
    guessed = mean > 0.5  # Bayes-optimal from even odds
    sure = mean > 1 + _TAIL / epsilon
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


def draw(result: Result, figure: Any) -> None:
    """Draw the attacker's success over epsilon."""
    axis = figure.subplots()
    grid = np.linspace(0.01, 10, 200)
    axis.plot(grid, 1 / (1 + np.exp(-grid)), color="black", label="the paper's bound 1/(1 + e^-epsilon)")
    axis.plot(grid, 1 - np.exp(-grid / 2) / 2, color="tab:blue", linestyle=":", label="best guess, exact")
    epsilons = [attack["epsilon"] for attack in result["attacks"]]
    for name, label, marker in (("when_sure", "when the mean is very high", "^"), ("optimal", "best guess", "o")):
        axis.plot(epsilons, [attack[name] for attack in result["attacks"]], marker, label=label)
    axis.set_xlabel("epsilon of the mechanism")
    axis.set_ylabel("probability that the attacker is right")
    axis.legend(fontsize=8)


def template_values(result: Result) -> dict[str, Any]:
    """Return the lines of the tables on the attack and on everyone else."""
    attacks = result["attacks"]
    attack_lines = [
        [
            f"{attack['epsilon']:g}",
            f"{attack['bound']:.4f}",
            f"{attack['when_sure']:.4f} ± {attack['when_sure_error']:.4f}",
            f"{attack['how_often_sure']:.3f}",
            f"{attack['optimal']:.4f}",
            f"{attack['optimal_exact']:.4f}",
        ]
        for attack in attacks
    ]
    parts = result["others"]["parts"]
    others_lines = [[f"{attack['epsilon']:g}", *(attack["epsilon"] * part for part in parts)] for attack in attacks]
    return {"attack_lines": attack_lines, "others_lines": others_lines}


def verdicts(result: Result) -> list[Verdict]:
    """Judge the bound on the attacker's success, and how much better the others are hidden."""
    attacks, median = result["attacks"], result["others"]["parts"][0]
    bounded = all(
        attack["optimal"] <= attack["bound"] and attack["when_sure"] <= attack["bound"] + 4 * attack["when_sure_error"]
        for attack in attacks
    )
    return [
        Verdict(
            says="An attacker who sees a mean released with a given epsilon is right with probability at most "
            "1/(1 + e^-epsilon).",
            as_published=None,
            accounted_right=bounded,
            why="The bound is reached when the mean is as high as it would be with the person, or higher; over all "
            "outcomes the best guess is right with probability 1 - e^(-epsilon/2)/2.",
        ),
        Verdict(
            says="The epsilon that hides the richest person hides everyone else far better.",
            as_published=None,
            accounted_right=median < 0.01,
            why=f"Half of the others have at most {median:.2g} times that epsilon, by construction: with noise and "
            "denominator fixed beforehand, epsilon is proportional to income, and the noise was set for an income of "
            f"{result['settings']['ratio']:g} times the median.",
        ),
    ]
