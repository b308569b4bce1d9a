"""Every Python block of README and docs runs; every command shown prints what is shown."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BIN = Path(sys.executable).parent


def blocks(path, language):
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), flags=re.DOTALL | re.MULTILINE)


WITH_PYTHON = [p for p in DOCUMENTS if blocks(p, "python")]
COMMANDS = [
    (path.name, command, output)
    for path in DOCUMENTS
    for block in blocks(path, "console")
    for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, flags=re.MULTILINE)
]


def test_there_is_something_to_run():
    assert {p.name for p in WITH_PYTHON} >= {"README.md", "tutorial.md", "sharp-edges.md", "extending.md"}
    assert COMMANDS


STATEMENT = (
    "1. For everyone: epsilon = ",
    "For at least 99 % of people like those in the audit set, with 99 % confidence: ",
)
PRINTS = {
    "README.md": (*STATEMENT, "digits.ledger", "report.html"),
    "opacus.md": (*STATEMENT, "digits.ledger"),
}
"""What the first block of a document prints, and the files that it leaves: whoever follows it gets the statement."""


@pytest.mark.filterwarnings("ignore::bayesdp.LastLambdaWarning", "ignore:The declared budget allows no further step")
@pytest.mark.parametrize("path", WITH_PYTHON, ids=lambda p: p.name)
def test_python_blocks_run(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    for number, block in enumerate(blocks(path, "python")):
        exec(compile(block, path.name, "exec"), namespace)
        if number == 0:
            printed, left = capsys.readouterr().out, {one.name for one in tmp_path.iterdir()}
            for wanted in PRINTS.get(path.name, ()):
                assert wanted in printed or wanted in left


@pytest.mark.parametrize(("document", "command", "output"), COMMANDS)
def test_commands_print_what_is_shown(document, command, output, tmp_path):
    program, *arguments = shlex.split(command)
    result = subprocess.run([BIN / program, *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stdout == output


def test_the_table_of_modes_names_tests_that_exist():
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", (ROOT / "docs" / "opacus.md").read_text())
    assert len(named) > 25
    for file, test in named:
        assert f"\ndef {test}(" in (ROOT / "tests" / "with_opacus" / file).read_text(), test


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_to_files_exist(path):
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_the_table_of_recipes_is_that_of_the_results(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.recipes import MARKS, table

    results = json.loads((ROOT / "results" / "recipes.json").read_text())["results"]
    assert f"{MARKS[0]}\n{table(results)}\n{MARKS[1]}" in (ROOT / "README.md").read_text()
    assert all(one["met"] for one in results)
