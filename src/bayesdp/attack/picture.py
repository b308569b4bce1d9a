"""Pictures of what an attack found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bayesdp.attack.finding import Detection, Finding, Ranking

_LEAST, _MOST = 1e-3, 1e6  # of claim over bound, that are drawn


def draw_findings(axis: Any, findings: Sequence[Finding]) -> None:
    """Draw each claim as a point on a scale on which its lower bound is 1: right of the line it stands."""
    shown = [finding for finding in findings if finding.bound > 0]
    ratios = [min(max(finding.claimed / finding.bound, _LEAST), _MOST) for finding in shown]
    colours = ["tab:orange" if finding.should_break else "tab:blue" for finding in shown]
    axis.hlines(range(len(shown)), 1.0, ratios, colors=colours, linewidth=1)
    axis.scatter(ratios, range(len(shown)), c=colours, s=14)
    axis.axvline(1.0, color="black", linewidth=1)
    axis.set_xscale("log")
    axis.set_xlabel("claim divided by the best lower bound (log scale); left of 1 it is broken; orange: it must break")
    _labels(axis, [f"{finding.subject[:60]}: {finding.claim}" for finding in shown])


def draw_detections(axis: Any, detections: Sequence[Detection]) -> None:
    """Draw how probably each bug is caught, and how probable a false alarm is, each with its 95 % interval."""
    places = range(len(detections))
    for colour, intervals in (
        ("tab:blue", [detection.power for detection in detections]),
        ("tab:orange", [detection.false_alarm_rate for detection in detections]),
    ):
        axis.hlines(places, *zip(*intervals, strict=True), colors=colour, linewidth=3)
    axis.set_xlim(0.0, 1.0)
    axis.set_xlabel("probability of an alarm: blue on the broken copy, orange on the right one (95 % intervals)")
    _labels(axis, [detection.bug for detection in detections])


def draw_rankings(axis: Any, rankings: Sequence[Ranking]) -> None:
    """Draw each rank correlation with its interval."""
    places = range(len(rankings))
    axis.hlines(places, [ranking.low for ranking in rankings], [ranking.high for ranking in rankings], linewidth=1)
    axis.scatter([ranking.correlation for ranking in rankings], places, s=14)
    axis.set_xlim(-1.0, 1.0)
    axis.set_xlabel("rank correlation of claimed epsilon and the attacker's success (95 % intervals)")
    _labels(axis, [f"{ranking.figure}, {ranking.subject}: {ranking.attacker}" for ranking in rankings])


def _labels(axis: Any, labels: Sequence[str]) -> None:
    axis.set_yticks(list(range(len(labels))), labels, fontsize=4 if len(labels) > 25 else 7)
