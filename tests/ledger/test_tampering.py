"""Changed files: rows that were changed, removed or moved are named by ``Ledger.open`` and by ``bayesdp verify``."""

import re
import sqlite3

import pytest

from bayesdp import Ledger, LedgerError, StorageError
from command_line import run, run_program
from ledger_runs import STEPS, content, copy_ledger, execute


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


@pytest.mark.parametrize("name", TAMPERING | MORE_TAMPERING)
def test_changed_rows_are_named(closed, name):
    statements, expected = (TAMPERING | MORE_TAMPERING)[name]
    execute(closed, *statements)
    for write in (True, False):
        with pytest.raises(LedgerError, match=expected):
            Ledger.open(closed, write=write)


@pytest.mark.parametrize("name", TAMPERING)
def test_changed_rows_are_found_by_the_command(closed, name):
    statements, expected = TAMPERING[name]
    execute(closed, *statements)
    verified = run("verify", closed)
    assert verified.returncode == 2
    assert verified.stdout == ""
    assert len(verified.stderr.strip().splitlines()) == 1
    assert re.search(expected, verified.stderr)


def test_changed_rows_are_found_by_the_program(closed):
    statements, expected = TAMPERING["noise"]
    execute(closed, *statements)
    verified = run_program("verify", closed)
    assert (verified.returncode, verified.stdout) == (2, "")
    assert re.search(expected, verified.stderr)


def test_an_unchanged_ledger_is_verified(closed, killed):
    for path in (closed, killed):
        verified = run("verify", path)
        assert verified.returncode == 0, verified.stderr
        assert f"{STEPS} steps" in verified.stdout


ODD_VALUES = (-1, 2**62, "text", b"\0\xff", b"", float("inf"))


@pytest.mark.parametrize("kind", ["closed", "killed"])
def test_odd_values_in_any_column_are_refused_or_harmless(request, tmp_path, kind):
    original = request.getfixturevalue(f"{kind}_original")
    reference = copy_ledger(original, tmp_path / "reference")
    with Ledger.open(reference, write=False) as ledger:
        expected = content(ledger)
    database = sqlite3.connect(reference)
    tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master")]
    columns = [(table, row[1]) for table in tables for row in database.execute(f"PRAGMA table_info({table})")]
    keys = dict(reversed(columns))  # the first column of each table
    database.close()
    wrong, refusals = [], 0
    for number, (table, column, value) in enumerate((*column, value) for column in columns for value in ODD_VALUES):
        path = copy_ledger(original, tmp_path / str(number))
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
