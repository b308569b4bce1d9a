"""Scripts in the structure of public ones: how many lines watching adds, what it says, and that training is the same.

The scripts are in tests/public_scripts; a statement that begins on a line with the comment ``added`` is not in the
script as people have it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from bayesdp import InvalidInputError, Ledger

SCRIPTS = Path(__file__).parents[1] / "public_scripts"
PAGE = Path(__file__).parents[2] / "docs" / "scripts.md"
ADDED = {
    "mnist": 3,
    "cifar10": 3,
    "dcgan": 4,
    "char_lstm": 4,
    "imdb": 4,
    "bert": 3,
    "lora": 3,
    "flower_client": 3,
}
RANDOM = {"dcgan", "bert", "lora"}
"""Scripts whose training draws random numbers that are not released: dropout, generated images."""
FOLLOWED = {"char_lstm"}
"""Scripts whose training calls the object that ``watch`` was given as the loss."""


def added_lines(source: str) -> list[tuple[int, int]]:
    """Return the first and last line of each added statement, both counted from 1."""
    marked = {number for number, line in enumerate(source.splitlines(), 1) if re.search("# added", line)}
    statements = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    return sorted((node.lineno, node.end_lineno or node.lineno) for node in statements if node.lineno in marked)


def without(source: str, ranges: list[tuple[int, int]]) -> str:
    gone = {number for first, last in ranges for number in range(first, last + 1)}
    return "\n".join(line for number, line in enumerate(source.splitlines(), 1) if number not in gone)


def parameters_after(source: str) -> list[bytes]:
    """Run a script's ``main`` and return the bits of all parameters of its model."""
    for library in ("transformers", "peft"):
        if f"from {library} import" in source:
            pytest.importorskip(library)
    namespace: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(compile(source, "script", "exec"), namespace)
    return [parameter.detach().numpy().tobytes() for parameter in namespace["main"]().parameters()]


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:Optimal order is the largest alpha")
@pytest.mark.filterwarnings("ignore:Secure RNG turned off")
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("script", ADDED)
def test_a_public_script(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The padding of the recurrent and the pooled network stays fixed without watching too, and so does the split."""
    monkeypatch.chdir(tmp_path)
    source = (SCRIPTS / f"{script}.py").read_text()
    ranges = added_lines(source)
    assert len(ranges) == ADDED[script] <= 5
    kept = [line for line in ranges if re.search("LENGTH|LONGEST|split_audit", source.splitlines()[line[0] - 1])]
    plain = without(source, [line for line in ranges if line not in kept])
    plain = plain.replace("bayesdp.opacus.split_audit", "__import__('bayesdp.opacus').opacus.split_audit")
    assert "watch" not in plain
    unwatched = parameters_after(plain)
    assert "Guarantee" not in capsys.readouterr().out
    assert parameters_after(source) == unwatched
    printed = capsys.readouterr().out
    assert "Guarantee for everyone: epsilon at most" in printed
    with Ledger.open(tmp_path / "run.ledger", write=False) as ledger:
        assert ledger.steps > 0
        assert ledger.audit_records >= 40
        expected = {
            "random-draws": script in RANDOM,
            "zero-out": script == "imdb",
            "given-loss": script not in FOLLOWED,
        }
        assert set(ledger.history.caveats) == {name for name in expected if expected[name]}


def test_the_page_counts_the_same_lines() -> None:
    rows = re.findall(r"^\|[^|]*\| (\d) \|[^|]*\|[^|]*test_a_public_script\[(\w+)\]", PAGE.read_text(), re.MULTILINE)
    assert {script: int(lines) for lines, script in rows} == ADDED


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(test_\w+\.py)::(\w+)", PAGE.read_text())
    assert len(named) > 10
    for file, test in named:
        found = list(Path(__file__).parents[1].rglob(file))
        assert any(f"def {test}(" in path.read_text() for path in found), (file, test)


@pytest.mark.parametrize("script", ["char_lstm", "imdb"])
def test_padding_to_the_longest_of_a_batch_is_found(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scripts as they are published: the gradient of a record depends on how long others are."""
    monkeypatch.chdir(tmp_path)
    source = (SCRIPTS / f"{script}.py").read_text()
    published = without(source, [line for line in added_lines(source) if "pad(" in source.splitlines()[line[0] - 1]])
    with pytest.raises(InvalidInputError, match=r"loss=.coupled records.: .* pad to a fixed length"):
        parameters_after(published)
    assert list(tmp_path.glob("*.ledger")) == []
