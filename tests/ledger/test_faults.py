"""Ledgers under fault: killed and interrupted writers, full and read-only disks, damaged and changed files.

Every fault is a real one: real processes, real signals, real files.
"""

import contextlib
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

import ledger_faults
from bayesdp import Ledger, LedgerError, StorageError
from ledger_faults import STEPS, content, counts_add_up, random_step, script, written

BAYESDP = Path(sys.executable).parent / "bayesdp"
START = """
import os, resource, signal, sys, time
from pathlib import Path
import numpy as np
from bayesdp import Ledger, LedgerError, StorageError
from ledger_faults import counts_add_up, fold_often, random_step

path, rng = Path(sys.argv[1]), np.random.default_rng(0)

def refusal(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except (LedgerError, StorageError) as error:
        assert "\\n" not in str(error)
        return str(error)
    raise AssertionError("not refused")
"""


def command(code, path):
    """Python in a process of its own."""
    folder = str(Path(ledger_faults.__file__).parent)
    return [sys.executable, "-W", "error", "-c", f"import sys; sys.path.append({folder!r}){START}{code}", str(path)]


def child(code, path):
    """Run it; what it printed."""
    result = subprocess.run(command(code, path), capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


def copy(path, folder):
    shutil.copytree(path.parent, folder)
    return folder / path.name


def beside(path, ending):
    return path.with_name(path.name + ending)


def steps_of(path):
    with Ledger.open(path, write=False) as ledger:
        assert counts_add_up(ledger)
        return ledger.steps


@pytest.fixture(scope="module")
def closed_original(tmp_path_factory):
    return written(tmp_path_factory.mktemp("closed"), closed=True)


@pytest.fixture(scope="module")
def killed_original(tmp_path_factory):
    return written(tmp_path_factory.mktemp("killed"), closed=False)


@pytest.fixture
def closed(closed_original, tmp_path):
    return copy(closed_original, tmp_path / "closed")


@pytest.fixture
def killed(killed_original, tmp_path):
    return copy(killed_original, tmp_path / "killed")


# Kills and interrupts


def test_killed_writers_lose_nothing(tmp_path):
    assert ledger_faults.kill_storm(tmp_path, 10, seed=1).failures == []


@pytest.mark.slow
def test_killed_writers_lose_nothing_at_length(tmp_path):
    assert ledger_faults.kill_storm(tmp_path, 200, seed=2).failures == []


def test_what_a_killed_writer_left_is_read_and_continued(killed):
    assert beside(killed, "-wal").exists()
    assert beside(killed, "-head").exists()
    assert steps_of(killed) == STEPS
    with Ledger.open(killed) as ledger:
        assert random_step(ledger, np.random.default_rng(0))[0] == STEPS + 1
    assert os.listdir(killed.parent) == [killed.name]
    assert steps_of(killed) == STEPS + 1


INTERRUPTED = """
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests may run where Ctrl-C is ignored
fold_often()
with Ledger.create(path) as ledger:
    last = 0
    for _ in range(30):
        try:
            while True:
                last = random_step(ledger, rng)[0]
                os.write(1, b"step\\n")
        except KeyboardInterrupt:
            assert last <= ledger.steps <= last + 1, (last, ledger.steps)
            assert counts_add_up(ledger)
            last = ledger.steps
            os.write(1, b"interrupted\\n")
print(last)
"""


def test_a_ledger_goes_on_after_interrupts(tmp_path):
    path, rng = tmp_path / "run.ledger", np.random.default_rng(0)
    with subprocess.Popen(command(INTERRUPTED, path), stdout=subprocess.PIPE) as process:
        for _ in range(30):
            assert process.stdout.readline() == b"step\n"
            time.sleep(rng.uniform(0, 0.05))
            process.send_signal(signal.SIGINT)
            while (line := process.stdout.readline()) != b"interrupted\n":
                assert line == b"step\n"
        last = int(process.stdout.read())
    assert process.returncode == 0
    assert steps_of(path) == last


AIMED = """
signal.signal(signal.SIGALRM, signal.default_int_handler)
fold_often()
ledger, last, hits = Ledger.create(path), 0, 0
for _ in range(50):
    aim, delay = rng.choice(["BEGIN", "BEGIN I", "INSERT", "DELETE", "COMMIT"]), 1e-6 + 1e-4 * rng.random() ** 2

    def shoot(statement):
        if statement.startswith(aim):
            signal.setitimer(signal.ITIMER_REAL, delay)

    ledger._file._database.set_trace_callback(shoot)
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
print(last)
"""


def test_a_ledger_goes_on_after_interrupts_in_the_middle_of_a_statement(tmp_path):
    last = int(child(AIMED, tmp_path / "run.ledger"))
    assert steps_of(tmp_path / "run.ledger") == last


FIRST_STEP = """
signal.signal(signal.SIGALRM, signal.default_int_handler)
with Ledger.create(path) as ledger:
    last = random_step(ledger, rng)[0]
for _ in range(50):
    with Ledger.open(path) as ledger:
        assert last <= ledger.steps <= last + 1, (last, ledger.steps)
        last = ledger.steps
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 5e-3))
            last = random_step(ledger, rng)[0]
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            pass
"""


def test_a_ledger_that_is_closed_after_an_interrupt_in_its_first_step_opens(tmp_path):
    child(FIRST_STEP, tmp_path / "run.ledger")
    assert steps_of(tmp_path / "run.ledger") >= 1


# Full and read-only disks

LIMITED = """
with Ledger.create(path) as ledger:
    for _ in range(5):
        released = random_step(ledger, rng)[0]
    most = path.with_name(path.name + "-wal").stat().st_size + 30_000
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for _ in range(3):
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        try:
            while True:
                released = random_step(ledger, rng)[0]
        except StorageError as error:
            assert "nothing was recorded" in str(error), error
        assert ledger.steps == released, (ledger.steps, released)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert random_step(ledger, rng)[0] == released + 1
        released += 1
    assert counts_add_up(ledger)
print(released)
"""


def test_a_file_that_may_not_grow(tmp_path):
    released = int(child(LIMITED, tmp_path / "run.ledger"))
    assert steps_of(tmp_path / "run.ledger") == released > 5


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)]
    if os.getuid() != 0 or not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small disk can be mounted only by root, where mounting is allowed")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(ballast):
    with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while file.write(bytes(256)):
            pass
    assert os.statvfs(ballast).f_bavail == 0


