"""Figures for other clip bounds: as a table in words, as a chart of the report, and as a page of its own."""

from __future__ import annotations

from typing import Any

from bayesdp.claims.clip_advice import NOTES, ClipAdvice, ClipBoundFigures, whole_percent
from bayesdp.formatting import percent, round_up
from bayesdp.report.single_file import Chart, render_page

_TITLE = "Epsilon by clip bound"


def clip_data(advice: ClipAdvice) -> dict[str, Any]:
    """Return what the chart draws, as plain values for JSON."""
    return {
        "bounds": [bound.factor if bound.clip is None else bound.clip for bound in advice.bounds],
        "factors": any(bound.clip is None for bound in advice.bounds),
        "now": next(number for number, bound in enumerate(advice.bounds) if bound.factor == 1),
        "everyone": advice.everyone,
        "shares": list(advice.shares),
        "estimates": [[bound.epsilons[number] for bound in advice.bounds] for number in range(len(advice.shares))],
    }


def clip_chart(advice: ClipAdvice) -> Chart:
    """Return the text around the chart and its figures; there must be some."""
    now = next(bound for bound in advice.bounds if bound.factor == 1)
    return Chart(
        "clip",
        _TITLE,
        "What typical people would have lost with another clip bound and noise in proportion to it, so that the "
        "guarantee for everyone is the same. " + " ".join(NOTES),
        f"Estimated epsilon by clip bound. For everyone {round_up(advice.everyone)} at all of them; for half "
        f"{round_up(now.epsilons[0])} at that of the run, {round_up(advice.bounds[-1].epsilons[0])} at the largest.",
        _heads(advice),
        [_line(bound, advice) for bound in advice.bounds],
    )


def clip_words(advice: ClipAdvice) -> str:
    """Return the advice as text: the sentence, a table, and what to know before using it; or why there is none."""
    if not advice.bounds:
        return f"No advice about the clip bound: {advice.reason}."
    lines = [_heads(advice), *(_line(bound, advice) for bound in advice.bounds)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    said = [advice.sentence, ""] if advice.sentence else []
    at = f"Epsilon at delta = {advice.delta:g}, about, at other clip bounds with the same noise multiplier:"
    return "\n".join([*said, at, *table, "", *NOTES])


def render_clip_page(advice: ClipAdvice, title: str) -> str:
    """Return a page with chart, table and notes as HTML. Raises MissingLibraryError if plotly or jinja2 is missing."""
    return render_page(
        "clip.html",
        {"clip": clip_data(advice) if advice.bounds else None},
        title=title,
        advice=advice,
        delta=f"{advice.delta:g}",
        chart=clip_chart(advice) if advice.bounds else None,
        notes=NOTES,
    )


def _heads(advice: ClipAdvice) -> list[str]:
    whom = ["half" if share == 0.5 else percent(share) for share in advice.shares]
    return ["clip bound", "clipped", *(f"{name} of people" for name in whom), "everyone"]


def _line(bound: ClipBoundFigures, advice: ClipAdvice) -> list[str]:
    name = f"{bound.factor:g} times" if bound.clip is None else f"{bound.clip:g}"
    now = " (this run)" if bound.factor == 1 else ""
    figures = [round_up(epsilon) for epsilon in (*bound.epsilons, advice.everyone)]
    return [name + now, whole_percent(bound.clipped), *figures]
