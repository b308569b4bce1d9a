"""Ctrl-C and kill -9 during ``bayesdp train``: what is promised is true, and what was computed is not lost."""

import os
import signal
import sqlite3
import subprocess
import time
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from bayesdp.recipes import feature_cache, load
from bayesdp.recipes.features import Extractor, extract
from command_line import BAYESDP
from recipe_data import write_adult, write_images
from warm_programs import Program, run_warm

PATIENCE = 100.0
LISTEN = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # tests may run where Ctrl-C is ignored


def wait_for(running, condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)


def steps_of(folder):
    path = folder / "run.ledger"
    if not path.exists():
        return -1
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        return database.execute("SELECT count(*) FROM steps").fetchone()[0]


@pytest.fixture(scope="module")
def adult(tmp_path_factory):
    """The data, and the number of steps of a whole run."""
    folder = tmp_path_factory.mktemp("data")
    write_adult(folder)
    return folder


def processor_seconds(process):
    """Return the processor time that a process has used: how far it has come, however busy the machine is."""
    *_, user, system = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


MOMENTS = {
    "while it imports its libraries": lambda folder, process: processor_seconds(process) >= 0.4,
    "as soon as there is a ledger": lambda folder, process: steps_of(folder) >= 0,
    "at the first step": lambda folder, process: steps_of(folder) >= 1,
    "while the report is made": lambda folder, process: is_closed(folder),
}


def is_closed(folder):
    """Return whether training has ended: there is a checkpoint, and the head of the open ledger is gone.

    Looks at names of files only: a reader inside the ledger just when it is closed would leave the head in place.
    """
    return (folder / "checkpoint.safetensors").exists() and not (folder / "run.ledger-head").exists()


@contextmanager
def started(moment, *arguments):
    """Start a command: a new Python where its imports are to be interrupted, otherwise one that has them behind it."""
    if moment == "while it imports its libraries":
        with subprocess.Popen(
            [BAYESDP, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=LISTEN
        ) as running:
            yield running, lambda: running.communicate(timeout=PATIENCE)[1]
    else:
        with Program(*arguments) as running:
            yield running, lambda: running.wait(PATIENCE) and running.printed[1]


@pytest.mark.parametrize("moment", MOMENTS)
def test_what_an_interrupted_run_promises_is_true(tmp_path, adult, moment):
    folder = tmp_path / "out"
    command = ["train", "adult", "--data", adult, "--target-epsilon", "1", "-o", folder]
    with started(moment, *command) as (running, finish):
        wait_for(running, lambda: MOMENTS[moment](folder, running.pid))
        running.send_signal(signal.SIGINT)
        said = finish()
    assert running.returncode in (130, -signal.SIGINT)
    promised = "--resume" in said
    if moment == "while it imports its libraries":
        assert not promised
    if moment in ("at the first step", "while the report is made"):
        assert f"The same command with --resume continues the run in {folder}." in said
    again = run_warm(*command, *(["--resume"] if promised else []))
    assert again.returncode == 0, (said, again.stderr)
    assert (folder / "report.html").exists()


def test_a_second_process_in_the_folder_hears_of_the_first(tmp_path, adult):
    folder = tmp_path / "out"
    command = ["train", "adult", "--data", adult, "--target-epsilon", "1", "-o", folder]
    with Program(*command) as running:
        wait_for(running, lambda: steps_of(folder) >= 1)
        running.send_signal(signal.SIGSTOP)
        try:
            for more in ([], ["--resume"]):
                second = run_warm(*command, *more)
                assert second.returncode == 2
                assert second.stderr == (
                    f"bayesdp: ledger='{folder / 'run.ledger'}': is being written by another process.\n"
                )
        finally:
            running.send_signal(signal.SIGCONT)
        assert running.wait(PATIENCE) == 0


ROWS_AT_ONCE, IMAGES = 256, 6000

EXTRACT = f"""
import sys
from pathlib import Path
sys.path[:0] = {[str(folder) for folder in Path(__file__).parents[:2]]}
from test_interruptions import blocks
from bayesdp.recipes import load
from bayesdp.recipes.features import extract

data, log = Path(sys.argv[1]), Path(sys.argv[2])
extract(load("mnist", data), blocks(log, pause=0.05))
"""


def blocks(log, pause=0.0):
    """Return a small extractor: means of blocks of pixels. It notes in a file how many rows it was given."""

    def compute(rows):
        with log.open("a") as file:
            file.write(f"{len(rows)}\n")
        time.sleep(pause)
        return rows.reshape(len(rows), 4, 7, 28).mean((2, 3)).astype(np.float32) / 255

    return Extractor("blocks", 1, ROWS_AT_ONCE, lambda: compute)


def computed(log):
    return sum(map(int, log.read_text().split())) if log.exists() else 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_features_that_were_computed_are_kept(tmp_path, monkeypatch, number):
    write_images(tmp_path, "mnist", IMAGES, 500)
    monkeypatch.setenv("BAYESDP_CACHE", str(tmp_path / "cache"))
    log, again, whole = (tmp_path / name for name in ("log", "again", "whole"))
    with Program(tmp_path, log, code=EXTRACT) as running:
        wait_for(running, lambda: computed(log) >= 3000)
        running.send_signal(number)
        running.wait(PATIENCE)
    done = computed(log)
    assert 3000 <= done < IMAGES
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".parts"]
    dataset = load("mnist", tmp_path)
    resumed = extract(dataset, blocks(again))
    kept = IMAGES + 500 - computed(again)
    assert done - 1024 - ROWS_AT_ONCE <= kept <= done
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".npy"] * 2
    monkeypatch.setenv("BAYESDP_CACHE", str(tmp_path / "other"))
    uninterrupted = extract(dataset, blocks(whole))
    assert np.array_equal(resumed.development.x, uninterrupted.development.x)
    assert np.array_equal(resumed.audit.x, uninterrupted.audit.x)


@pytest.mark.parametrize("damage", [b"", b"text", None])
def test_a_damaged_part_is_computed_again(tmp_path, monkeypatch, damage):
    rows = np.random.default_rng(0).integers(0, 256, (4000, 28, 28), np.uint8)
    monkeypatch.setenv("BAYESDP_CACHE", str(tmp_path / "cache"))
    log = tmp_path / "log"
    compute = blocks(log).build()

    def stopped(part):
        if computed(log) >= 3072:
            raise KeyboardInterrupt
        return compute(part)

    def features(function):
        return feature_cache.cached_in_parts("blocks", 1, [rows], function, ROWS_AT_ONCE)[0]

    with pytest.raises(KeyboardInterrupt):
        features(stopped)
    [folder] = (tmp_path / "cache").iterdir()
    parts = sorted(folder.iterdir())
    assert sorted(int(part.stem) for part in parts) == [0, 1024, 2048]
    assert {oct(part.stat().st_mode & 0o777) for part in parts} == {"0o600"}
    content = parts[1].read_bytes()
    parts[1].write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:] if damage is None else damage)
    log.unlink()
    assert np.array_equal(features(compute), compute(rows))
    assert computed(log) == 4000 - 2 * 1024 + 4000  # what was left, and the comparison
