"""Pages that load nothing else: template, style, scripts and data in one HTML file.

Everything that may come from a user is text: Jinja escapes it, and scripts read it from JSON in which no tag can begin.
The Content-Security-Policy allows only the two scripts on the page to run, identified by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from bayesdp.optional import needs


@dataclass(frozen=True)
class Chart:
    """The text around a chart, and its figures as a table."""

    name: str
    "By which the script finds it."
    title: str
    text: str
    alt: str
    "A description for those who cannot see the chart."
    heads: list[str]
    lines: list[list[str]]


def check_libraries() -> None:
    """Raise MissingLibraryError if a library that a page needs is missing."""
    with needs("report", "the report"):
        import jinja2  # noqa: F401  # pyright: ignore[reportUnusedImport]
        import plotly  # noqa: F401  # pyright: ignore[reportUnusedImport]


def render_page(template: str, data: dict[str, Any], **values: Any) -> str:
    """Return a template of this folder as HTML, with ``data`` for its charts and ``values`` for its text.

    Raises MissingLibraryError if plotly or jinja2 is missing.
    """
    check_libraries()
    import jinja2
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    plotly, script = get_plotlyjs(), _file("page.js")
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {_hash(plotly)} {_hash(script)}",
            "style-src 'unsafe-inline'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(_file(template)).render(
        policy=policy,
        style=Markup(_file("page.css")),
        data=Markup(_json(data)),
        plotly=Markup(plotly),
        script=Markup(script),
        **values,
    )


def _file(name: str) -> str:
    return (resources.files("bayesdp.report") / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _json(data: dict[str, Any]) -> str:
    """Return JSON in which no HTML tag can begin or end."""
    text = json.dumps(data, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