def test_a_full_disk(small_disk):
    path, ballast, rng = small_disk / "run.ledger", small_disk / "ballast", np.random.default_rng(0)
    ballast.write_bytes(bytes(100_000))
    ledger = Ledger.create(path)
    released = random_step(ledger, rng)[0]
    with pytest.raises(StorageError, match="nothing was recorded"):  # noqa: PT012
        while True:
            released = random_step(ledger, rng)[0]
    assert ledger.steps == released > 1
    assert counts_add_up(ledger)
    ballast.unlink()
    assert random_step(ledger, rng)[0] == released + 1
    ledger.close()
    assert steps_of(path) == released + 1


def test_a_ledger_that_is_closed_on_a_full_disk(small_disk):
    path, ballast, rng = small_disk / "run.ledger", small_disk / "ballast", np.random.default_rng(0)
    with Ledger.create(path) as ledger:
        for _ in range(10):
            random_step(ledger, rng)
    ledger = Ledger.open(path)
    random_step(ledger, rng)
    fill(ballast)
    try:
        ledger.close()
    except StorageError:
        ballast.unlink()
        ledger.close()
    ballast.unlink(missing_ok=True)
    assert steps_of(path) == 11
    with Ledger.open(path) as ledger:
        assert random_step(ledger, rng)[0] == 12


def test_no_ledger_is_created_on_a_full_disk(small_disk):
    fill(small_disk / "ballast")
    with pytest.raises(StorageError, match="disk is full"):
        Ledger.create(small_disk / "run.ledger")
    assert os.listdir(small_disk) == ["ballast"]


