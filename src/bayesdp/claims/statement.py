"""Several claims as text, one per line and below them what they rest on, or as tables."""

from __future__ import annotations

from collections.abc import Iterable

from bayesdp.claims.claim import Claim
from bayesdp.claims.tables import html_table, markdown_table


def statement(claims: Iterable[Claim]) -> str:
    """Return claims in words: a numbered line for each, the worst case once, then what the lines rest on.

    Every sentence of the second part is printed once, with the numbers of the lines it applies to.
    """
    listed = with_worst_case(claims)
    rests_on: dict[str, list[str]] = {}
    for number, claim in enumerate(listed, start=1):
        for text in claim.rests_on():
            rests_on.setdefault(text, []).append(str(number))
    lines = [f"{number}. {claim.headline(with_kind=True)}" for number, claim in enumerate(listed, start=1)]
    reasons = (f"- {', '.join(numbers)}: {text}" for text, numbers in rests_on.items())
    return "\n".join([*lines, "", "What the lines above rest on, by number:", *reasons])


def to_markdown(claims: Iterable[Claim]) -> str:
    """Return claims as Markdown tables for a model card; the worst case appears once."""
    return "\n".join(markdown_table(claim.table_lines()) for claim in with_worst_case(claims))


def to_html(claims: Iterable[Claim]) -> str:
    """Return claims as HTML tables; the worst case appears once, and all text is escaped."""
    return "".join(html_table(claim.table_lines()) for claim in with_worst_case(claims))


def with_worst_case(claims: Iterable[Claim]) -> list[Claim]:
    """Return the claims in order, each followed by its worst case unless that was listed already."""
    listed: list[Claim] = []
    for claim in claims:
        for candidate in (claim, claim.worst_case):
            if candidate is not None and candidate not in listed:
                listed.append(candidate)
    return listed
