"""The scripts and the notebook in examples/ run as they are, and show what they promise."""

import ast
import json
import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a script in an empty folder; what it printed."""
    monkeypatch.chdir(tmp_path)

    def script(name):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return script


def test_every_script_is_listed_and_tested():
    scripts = {path.name for path in [*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb")]}
    assert scripts == set(re.findall(r"\]\((\w+\.(?:py|ipynb))\)", (EXAMPLES / "README.md").read_text()))
    assert all(f'"{name}"' in Path(__file__).read_text() for name in scripts)


def test_typical_epsilon(run, tmp_path):
    printed = run("typical_epsilon.py")
    assert printed.startswith("Trained: 60 steps on 1,297 rows, at delta = 1e-05 (1 in 100,000).")
    assert re.search(
        r"^Guarantee for everyone: epsilon at most [\d.]+ \(proved for the plan of 60 steps\)", printed, re.MULTILINE
    )
    everyone, half = map(float, re.search(r"For everyone: ([\d.]+)\. For half .*: ([\d.]+)\.$", printed).groups())
    assert 0 < half < 0.9 * everyone
    assert {path.name for path in tmp_path.iterdir()} == {"digits.ledger", "report.html"}


def cell_value(source, namespace):
    """Run a cell; the value of its last line if that is an expression, which a notebook would show."""
    lines = ast.parse(source).body
    last = lines.pop() if isinstance(lines[-1], ast.Expr) else None
    exec(compile(ast.Module(lines, []), "cell", "exec"), namespace)
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), namespace)


def test_the_notebook_shows_claims_and_ledger_as_tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((EXAMPLES / "typical_epsilon.ipynb").read_text())
    assert notebook["nbformat"] == 4
    cells = {cell["id"]: cell for cell in notebook["cells"]}
    assert len(cells) == len(notebook["cells"])
    namespace, shown = {}, {}
    for name, cell in cells.items():
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None  # noqa: PT018
            shown[name] = cell_value("".join(cell["source"]), namespace)
    everyone = namespace["claims"].everyone
    assert everyone.kind == "proved"
    assert shown["half"].epsilon < 0.9 * everyone.epsilon
    claims, half, ledger = (shown[name]._repr_html_() for name in ("claims", "half", "ledger"))
    assert claims.startswith("<table><tr><th>Guarantee for everyone</th><td>epsilon at most ")
    assert "<th>Estimated, not guaranteed</th>" in claims
    assert half.startswith("<table>")
    assert ledger.startswith("<table><tr><th>digits.ledger</th><td>60 steps, created ")
    assert "<td>500 audit records, norms at 60 steps</td>" in ledger
    assert {path.name for path in tmp_path.iterdir()} == {"digits.ledger", "report.html"}


def test_resume_training(run):
    with pytest.raises(SystemExit):
        run("resume_training.py")
    printed = run("resume_training.py")
    assert "Interrupted after 5 epochs, 30 steps in the ledger." in printed
    assert "10 epochs, 60 steps in the ledger." in printed


def test_stop_at_budget(run):
    printed = run("stop_at_budget.py")
    epsilon = float(re.search(r"Stopped after \d+ steps\. For everyone: epsilon = ([\d.]+) ", printed)[1])
    assert 1.8 < epsilon <= 2.0


@pytest.mark.parametrize(
    ("script", "library"),
    [("with_lightning.py", "lightning"), ("with_trainer.py", "transformers"), ("with_accelerate.py", "accelerate")],
)
def test_frameworks(run, tmp_path, script, library):
    pytest.importorskip(library, reason=f"{library} is not installed")
    printed = run(script)
    everyone = re.search(r"Guarantee for everyone: epsilon at most [\d.]+ \(proved for the plan of \d+ steps", printed)
    assert everyone, printed
    assert "people whose data was not used" in printed
    assert (tmp_path / "report.html").exists()
