"""The page of the documentation that tells the story: from the results, never typed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from bayesdp.reproduce.experiment import MARKS, Found, table
from bayesdp.reproduce.targets import TARGETS, experiment

_HEAD = """# The paper, reproduced

Every experiment of *Bayesian Differential Privacy for Machine Learning* (Triastcyn & Faltings, ICML 2020), computed
again: what was printed, what the authors' procedure gives here ("as published", which is [not a bound](theory.md)), and
what changes when the accounting is right. This page is written by a program from `results/reproduction/`, which

    bayesdp reproduce all -o results/reproduction

writes, and `python docs/reproduction.py` then writes the page and its pictures. Times are those of the last run; a
network that an earlier one has kept is not trained again.

## What holds, what does not, and why

*As published*: whether it holds for what the authors' procedure gives here. *Accounted right*: whether it holds when
the theorem is used where it covers the mechanism (what one record adds, every order charged), or needs no theorem.
Student's t, where the theorem is used, stays a model and no bound. *Open*: not computed, or no bound was found that
would tell."""
_WORDS = {**MARKS, False: f"**{MARKS[False]}**"}


def read(folder: Path) -> dict[str, Found]:
    """The results that are there, in their order."""
    paths = {target: folder / f"{target}.json" for target in TARGETS}
    return {target: json.loads(path.read_text()) for target, path in paths.items() if path.exists()}


def page(results: Mapping[str, Found]) -> str:
    """In Markdown."""
    parts = [_HEAD, _verdicts(results)]
    for target, found in results.items():
        module = experiment(target)
        versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
        parts += [
            f"## {module.TITLE}",
            f"![{module.TITLE}](pictures/reproduction-{target}.png)",
            module.story(found),
            f"`bayesdp reproduce {target}{_seed(found)}`: {found['seconds']:g} s; {versions}.",
        ]
    return "\n\n".join(parts) + "\n"


def _seed(found: Found) -> str:
    """As an option, if there is chance in it."""
    return f" --seed {found['settings']['seed']}" if "seed" in found["settings"] else ""


def _verdicts(results: Mapping[str, Found]) -> str:
    verdicts = [one for target, found in results.items() for one in experiment(target).verdicts(found)]
    rows = [[one.says, _WORDS[one.as_published], _WORDS[one.accounted_right], one.why] for one in verdicts]
    return table(["the paper says", "as published", "accounted right", "why"], rows)
