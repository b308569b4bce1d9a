"""A page that says what is claimed: one file, no scripts, nothing from elsewhere."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path

from bayesdp.claim import Claim, to_html
from bayesdp.whole_file import write_text

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem }}
table {{ border-collapse: collapse; margin: 0 0 1.5rem; width: 100% }}
th, td {{ text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid #ccc }}
th {{ width: 16rem; font-weight: 600 }}
</style>
</head>
<body>
<h1>{title}</h1>
{notes}
{claims}
</body>
</html>
"""


def write_report(path: Path, title: str, notes: Sequence[str], claims: Iterable[Claim]) -> None:
    """Write the page; all text is escaped."""
    lines = "\n".join(f"<p>{html.escape(note)}</p>" for note in notes)
    write_text(path, _PAGE.format(title=html.escape(title), notes=lines, claims=to_html(claims)))
