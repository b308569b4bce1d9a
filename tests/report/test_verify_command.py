"""The command that a report prints to check its ledger: it passes, run as the reader would run it."""

import html
import re
import shlex
import shutil

import numpy as np
import pytest

from bayesdp import Ledger
from command_line import run
from warm_programs import run_warm

STEP = {"noise_std": 2.0, "sample_rate": 0.1, "clip": 1.0}


def printed_command(page):
    """Return the words of the command on a page, as a shell would split them."""
    text = html.unescape(re.sub(r"<[^>]+>", "", page.read_text()))
    [command] = set(re.findall(r"bayesdp (verify .*? --seal [0-9a-f]{64})", text))
    return shlex.split(command)


def take_steps(ledger, steps=5):
    for _ in range(steps):
        ledger.step(**STEP, audit=np.full(20, 0.5))


def check(page, words):
    result = run(*printed_command(page), cwd=page.parent)
    assert result.returncode == 0, result.stderr
    assert words in " ".join(result.stdout.split())


@pytest.mark.parametrize("name", ["run.ledger", "model 7 'final'.ledger", "-x.ledger", "Größe.ledger"])
def test_it_passes_while_the_ledger_is_open_closed_and_continued(tmp_path, name):
    """Under the name that the ledger really has."""
    pages = [tmp_path / f"{number}.html" for number in range(4)]
    with Ledger.create(tmp_path / name) as ledger:
        take_steps(ledger)
        ledger.report(pages[0])
        check(pages[0], "5 steps; a process is still writing it.")
        take_steps(ledger)
        ledger.report(pages[1])
        check(pages[0], "10 steps; a process is still writing it. The seal given is that of its first 4 steps")
    check(pages[0], "10 steps. The seal given is that of its first 4 steps")
    check(pages[1], "10 steps. The seal given is that of its first 9 steps")
    ledger.report(pages[2])
    check(pages[2], "complete and unchanged, 10 steps. Seal:")
    result = run("report", f"./{name}", "-o", "3.html", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert printed_command(pages[3]) == printed_command(pages[2])
    with Ledger.open(tmp_path / name) as ledger:
        take_steps(ledger, 1)
    for page, steps in zip(pages, (4, 9, 10, 10), strict=True):
        check(page, f"11 steps. The seal given is that of its first {steps} steps")


def test_it_passes_in_a_process_of_its_own(tmp_path):
    with Ledger.create(tmp_path / "run.ledger") as ledger:
        take_steps(ledger)
        ledger.report(tmp_path / "report.html")
    assert run_warm(*printed_command(tmp_path / "report.html"), cwd=tmp_path).returncode == 0


def test_another_ledger_under_the_name_is_blamed(tmp_path):
    for name in ("run.ledger", "other.ledger"):
        with Ledger.create(tmp_path / name) as ledger:
            take_steps(ledger)
            ledger.report(tmp_path / "before.html" if name == "run.ledger" else tmp_path / "other.html")
    ledger.report(tmp_path / "after.html")
    shutil.copy(tmp_path / "run.ledger", tmp_path / "other.ledger")
    result = run(*printed_command(tmp_path / "other.html"), cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("bayesdp: ledger='other.ledger': is not the ledger of the seal given")
    assert run(*printed_command(tmp_path / "before.html"), cwd=tmp_path).returncode == 0
    assert run(*printed_command(tmp_path / "after.html"), cwd=tmp_path).returncode == 2


def test_a_ledger_in_memory_has_no_command(tmp_path):
    ledger = Ledger()
    take_steps(ledger)
    ledger.report(tmp_path / "report.html")
    assert "bayesdp verify" not in (tmp_path / "report.html").read_text()
    assert "kept in memory only" in (tmp_path / "report.html").read_text()