READ_ONLY = """
with Ledger.open(path, write=False) as ledger:  # imports all that is needed
    expected = ledger.costs(range(1, 9))
os.chmod(path.parent, 0o555)
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
before = path.read_bytes()
print(refusal(Ledger.create, path.with_name("new.ledger")))
print(refusal(Ledger.open, path))
with Ledger.open(path, write=False) as ledger:
    assert (ledger.costs(range(1, 9)) == expected).all()
    assert counts_add_up(ledger)
assert path.read_bytes() == before
assert os.listdir(path.parent) == [path.name]
"""


def test_a_read_only_folder(closed):
    with tempfile.TemporaryDirectory() as folder:  # the folders of pytest are closed to other users
        os.chmod(folder, 0o755)
        path = copy(closed, Path(folder) / "disk")
        try:
            assert len(child(READ_ONLY, path).splitlines()) == 2
        finally:
            os.chmod(path.parent, 0o755)


# Several at once


def test_a_second_writer_is_refused(tmp_path):
    path, rng = tmp_path / "run.ledger", np.random.default_rng(0)
    with Ledger.create(path) as ledger:
        random_step(ledger, rng)
        for _ in range(2):
            with pytest.raises(LedgerError, match="being written"):
                Ledger.open(path)
            assert "being written" in child("print(refusal(Ledger.open, path))", path)
            with pytest.raises(LedgerError):
                Ledger.create(path)
            random_step(ledger, rng)
    assert steps_of(path) == 3


def test_a_reader_sees_a_complete_prefix(tmp_path):
    path, said, seen = tmp_path / "run.ledger", b"", [0]
    with script("write_until_killed", path, 0, 0.0) as process:
        assert process.stdout.readline() == b"ready\n"
        said = process.stdout.readline()
        os.set_blocking(process.stdout.fileno(), False)
        for _ in range(8):
            said += process.stdout.read() or b""
            released = said.count(b"\n")
            with Ledger.open(path, write=False) as ledger:
                kept = [(stored.step.number, stored.step.planned_batch) for stored in ledger.stored_steps()]
                assert counts_add_up(ledger)
                assert ledger.steps >= max(released, seen[-1])
                assert [number for number, _ in kept[: ledger.steps]] == list(range(1, ledger.steps + 1))
                seen.append(ledger.steps)
            time.sleep(0.05)
    assert seen[-1] > seen[1]
    with Ledger.open(path, write=False) as ledger:
        final = [(stored.step.number, stored.step.planned_batch) for stored in ledger.stored_steps()]
    assert final[: len(kept)] == kept


FORKED = """
ledger = Ledger.create(path)
random_step(ledger, rng)
process = os.fork()
if process == 0:
    said = refusal(random_step, ledger, rng)
    os._exit(0 if "forked" in said else 1)
assert os.waitpid(process, 0)[1] == 0
assert random_step(ledger, rng)[0] == 2
ledger.close()
"""


def test_a_forked_process_cannot_write(tmp_path):
    child(FORKED, tmp_path / "run.ledger")
    assert steps_of(tmp_path / "run.ledger") == 2


# Damaged files


def test_damaged_files_are_refused_or_say_the_same(tmp_path):
    outcome = ledger_faults.mutation_storm(tmp_path, 80, seed=1)
    assert outcome.failures == []
    assert all(outcome.counts[f"to {way}: {said}"] for way in ("read", "write") for said in ("refused", "identical"))


@pytest.mark.slow
def test_damaged_files_are_refused_or_say_the_same_at_length(tmp_path):
    assert ledger_faults.mutation_storm(tmp_path, 1000, seed=2).failures == []


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("length", [None, 0, 32, 0.2, 0.5, 0.9, 0.999])
def test_lost_ends_of_the_log_are_noticed(killed, length, write):
    log = beside(killed, "-wal")
    if length is None:
        log.unlink()
    else:
        os.truncate(log, int(length * log.stat().st_size) if isinstance(length, float) else length)
    for _ in range(2):
        with pytest.raises(LedgerError, match=f"{STEPS} were written: its write-ahead log lost some"):
            Ledger.open(killed, write=write)


