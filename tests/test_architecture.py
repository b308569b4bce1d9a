"""The import graph is the one that docs/architecture.md draws, without cycles; no file is too long."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

from import_graph import SOURCE, cycle, graph, modules, room

ROOT = Path(__file__).parents[1]
LONGEST = 350
AT_THE_TOP = {"claim", "__main__", "bayesdp"}
"""Modules that stand in no table: an alias, and two entries to the package."""


def documented():
    """What each room and each tool may import, by the tables of the page."""
    allowed, tools = {}, set()
    for name, imports in re.findall(r"^\| `(\w+)(?:\.py|/)` \|[^|]*\|([^|]*)\|$", PAGE, flags=re.MULTILINE):
        allowed[name] = {word.strip() for word in imports.split(",") if word.strip()}
    for name in re.findall(r"^\| `(\w+)\.py` \|", PAGE.split("The tools at the top")[1], flags=re.MULTILINE):
        tools.add(name)
    return allowed, tools


PAGE = (ROOT / "docs" / "architecture.md").read_text()
ALLOWED, TOOLS = documented()


def used():
    """What each room does import."""
    rooms = defaultdict(set)
    for module, imported in graph().items():
        rooms[room(module)] |= {room(name) for name in imported} - {room(module)}
    return rooms


def test_no_module_imports_itself_in_a_circle():
    assert cycle(graph()) == []


def test_a_circle_would_be_found():
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_the_page_names_every_room():
    assert {room(module) for module in modules()} - AT_THE_TOP == set(ALLOWED)
    assert set(ALLOWED) > TOOLS


@pytest.mark.parametrize("name", sorted(ALLOWED))
def test_rooms_import_what_the_page_allows(name):
    imports = used()[name] - (set() if name in TOOLS else TOOLS)
    assert imports == ALLOWED[name]


@pytest.mark.parametrize("name", ["ledger", "mechanisms"])
def test_storage_and_mechanisms_know_nothing_downstream(name):
    assert used()[name] <= {"mechanisms", *TOOLS}


def test_no_file_is_long():
    files = [*SOURCE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert {name: count for name, count in lines.items() if count > LONGEST} == {}


def test_files_of_one_name_play_one_role():
    """A name may come twice only where the role is the same: the entry of a package, the same part of two adapters."""
    places = defaultdict(list)
    for module, path in modules().items():
        another_adapter = module.startswith("bayesdp.jax_privacy.") and f"bayesdp.opacus.{path.stem}" in modules()
        if path.name not in ("__init__.py", "__main__.py") and not another_adapter:
            places[path.name].append(module)
    assert {name: found for name, found in places.items() if len(found) > 1} == {
        "claim.py": ["bayesdp.claim", "bayesdp.claims.claim"],  # the alias
    }
