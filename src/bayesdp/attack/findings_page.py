"""The tables of docs/attack.md, from the JSON files that `bayesdp attack` writes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bayesdp.attack.finding import BETWEEN
from bayesdp.attack.lab import ATTACKS
from bayesdp.formatting import round_up

BEGIN, END = "<!-- tables: python docs/attack.py -->", "<!-- end of tables -->"
"""Between these lines of the page stand the tables."""


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the results of the attacks of which there is a file in ``folder``, in the order of the lab."""
    paths = {name: folder / f"{name}.json" for name in ATTACKS}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.is_file()}


def page_with_tables(page: str, results: dict[str, dict[str, Any]]) -> str:
    """Return the page with its tables written anew. Raises ValueError if the page has no place for them."""
    before, rest = page.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    return f"{before}{BEGIN}\n\n{tables(results)}\n{END}{after}"


def tables(results: dict[str, dict[str, Any]]) -> str:
    """Return one section for each attack: claims, planted bugs, rankings, and the command that found them."""
    parts: list[str] = []
    for name, result in results.items():
        parts += [f"### {name}", "", f"`{result['command']}`", ""]
        if result["findings"]:
            findings = result["findings"]
            head = ("subject", "claim", "kind", "claimed", "lower bound", "attacker", "verdict")
            lines = [_finding(finding) for finding in findings]
            if all(finding["note"].startswith(BETWEEN) for finding in findings):  # what is of interest in tightness
                head = (*head, BETWEEN.rstrip(": "))
                lines = [
                    (*line, finding["note"].removeprefix(BETWEEN))
                    for line, finding in zip(lines, findings, strict=True)
                ]
            parts += [*_table(head, lines), ""]
        if result["detections"]:
            head = ("planted bug", "attacker", "caught", "false alarms")
            parts += [*_table(head, (_detection(detection) for detection in result["detections"])), ""]
        if result["rankings"]:
            head = ("claimed epsilon", "of", "attacker", "rank correlation", "95 % interval", "verdict")
            parts += [*_table(head, (_ranking(ranking) for ranking in result["rankings"])), ""]
    return "\n".join(parts) if parts else "No results yet.\n"


def _finding(finding: dict[str, Any]) -> tuple[str, ...]:
    verdict = ("stands" if finding["stands"] else "broken") + (", as it must" if finding["should_break"] else "")
    sure = "" if finding["confidence"] == 1 else f" ({finding['confidence']:.4g} confidence)"
    return (
        finding["subject"],
        finding["claim"],
        finding["kind"],
        f"{finding['unit']} {round_up(finding['claimed'])}",
        f"{finding['bound']:.3g}",
        finding["attacker"] + sure,
        verdict if finding["as_expected"] else f"**{verdict}: not as expected**",
    )


def _detection(detection: dict[str, Any]) -> tuple[str, ...]:
    return (
        detection["bug"],
        detection["attacker"],
        f"{detection['caught']} of {detection['trials']}",
        _right(detection),
    )


def _right(detection: dict[str, Any]) -> str:
    if detection["exact"]:
        stood = detection["right_trials"] - detection["false_alarms"]
        return f"exact: none is possible; {stood} of {detection['right_trials']} right copies stood"
    return (
        f"{detection['false_alarms']} of {detection['right_trials']}, at most {detection['false_alarm_rate'][1]:.2g} "
        f"(stated: {detection['level']:g})"
    )


def _ranking(ranking: dict[str, Any]) -> tuple[str, ...]:
    return (
        ranking["figure"],
        f"{ranking['records']} {ranking['subject']}",
        ranking["attacker"],
        f"{ranking['correlation']:.2f}",
        f"{ranking['low']:.2f} to {ranking['high']:.2f}",
        "agrees" if ranking["agrees"] else "unclear" if ranking["as_expected"] else "**unclear: not as expected**",
    )


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    rows = [head, ["---"] * len(head), *lines]
    return ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows]