def test_a_refused_ledger_is_left_as_it_is(killed):
    log = beside(killed, "-wal")
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    before = killed.read_bytes()
    with pytest.raises(LedgerError, match="lost some"):
        Ledger.open(killed)
    assert killed.read_bytes() == before
    assert log.read_bytes() == data


@pytest.mark.parametrize("write", [False, True])
def test_a_lost_head_is_noticed(killed, write):
    beside(killed, "-head").unlink()
    for _ in range(2):
        with pytest.raises(LedgerError, match=r"run\.ledger-head is not beside it"):
            Ledger.open(killed, write=write)


def test_a_damaged_head_can_be_put_back(killed):
    head = beside(killed, "-head")
    good = head.read_bytes()
    head.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(LedgerError, match="damaged") as refused:
        Ledger.open(killed)
    assert "steps may be missing" in str(refused.value)
    head.write_bytes(good)
    with Ledger.open(killed) as ledger:
        assert ledger.steps == STEPS


def test_damage_to_the_first_page_is_refused_or_harmless(closed):
    with Ledger.open(closed, write=False) as ledger:
        expected = content(ledger)
    good = closed.read_bytes()
    start = min(match.start() for match in re.finditer(b"CREATE TABLE", good))
    refusals = 0
    for at in (*range(16, 108), *range(start, 4096, 5)):
        closed.write_bytes(good[:at] + bytes([good[at] ^ 128]) + good[at + 1 :])
        try:
            with Ledger.open(closed, write=False) as ledger:
                assert content(ledger) == expected, at
        except (LedgerError, StorageError):
            refusals += 1
    assert refusals > 100


@pytest.mark.parametrize("write", [False, True])
def test_a_newer_format_is_refused(closed, write):
    change(closed, "PRAGMA user_version = 3")
    with pytest.raises(LedgerError, match="has format 3; this version of bayesdp reads format 2"):
        Ledger.open(closed, write=write)


@pytest.mark.parametrize("write", [False, True])
def test_what_is_no_ledger_is_refused_and_left_alone(tmp_path, write):
    other, empty, text, folder = (tmp_path / name for name in ("other.db", "empty", "text", "folder"))
    change(other, "CREATE TABLE steps (number INTEGER PRIMARY KEY)")
    empty.write_bytes(b"")
    text.write_text("not a ledger\n" * 1000)
    folder.mkdir()
    before = {path: path.read_bytes() for path in (other, empty, text)}
    for path in (other, empty, text, folder, tmp_path / "missing"):
        with pytest.raises(LedgerError) as refused:
            Ledger.open(path, write=write)
        assert "\n" not in str(refused.value)
        assert path.name in str(refused.value)
    assert {path: path.read_bytes() for path in before} == before
    assert sorted(os.listdir(tmp_path)) == ["empty", "folder", "other.db", "text"]


# Changed files


def change(path, *statements):
    database = sqlite3.connect(path, isolation_level=None)
    try:
        for statement in statements:
            database.execute(statement)
    finally:
        database.close()


def forget(step):
    return [f"DELETE FROM steps WHERE number = {step}", f"DELETE FROM private_batches WHERE step = {step}"]


