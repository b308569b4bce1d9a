"""Every Python block of README and docs runs; every command shown prints what is shown."""

import json
import re
import shlex
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from bayesdp import Gate, Ledger, RunClaims
from bayesdp.estimators import records_needed
from bayesdp.formatting import round_up
from bayesdp.properties import attack_success
from command_line import run

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


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


def python_blocks(path):
    """Every Python block, with the text block that follows it directly: what it prints; None without one."""
    pattern = r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?"
    found = re.findall(pattern, path.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [(block, shown or None) for block, shown in found]


STATEMENT = (
    "Guarantee for everyone: epsilon at most ",
    "This run, people whose data was not used: of people like the 500 in the audit set, at least half have epsilon ",
)
PRINTS = {
    "README.md": (*STATEMENT, "digits.ledger", "report.html"),
    "opacus.md": (*STATEMENT, "digits.ledger"),
    "jax-privacy.md": (*STATEMENT, "run.ledger", "epochs.ledger"),
}
"""What the blocks of a document print, and the files that they leave: whoever follows it gets the statement."""
NEEDS = {"jax-privacy.md": ("jax_privacy", "make test-engines"), "flower.md": ("flwr", "make test-flower")}
"""Libraries that the blocks of a document need and `make test` does not install, and the command that runs them."""


@pytest.mark.filterwarnings("ignore::bayesdp.LastLambdaWarning", "ignore:The declared budget allows no further step")
@pytest.mark.parametrize("path", WITH_PYTHON, ids=lambda p: p.name)
def test_python_blocks_run(path, tmp_path, monkeypatch, capsys):
    library, command = NEEDS.get(path.name, (None, None))
    if library is not None and find_spec(library) is None:
        pytest.skip(f"{library} is not installed here; {command} runs this page")
    monkeypatch.chdir(tmp_path)
    if find_spec("opacus") is not None:  # its accountants ask for the same figures after every epoch
        from opacus.accountants.analysis import rdp

        monkeypatch.setattr(rdp, "_compute_rdp", cache(rdp._compute_rdp))
    namespace = {}
    everything = ""
    for block, shown in python_blocks(path):
        exec(compile(block, path.name, "exec"), namespace)
        printed = capsys.readouterr().out
        everything += printed
        assert shown is None or shown.split() == printed.split()  # long lines are wrapped on the page
    left = {file.name for file in tmp_path.iterdir()}
    for wanted in PRINTS.get(path.name, ()):
        assert wanted in everything or wanted in left


def test_the_first_lines_of_the_readme_show_a_typical_figure_below_the_worst_case():
    _, shown = python_blocks(ROOT / "README.md")[0]
    said = " ".join(shown.split())
    everyone, half = (
        float(re.search(rf"{words} ([\d.]+)", said)[1])
        for words in ("everyone: epsilon at most", "half have epsilon at most")
    )
    assert half < everyone / 2


def test_the_readme_compares_guessing_with_what_epsilon_alone_would_give():
    _, shown = python_blocks(ROOT / "README.md")[0]
    epsilon, often = re.search(
        r"epsilon at most ([\d.]+) .*?right at most (\d+) times", " ".join(shown.split())
    ).groups()
    alone = round(100 * attack_success(float(epsilon)))
    sentence = (
        f'("Right at most {often} times in 100" comes from the whole curve of epsilon against delta; this epsilon'
    )
    assert f"{sentence} alone would only give {alone}.)" in (ROOT / "README.md").read_text()


def test_the_readme_says_how_many_audit_records_shares_need():
    least, ninety, most = (records_needed(share, 0.01) for share in (0.5, 0.9, 0.99))
    sentence = f"at least {least} for half, {ninety} for 90 % and {most} for 99 % of people"
    assert sentence in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(("document", "command", "output"), COMMANDS)
def test_commands_print_what_is_shown(document, command, output, tmp_path):
    program, *arguments = shlex.split(command)
    assert program == "bayesdp"
    result = run(*arguments, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout == output


@pytest.mark.parametrize(
    ("documents", "folder"),
    [(("opacus.md", "distributed.md"), "with_opacus"), (("jax-privacy.md",), "with_jax_privacy")],
)
def test_the_table_of_modes_names_tests_that_exist(documents, folder):
    pages = [(ROOT / "docs" / name).read_text() for name in documents]
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", "".join(pages))
    assert len(named) > 25
    for file, test in named:
        assert f"\ndef {test}(" in (ROOT / "tests" / folder / file).read_text(), test


def test_the_page_on_flower_says_how_many_audit_clients_shares_need():
    least, ninety, most = (records_needed(share, 0.01) for share in (0.5, 0.9, 0.99))
    sentence = f"half of all clients needs {least} of them, about 90 % needs {ninety}, and about 99 % needs {most}"
    assert sentence in (ROOT / "docs" / "flower.md").read_text()


def test_the_page_on_flower_has_the_figures_of_the_kills():
    page = " ".join((ROOT / "docs" / "flower.md").read_text().split())
    result = json.loads((ROOT / "results" / "flower_process_kills.json").read_text())
    settings, epsilon, kills = result["settings"], result["epsilon"], len(result["kills"])
    processes = f"a SuperLink and {settings['clients']} SuperNodes: {kills} kills in {settings['rounds']} rounds, "
    missing = f"{result['applied_rounds_missing']} applied rounds missing from the ledger, "
    assert f"{processes}{missing}and epsilon {round_up(epsilon['ledger'], 4)} at the end" in page
    assert kills == settings["kills"] == 20
    assert result["end"]["steps"] == settings["rounds"]
    assert all(kill["steps"] >= kill["models_seen"] for kill in result["kills"])
    assert 0 <= epsilon["ledger"] / epsilon["dp_accounting"] - 1 < 1e-6


@pytest.mark.parametrize("name", ["engines", "engine_flower"])
def test_everything_passed_where_an_engine_has_its_own_environment(name):
    result = json.loads((ROOT / "results" / f"{name}.json").read_text())
    assert result["failed"] == []
    assert result["passed"] > 90
    assert all(reason.startswith("this version of JAX Privacy") for reason in result["skipped"].values())


def test_the_table_of_flower_names_tests_that_exist():
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", (ROOT / "docs" / "flower.md").read_text())
    assert len(named) > 8
    for file, test in named:
        assert f"\ndef {test}(" in (ROOT / "tests" / "with_flower" / file).read_text(), test


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_to_files_exist(path):
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_the_table_of_recipes_is_that_of_the_results(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.recipes import MARKS, table

    results = json.loads((ROOT / "results" / "recipes.json").read_text())["results"]
    assert f"{MARKS[0]}\n{table(results)}\n{MARKS[1]}" in (ROOT / "README.md").read_text()
    assert all(result["met"] for result in results)


def test_the_table_of_aims_is_that_of_the_results(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.recipe_aims import MARKS, table

    results = json.loads((ROOT / "results" / "recipe_aims.json").read_text())["results"]
    assert f"{MARKS[0]}\n{table(results)}\n{MARKS[1]}" in (ROOT / "docs" / "recipes.md").read_text()
    assert all(all(result["met"]) for result in results)


def test_the_table_of_networks_is_that_of_the_results(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.networks import MARKS, table

    results = json.loads((ROOT / "results" / "networks.json").read_text())["results"]
    assert f"{MARKS[0]}\n{table(results)}\n{MARKS[1]}" in (ROOT / "docs" / "recipes.md").read_text()
    assert all(result["met"] for result in results)


def test_the_table_of_sentences_is_that_of_the_results(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.sst2 import MARKS, table

    results = json.loads((ROOT / "results" / "sst2.json").read_text())["results"]
    assert f"{MARKS[0]}\n{table(results)}\n{MARKS[1]}" in (ROOT / "docs" / "recipes.md").read_text()
    assert results["probe"]["met"]
    assert results["lora"]["met"]


def test_the_page_explains_every_line_of_the_statement():
    gate = Gate(epsilon=1.0, delta=1e-5, share=0.99, gamma=0.01, records=500)
    ledger = Ledger(gate=gate)
    ledger.step(noise_std=0.1, sample_rate=1.0, clip=1.0, audit=[1.1] * 500)
    labels = dict.fromkeys(label for label, _ in ledger.claims(rows=2).overview().lines())
    section = (ROOT / "docs" / "claims.md").read_text().split("## The statement")[1]
    explained = re.findall(r"^\| ([^|]+) \| ", section.split("\n\n`claims")[0], flags=re.MULTILINE)
    assert explained == ["line", *labels]


def test_every_leaf_of_the_decision_tree_exists():
    tree = (ROOT / "docs" / "which-claim.md").read_text().split("```python")[0]
    names = set(re.findall(r"\.{2,}  \.(\w+)", tree))
    assert len(names) > 8
    assert names <= set(RunClaims.__annotations__) | {"share"}
    commands = set(re.findall(r"`?bayesdp (\w+)", tree))
    assert {"calibrate", "epsilon", "claims", "account", "compose"} <= commands
    for command in commands:
        assert run(command, "--help").returncode == 0


def test_ten_questions_have_three_sentences_each():
    page = (ROOT / "docs" / "questions.md").read_text().split("```python")[0]
    answers = re.split(r"^## \d+\. .*$", page, flags=re.MULTILINE)[1:]
    assert len(answers) == 10
    for answer in answers:
        assert len(re.findall(r"[.!?](?=\s+[A-Z\[`]|\s+bayesdp|\s*$)", answer.strip())) == 3, answer
