"""The scripts and the notebook in examples/ run as they are, and show what they promise."""

import ast
import json
import os
import re
import runpy
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bayesdp import Ledger
from bayesdp.recipes import load
from recipe_data import write_sst2
from tiny_transformer import phrases, write_transformer
from warm_programs import Program

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a script in an empty folder; what it printed."""
    monkeypatch.chdir(tmp_path)

    def script(name):
        monkeypatch.syspath_prepend(EXAMPLES)  # as for a script that is run
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return script


def test_every_script_is_listed_and_tested():
    scripts = {path.name for path in [*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb")]}
    assert scripts == set(re.findall(r"\]\((\w+\.(?:py|ipynb))\)", (EXAMPLES / "README.md").read_text()))
    assert all(f'"{name}"' in Path(__file__).read_text() for name in scripts)


def test_typical_epsilon(run, tmp_path):
    printed = run("typical_epsilon.py")
    assert printed.startswith("Trained: 60 steps on 1,297 rows, at delta = 1e-05 (1 in 100,000) for each figure.")
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


def test_lora_sst2(run, tmp_path, monkeypatch):
    for library in ("transformers", "peft"):
        pytest.importorskip(library, reason="the extra transformers is not installed")
    write_transformer(tmp_path / "model")
    write_sst2(tmp_path / "data", phrases(1000), phrases(60, seed=1))
    options = {"data": tmp_path / "data", "model": tmp_path / "model", "output": tmp_path / "out"}
    settings = {"sentences": 64, "layers": 2, "rank": 2, "steps": 5, "batch": 100, "epsilon": 3, "seed": 0, "words": 4}
    texts = load("sst2", tmp_path / "data")
    trained, audited = (sum(len(text.split()) >= 4 for text in part.x) for part in (texts.development, texts.audit))
    arguments = [f"--{name}={value}" for name, value in {**options, **settings}.items()]
    monkeypatch.setattr(sys, "argv", ["lora_sst2.py", *arguments])
    printed = run("lora_sst2.py")
    assert re.match(r"[\d.]+% of 60 test rows correct\.\n", printed)
    assert "NOT FOR RELEASE: the random noise that hides people came from a given number, the seed." in printed
    assert f"Trained: 5 steps on {trained} rows, at delta = 1e-05" in printed
    assert "Guarantee for everyone: epsilon at most 3 (proved for the plan of 5 steps)" in printed
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"run.ledger", "run.json", "report.html"}
    figures = json.loads((tmp_path / "out" / "run.json").read_text())
    assert figures["worst_case"]["epsilon"] <= 3
    with Ledger.open(tmp_path / "out" / "run.ledger", write=False) as ledger:
        assert (ledger.steps, ledger.audit_records) == (5, min(audited, 128))
        assert ledger.audit_used_for == "the form of the model"
        assert "seeded" in ledger.history.caveats
    assert "NOT FOR RELEASE" in (tmp_path / "out" / "report.html").read_text()
    # Judged by validation rows: no audit row is looked at. Without a seed, noise cannot be predicted.
    unseeded = [argument for argument in arguments if not argument.startswith("--seed")]
    monkeypatch.setattr(sys, "argv", ["lora_sst2.py", *unseeded, f"--output={tmp_path / 'other'}", "--validate"])
    printed = run("lora_sst2.py")
    assert "NOT FOR RELEASE" not in printed
    judged, fewer = re.match(r"[\d.]+% of (\d+) validation rows.*\nTrained: 5 steps on (\d+) rows", printed).groups()
    assert int(judged) == sum(len(text.split()) >= 10 for text in texts.validation.x)
    assert 0 < int(fewer) < trained - int(judged)
    with Ledger.open(tmp_path / "other" / "run.ledger", write=False) as ledger:
        assert ledger.audit_records == 0
        assert "seeded" not in ledger.history.caveats


def test_written_reviews_praise_and_blame_with_words_of_their_lists(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    module = runpy.run_path(str(EXAMPLES / "written_reviews.py"))
    texts, classes = module["written_reviews"](2000)
    again, _ = module["written_reviews"](2000)
    assert texts.tolist() == again.tolist()
    assert len(set(texts.tolist())) > 1800
    assert 0.45 < classes.mean() < 0.55
    assert not any(mark in text for text in texts for mark in "{}")
    # The last clause decides, and what "is brilliant" is praised, unless it only thinks so itself.
    ends = {text: re.search(r"(?<!thinks it) is ([\w-]+)$", text) for text in texts.tolist()}
    for text, label in zip(texts.tolist(), classes, strict=True):
        for kind, sentiment in (("good", 1), ("bad", 0)):
            if ends[text] and ends[text][1] in module["WORDS"][kind]:
                assert label == sentiment, text


def test_validation_rows_of_lora_sst2_are_long_and_share_no_four_words_with_training_rows(monkeypatch):
    pytest.importorskip("peft", reason="the extra transformers is not installed")
    monkeypatch.syspath_prepend(EXAMPLES)
    split = runpy.run_path(str(EXAMPLES / "lora_sst2.py"))["validation_split"]
    sentence = "the plot is a fine and moving film about nothing"
    texts = np.array([sentence, "the plot is a", "moving film about nothing", "a fine film", "the plot is dull", "bad"])
    trained, judged = split(texts, np.array([0, 5]))
    assert judged.tolist() == [0]
    assert trained.tolist() == [3, 4]


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


def check_several_processes(printed, folder):
    assert printed.count("2 ranks, 30 steps in the ledger.") == 1
    assert printed.count("Guarantee for everyone: epsilon at most ") == 1
    assert {path.name for path in folder.iterdir()} == {"ranks.ledger", "report.html"}


def test_several_processes(tmp_path):
    """Two processes with the environment that torchrun gives them."""
    script = EXAMPLES / "several_processes.py"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    code = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    ranks = [
        Program(code=code, env=dict(os.environ) | group | {"RANK": str(rank)}, cwd=tmp_path, warn=False)
        for rank in range(2)
    ]
    assert [rank.wait() for rank in ranks] == [0, 0], [rank.printed[1] for rank in ranks]
    check_several_processes("".join(rank.printed[0] for rank in ranks), tmp_path)
    assert "steps" not in ranks[1].printed[0]


@pytest.mark.slow
def test_several_processes_under_torchrun(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = subprocess.run(
        [*torchrun, str(EXAMPLES / "several_processes.py")], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    check_several_processes(ended.stdout, tmp_path)


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
