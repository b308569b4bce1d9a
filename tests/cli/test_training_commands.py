"""``bayesdp demo``: killed, continued, repeated, served. (``train`` is in recipes/, ``reproduce`` in reproduce/.)"""

import contextlib
import html
import os
import re
import shutil
import signal
import sqlite3
import time
import urllib.error
import urllib.request

import pytest

from command_line import run, strict_json
from warm_programs import Program


def steps_of(path):
    if not path.exists():
        return 0
    with contextlib.closing(sqlite3.connect(path)) as database:
        return database.execute("SELECT count(*) FROM steps").fetchone()[0]


def check_statement(printed):
    """Half of the people have a figure of their own, unless a kill lost many updates: gradients then stay long."""
    assert "\nGuarantee for everyone: epsilon at most " in printed
    half = "of people like the 500 in the audit set, at least half have "
    nobody = "for .* of them there is no figure below the one for everyone"
    assert re.search(f"\nThis run, people whose data was not used: ({half}|{nobody})", printed)
    assert "needs 459 audit records" not in printed


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The folder of a demo that was killed after a few steps."""
    out = tmp_path_factory.mktemp("demo") / "out"
    with Program("demo", "-o", out) as running:
        while steps_of(out / "run.ledger") < 5:
            assert running.poll() is None
            time.sleep(0.01)
        running.kill()
    assert not (out / "report.html").exists()
    assert 5 <= steps_of(out / "run.ledger") < 40
    return out


@pytest.fixture(scope="module")
def killed_too(killed):
    """A copy of that folder, from before anybody has continued in it."""
    return shutil.copytree(killed, killed.parent / "copy")


@pytest.fixture(scope="module")
def finished(killed, killed_too):
    """The same folder after the demo was called again, and what that printed."""
    result = run("demo", "-o", killed)
    assert result.returncode == 0, result.stderr
    return killed, result.stdout


def test_demo_that_was_killed_goes_on(finished):
    out, printed = finished
    check_statement(printed)
    assert printed.endswith(f"Report: {out / 'report.html'}\n")
    assert f"\nFolder: {out}\nStatement: {out / 'statement.txt'}\nLedger: {out / 'run.ledger'}\n" in printed
    assert steps_of(out / "run.ledger") == 40
    assert "Privacy of the digits model" in (out / "report.html").read_text()


def test_the_command_on_the_report_passes(finished):
    out, _ = finished
    page = html.unescape(re.sub(r"<[^>]+>", "", (out / "report.html").read_text()))
    [command] = set(re.findall(r"bayesdp (verify run\.ledger --seal [0-9a-f]{64})", page))
    result = run(*command.split(), cwd=out)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("run.ledger: complete and unchanged, 40 steps.\nSeal: ")


def test_demo_trains_again_serves_its_report_and_nothing_else(finished):
    out, _ = finished
    before = (out / "report.html").read_bytes()
    environment = {**os.environ, "BROWSER": "true"}
    reading, writing = os.pipe()
    with open(reading) as lines, Program("demo", "--serve", "-o", out, env=environment, stdout=writing) as running:
        os.close(writing)
        try:
            printed = []
            for line in lines:
                if line.startswith("http://127.0.0.1:"):
                    address = line.split()[0]
                    break
                printed.append(line)
            check_statement("".join(printed))
            assert printed[-1] == f"Report: {out / 'report.html'}\n"
            report = (out / "report.html").read_bytes()
            assert report != before  # other noise: it was trained again
            assert steps_of(out / "run.ledger") == 40
            assert urllib.request.urlopen(address).read() == report
            for path in ("run.ledger", "../out/run.ledger", "model.safetensors"):
                with pytest.raises(urllib.error.HTTPError, match="404"):
                    urllib.request.urlopen(address + path)
        finally:
            running.send_signal(signal.SIGINT)
        assert running.wait(30) == 130


def test_json_of_the_demo(killed_too):
    result = run("demo", "-o", killed_too, "--json")
    values = strict_json(result.stdout)
    assert (values["recipe"], values["settings"]["steps"]) == ("digits", 40)
    assert steps_of(killed_too / "run.ledger") == 40
    assert values["files"]["report"] == str(killed_too / "report.html")
    assert all(os.path.exists(path) for path in values["files"].values())


def test_demo_leaves_the_files_of_others_alone(tmp_path):
    files = {"run.ledger": "somebody's", "report.html": "ledger"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    result = run("demo", "-o", tmp_path)
    assert result.returncode == 2
    assert "earlier demo" in result.stderr
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files


def test_demo_refuses_a_folder_that_is_a_file(tmp_path):
    target = tmp_path / "file"
    target.write_text("")
    result = run("demo", "-o", target)
    assert result.returncode == 2
    assert "output=" in result.stderr
