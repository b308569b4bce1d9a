"""Writers of ledgers that run in processes of their own (ledger_processes.py), and what befalls them there."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from bayesdp import Ledger, LedgerError, StorageError
from ledger_processes import process
from ledger_runs import STEPS, beside, counts_add_up, fold_often, random_step


def written(folder: Path, *, closed: bool, steps: int = STEPS, seed: int = 0) -> Path:
    """Return a ledger that another process wrote in ``folder``; that was killed, unless it closed the ledger before."""
    path = folder / "run.ledger"
    with process(write_and_wait, path, steps, seed, closed) as writer:
        assert writer.hear() == "done"
    return path


def write_and_wait(pipe: Connection, path: Path, steps: int, seed: int, closed: bool) -> None:
    """Write a ledger, which is closed and opened again after a quarter of its steps; then wait to be killed."""
    fold_often()
    rng = np.random.default_rng(seed)
    ledger = Ledger.create(path)
    for _ in range(steps // 4):
        random_step(ledger, rng)
    ledger.close()
    ledger = Ledger.open(path)
    while ledger.steps < steps:
        random_step(ledger, rng)
    if closed:
        ledger.close()
    pipe.send("done")
    signal.pause()


def write_until_killed(pipe: Connection, path: Path, seed: int, reopen: float) -> None:
    """Continue or create a ledger, step after step, and send number and planned batch of each step that is released.

    ``reopen`` is the probability with which the ledger is closed and opened again after a step.
    """
    fold_often()
    rng = np.random.default_rng(seed)
    pipe.send("ready")
    ledger = Ledger.open(path) if path.exists() else Ledger.create(path)
    while True:
        pipe.send(random_step(ledger, rng))
        if rng.random() < reopen:
            ledger.close()
            ledger = Ledger.open(path)


def amend_until_killed(pipe: Connection, path: Path) -> None:
    """Record steps without norms, and amend each; say when the first one is recorded."""
    ledger = Ledger.create(path)
    ledger.step(noise_std=2, sample_rate=1, clip=1, audit=[0.1, 0.5, 3.0])
    pipe.send("ready")
    while True:
        ledger.amend(ledger.step(noise_std=2, sample_rate=1, clip=1), audit=[0.1, 0.5, 3.0])


def write_through_interrupts(pipe: Connection, path: Path, interrupts: int) -> None:
    """Record steps until Ctrl-C, several times; send "step" and "interrupted" as they happen, then the last number."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests may run where Ctrl-C is ignored
    fold_often()
    rng = np.random.default_rng(0)
    with Ledger.create(path) as ledger:
        last = 0
        for _ in range(interrupts):
            try:
                while True:
                    last = random_step(ledger, rng)[0]
                    pipe.send("step")
            except KeyboardInterrupt:
                assert last <= ledger.steps <= last + 1, (last, ledger.steps)
                assert counts_add_up(ledger)
                last = ledger.steps
                pipe.send("interrupted")
    pipe.send(last)


def write_through_aimed_interrupts(pipe: Connection, path: Path) -> None:
    """Be interrupted in the middle of SQL statements and just after; send the number of the last step."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    fold_often()
    rng = np.random.default_rng(0)
    ledger, last, hits = Ledger.create(path), 0, 0
    for _ in range(50):
        aim, delay = rng.choice(["BEGIN", "BEGIN I", "INSERT", "DELETE", "COMMIT"]), 1e-6 + 1e-4 * rng.random() ** 2
        ledger._file._database.set_trace_callback(_alarm_at(aim, delay))
        try:
            for _ in range(17):
                last = random_step(ledger, rng)[0]
        except KeyboardInterrupt:
            hits += 1
        ledger._file._database.set_trace_callback(None)
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert last <= ledger.steps <= last + 1, (last, ledger.steps)
        last = ledger.steps
    assert hits > 15, hits
    assert counts_add_up(ledger)
    ledger.close()
    pipe.send(last)


def _alarm_at(aim: str, delay: float) -> Callable[[str], None]:
    def shoot(statement: str) -> None:
        if statement.startswith(aim):
            signal.setitimer(signal.ITIMER_REAL, delay)

    return shoot


def interrupt_first_steps(_: Connection, path: Path) -> None:
    """Open a ledger 50 times, each time with an interrupt in its first step, and close it."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    rng = np.random.default_rng(0)
    with Ledger.create(path) as ledger:
        last = random_step(ledger, rng)[0]
    for _ in range(50):
        with Ledger.open(path) as ledger:
            assert last <= ledger.steps <= last + 1, (last, ledger.steps)
            last = ledger.steps
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 5e-3))
                last = random_step(ledger, rng)[0]
                signal.setitimer(signal.ITIMER_REAL, 0)


def write_where_files_may_not_grow(pipe: Connection, path: Path) -> None:
    """Reach the largest size that files may have, three times, and go on; send how many steps were released."""
    rng = np.random.default_rng(0)
    with Ledger.create(path) as ledger:
        for _ in range(5):
            released = random_step(ledger, rng)[0]
        most = beside(path, "-wal").stat().st_size + 30_000
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        for _ in range(3):
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
            try:
                while True:
                    released = random_step(ledger, rng)[0]
            except StorageError as error:
                said = str(error)
            assert "nothing was recorded" in said, said
            assert ledger.steps == released, (ledger.steps, released)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            assert random_step(ledger, rng)[0] == released + 1
            released += 1
        assert counts_add_up(ledger)
    pipe.send(released)


def use_a_read_only_folder(pipe: Connection, path: Path) -> None:
    """Send what is said on writing in a folder that may only be read; reading must work and change nothing."""
    with Ledger.open(path, write=False) as ledger:  # imports everything that is needed
        expected = ledger.costs(range(1, 9))
    os.chmod(path.parent, 0o555)
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    before = path.read_bytes()
    pipe.send(refusal(Ledger.create, path.with_name("new.ledger")))
    pipe.send(refusal(Ledger.open, path))
    with Ledger.open(path, write=False) as ledger:
        assert (ledger.costs(range(1, 9)) == expected).all()
        assert counts_add_up(ledger)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def open_to_write(pipe: Connection, path: Path) -> None:
    """Send why a ledger that is being written cannot be opened for writing."""
    pipe.send(refusal(Ledger.open, path))


def create(pipe: Connection, path: Path) -> None:
    """Send why a new ledger cannot be created."""
    pipe.send(refusal(Ledger.create, path))


def write_while_asked(pipe: Connection, path: Path) -> None:
    """Create a ledger; record a step and send its number whenever a message comes, and close it at the word "close"."""
    rng = np.random.default_rng(0)
    with Ledger.create(path) as ledger:
        pipe.send("created")
        while pipe.recv() != "close":
            pipe.send(random_step(ledger, rng)[0])
    pipe.send("closed")


def write_and_fork(_: Connection, path: Path) -> None:
    """Try to write from a forked process, which must be refused, and go on."""
    rng = np.random.default_rng(0)
    ledger = Ledger.create(path)
    random_step(ledger, rng)
    forked = os.fork()
    if forked == 0:
        said = refusal(random_step, ledger, rng)
        os._exit(0 if "forked" in said else 1)
    assert os.waitpid(forked, 0)[1] == 0
    assert random_step(ledger, rng)[0] == 2
    ledger.close()


def refusal(function: Callable[..., object], *arguments: object) -> str:
    """Return the message, in one line, with which a call is refused."""
    said = ""
    try:
        function(*arguments)
    except (LedgerError, StorageError) as error:
        said = str(error)
    assert len(said.splitlines()) == 1, said or "not refused"
    return said
