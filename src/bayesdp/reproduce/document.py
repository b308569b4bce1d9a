"""The documentation page on the paper's experiments: templates filled in with results, so no figure is typed by hand.

``templates/TARGET.md`` has the words on one experiment, ``templates/page.md`` the frame around all of them. Templates
see the result, the values that the experiment's module derives from it, and the function ``table``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesdp.optional import needs
from bayesdp.reproduce.experiment import MARKS, Result
from bayesdp.reproduce.targets import TARGETS, experiment

_MARKS = {**MARKS, False: f"**{MARKS[False]}**"}


def read(folder: Path) -> dict[str, Result]:
    """Return the full results that a folder holds, by target and in the order of ``TARGETS``; trials are left out."""
    paths = {target: folder / f"{target}.json" for target in TARGETS}
    return {target: json.loads(path.read_text()) for target, path in paths.items() if path.exists()}


def page(results: Mapping[str, Result]) -> str:
    """Return the page in Markdown: all verdicts in one table, then a section for each result.

    Verdicts are judged afresh from the figures, so the page never repeats what an older version said of them. Raises
    MissingLibraryError if Jinja is missing.
    """
    verdicts = [verdict for target, result in results.items() for verdict in experiment(target).verdicts(result)]
    verdict_lines = [
        [verdict.says, _MARKS[verdict.as_published], _MARKS[verdict.accounted_right], verdict.why]
        for verdict in verdicts
    ]
    sections = [_section(target, result) for target, result in results.items()]
    return _render("page.md", verdict_lines=verdict_lines, sections=sections).rstrip() + "\n"


def story(target: str, result: Result) -> str:
    """Return what one experiment shows, in Markdown. Raises MissingLibraryError if Jinja is missing."""
    return _render(f"{target}.md", result=result, **experiment(target).template_values(result))


def _section(target: str, result: Result) -> dict[str, Any]:
    seed = f" --seed {result['settings']['seed']}" if "seed" in result["settings"] else ""  # if there is chance in it
    return {
        "target": target,
        "title": experiment(target).TITLE,
        "story": story(target, result),
        "command": f"bayesdp reproduce {target}{seed}",
        "seconds": result["seconds"],
        "versions": ", ".join(f"{name} {version}" for name, version in result["versions"].items()),
    }


def table(heads: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """Return a table in Markdown; floats are written with three significant digits, None as "none"."""
    rules = "|" + "---|" * len(heads)
    cells = [" | ".join(_cell(value) for value in line) for line in lines]
    return "\n".join(["| " + " | ".join(heads) + " |", rules, *(f"| {line} |" for line in cells)])


def _cell(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _render(template: str, **values: Any) -> str:
    with needs("demo", "the page on the paper's experiments"):
        import jinja2
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("bayesdp.reproduce"),
        undefined=jinja2.StrictUndefined,  # a value that is missing must not become an empty word
        autoescape=False,  # Markdown of our own, in which < and & are meant as they are
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(table=table, **values)