NO_LAST_STEP = f"step {STEPS} is missing|{STEPS} steps and has"
FIRST_BATCH = "(SELECT min(step) FROM private_batches)"
BATCH_CHANGED = r"step \d+: the counts of its batch were changed"
COUNTS_CHANGED = r"counts of audit records \(row 0\) were changed"
SWAP = [f"UPDATE steps SET number = {new} WHERE number = {old}" for old, new in ((5, -1), (9, 5), (-1, 9))]
TAMPERING = {
    "noise": (["UPDATE steps SET noise_std = noise_std + 1 WHERE number = 7"], "step 7 was changed"),
    "a step": (["DELETE FROM steps WHERE number = 30"], "step 30 is missing"),
    "the last step": (forget(STEPS), NO_LAST_STEP),
    "order": (SWAP, "step 5 was changed, or steps are not in their order"),
    "counts": (["UPDATE slices SET packed = CAST(packed || x'00' AS BLOB)"], COUNTS_CHANGED),
    "slices": (["DELETE FROM slices"], "counts were removed"),
    "a batch": ([f"UPDATE private_batches SET content = x'00' WHERE step = {FIRST_BATCH}"], BATCH_CHANGED),
    "a lost batch": ([f"DELETE FROM private_batches WHERE step = {FIRST_BATCH}"], BATCH_CHANGED),
    "a setting": (["UPDATE settings SET value = '2000' WHERE name = 'created'"], "step 1 was changed"),
}
MORE_TAMPERING = {
    "time": (["UPDATE steps SET time = time + 1 WHERE number = 7"], "step 7 was changed"),
    "all of a step": (forget(30), "step 30 is missing"),
    "the last step alone": ([f"DELETE FROM steps WHERE number = {STEPS}"], NO_LAST_STEP),
    "points": (["UPDATE slices SET points = points || ' 99'"], COUNTS_CHANGED),
    "type of a batch": ([f"UPDATE private_batches SET content = 5 WHERE step = {FIRST_BATCH}"], BATCH_CHANGED),
    "type of a setting": (["UPDATE settings SET value = x'00' WHERE name = 'created'"], "."),
    "the seal": (["UPDATE state SET seal = x'00'"], "was closed"),
    "closed": (["UPDATE state SET closed = 0"], "was not closed"),
    "a table": (["DROP TABLE slices"], "damaged"),
    "a trigger": (["CREATE TRIGGER more AFTER INSERT ON steps BEGIN DELETE FROM steps; END"], "damaged"),
}


def verify(path):
    return subprocess.run([BAYESDP, "verify", path], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("name", TAMPERING | MORE_TAMPERING)
def test_changed_rows_are_named(closed, name):
    statements, expected = (TAMPERING | MORE_TAMPERING)[name]
    change(closed, *statements)
    for write in (True, False):
        with pytest.raises(LedgerError, match=expected):
            Ledger.open(closed, write=write)


@pytest.mark.parametrize("name", TAMPERING)
def test_changed_rows_are_found_by_the_command(closed, name):
    statements, expected = TAMPERING[name]
    change(closed, *statements)
    verified = verify(closed)
    assert verified.returncode == 2
    assert verified.stdout == ""
    assert len(verified.stderr.strip().splitlines()) == 1
    assert re.search(expected, verified.stderr)


def test_an_unchanged_ledger_is_verified(closed, killed):
    for path in (closed, killed):
        verified = verify(path)
        assert verified.returncode == 0, verified.stderr
        assert f"{STEPS} steps" in verified.stdout


ODD_VALUES = (-1, 2**62, "text", b"\0\xff", b"", float("inf"))


@pytest.mark.parametrize("kind", ["closed", "killed"])
def test_odd_values_in_any_column_are_refused_or_harmless(request, tmp_path, kind):
    original = request.getfixturevalue(f"{kind}_original")
    reference = copy(original, tmp_path / "reference")
    with Ledger.open(reference, write=False) as ledger:
        expected = content(ledger)
    database = sqlite3.connect(reference)
    tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master")]
    columns = [(table, row[1]) for table in tables for row in database.execute(f"PRAGMA table_info({table})")]
    keys = dict(reversed(columns))  # the first column of each table
    database.close()
    wrong, refusals = [], 0
    for number, (table, column, value) in enumerate((*one, value) for one in columns for value in ODD_VALUES):
        path = copy(original, tmp_path / str(number))
        row = f"{keys[table]} = (SELECT max({keys[table]}) FROM {table})"
        database = sqlite3.connect(path, isolation_level=None)
        try:
            database.execute(f"UPDATE {table} SET {column} = ? WHERE {row}", (value,))
        except sqlite3.Error:
            continue  # SQLite itself refuses this value here
        finally:
            database.close()
        try:
            ledger = Ledger.open(path, write=False)
            if content(ledger) != expected:
                wrong.append((table, column, value, "different"))
            ledger.close()
        except (LedgerError, StorageError):
            refusals += 1
        except Exception as error:
            wrong.append((table, column, value, repr(error)))
    assert wrong == []
    assert refusals > 50
