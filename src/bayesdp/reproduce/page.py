"""The page of the documentation that tells the story: from the results, never typed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from bayesdp.reproduce.experiment import Found
from bayesdp.reproduce.run import TARGETS, experiment

_HEAD = """# The paper, reproduced

Every experiment of *Bayesian Differential Privacy for Machine Learning* (Triastcyn & Faltings, ICML 2020), computed
again: what was printed, what the authors' procedure gives here ("as published", which is [not a bound](theory.md)), and
what changes when the accounting is right. This page is written by a program from `results/reproduction/`, which

    bayesdp reproduce all -o results/reproduction

writes, and `python docs/reproduction.py` then writes the page and its pictures."""


def read(folder: Path) -> dict[str, Found]:
    """The results that are there, in their order."""
    paths = {target: folder / f"{target}.json" for target in TARGETS}
    return {target: json.loads(path.read_text()) for target, path in paths.items() if path.exists()}


def page(results: Mapping[str, Found]) -> str:
    """In Markdown."""
    parts = [_HEAD]
    for target, found in results.items():
        module = experiment(target)
        versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
        parts += [
            f"## {module.TITLE}",
            f"![{module.TITLE}](pictures/reproduction-{target}.png)",
            module.story(found),
            f"`bayesdp reproduce {target}`: {found['seconds']:g} s; {versions}.",
        ]
    return "\n\n".join(parts) + "\n"
