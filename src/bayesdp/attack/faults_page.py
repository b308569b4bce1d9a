"""The table of faults in docs/attack.md: random calls and faults of the machine, from the JSON of two benchmarks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- faults: python docs/attack.py -->", "<!-- end of faults -->"
"""Between these lines of the page stands the table."""


def page_with_faults(page: str, folder: Path) -> str:
    """Return the page with its table written anew from ``folder``, which has fuzz.json and faults_under_load.json.

    Raises ValueError if the page has no place for it.
    """
    before, rest = page.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    return f"{before}{BEGIN}\n\n{faults_table(folder)}\n{END}{after}"


def faults_table(folder: Path) -> str:
    """Return a line for each kind of fault: what was done, how much of it, and how often something went wrong."""
    lines = ["| what | how much | findings |", "| --- | --- | --- |"]
    if (folder / "fuzz.json").is_file():
        lines.append(_fuzz(json.loads((folder / "fuzz.json").read_text())))
    if (folder / "faults_under_load.json").is_file():
        lines += _faults(json.loads((folder / "faults_under_load.json").read_text()))
    return "\n".join(lines) + "\n"


def _fuzz(result: dict[str, Any]) -> str:
    outcomes = {"value": 0, "refused": 0, "identical": 0}
    for counts in result["by_kind"].values():
        for outcome in outcomes:
            outcomes[outcome] += counts.get(outcome, 0)
    how = (
        f"{result['cases']:,} calls of {len(result['by_kind'])} kinds, seed {result['seed']}: "
        f"{outcomes['value'] + outcomes['identical']:,} values that keep their contract, {outcomes['refused']:,} "
        "refusals in one line"
    )
    return _line("random arguments, files and commands", how, len(result["findings"]))


def _faults(result: dict[str, Any]) -> list[str]:
    found = {name: result[name]["found"] for name in ("long", "kills", "disk", "clock", "memory")}
    settings, kills, memory = result["settings"], found["kills"], found["memory"]
    failed = sum(count for what, count in memory["happened"].items() if what != "nothing")
    words = {
        "long": (
            "one long run",
            f"{settings['steps']:,} steps; {found['long']['bytes_per_step']:.0f} bytes of file and "
            f"{found['long']['memory_per_step']:.0f} of memory for each",
        ),
        "kills": (
            "writers that are killed at any instant and started again",
            f"{kills['kills']} kills of {settings['writers']} writers on as many ledgers, "
            f"{kills['steps released']:,} steps released, {kills['steps recorded but not released']:,} more recorded",
        ),
        "disk": (
            "a disk that is full in the middle of a fold",
            f"{found['disk'][-1]['folds_that_failed']} folds that failed, {found['disk'][-1]['steps']:,} steps",
        ),
        "clock": ("a clock that goes back and forth by up to a century", f"{found['clock']['steps']:,} steps"),
        "memory": (
            "no memory in the middle of steps, folds and claims",
            f"{failed:,} calls that failed, {memory['steps']:,} steps",
        ),
    }
    return [_line(*words[name], len(result[name]["failures"])) for name in words]


def _line(what: str, how_much: str, findings: int) -> str:
    return f"| {what} | {how_much} | {findings or 'none'} |"
