"""Tables in Markdown and HTML from lines of (name, value)."""

from __future__ import annotations

import html
from collections.abc import Sequence

Lines = Sequence[tuple[str, str]]


def markdown_table(lines: Lines) -> str:
    """Return a Markdown table with the first line as its head, the value in bold; special characters are escaped."""
    (whom, figure), *others = [(_plain(name), _plain(value)) for name, value in lines]
    table = [f"| {whom} | **{figure}** |", "|---|---|", *(f"| {name} | {value} |" for name, value in others)]
    return "\n".join(table) + "\n"


def html_table(lines: Lines) -> str:
    """Return an HTML table; all text is escaped."""
    cells = (f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in lines)
    return f"<table>{''.join(cells)}</table>"


def _plain(text: str) -> str:
    """Escape text so that a Markdown table shows it literally and no character ends a cell."""
    text = " ".join(text.split())
    for special in "\\`*_{}[]|#!~":
        text = text.replace(special, "\\" + special)
    return html.escape(text, quote=False)
