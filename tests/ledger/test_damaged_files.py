"""Damaged files, and files that are no ledgers: refused in one line, or exactly what they said before."""

import os
import re

import pytest

from bayesdp import Ledger, LedgerError, StorageError
from ledger_damage import mutation_storm
from ledger_runs import STEPS, beside, content, execute


def test_damaged_files_are_refused_or_say_the_same(tmp_path):
    outcome = mutation_storm(tmp_path, 80, seed=1)
    assert outcome.failures == []
    assert all(outcome.counts[f"to {way}: {said}"] for way in ("read", "write") for said in ("refused", "identical"))


def test_bytes_that_are_no_text_are_not_quoted(tmp_path):
    """SQLite quotes all of the text that it cannot decode, line ends and all, as the fuzzer found."""
    path = tmp_path / "run.ledger"
    Ledger.create(path, metadata={"notes": "a disk that is full of lines " * 40}).close()
    content = path.read_bytes()
    path.write_bytes(content.replace(b"full of", b"fu\nl\xff\xfe "))
    with pytest.raises(LedgerError) as refusal:
        Ledger.open(path, write=False)
    said = str(refusal.value)
    assert said.endswith("is damaged: text in it cannot be read.")
    assert "\n" not in said


@pytest.mark.slow
def test_damaged_files_are_refused_or_say_the_same_at_length(tmp_path):
    assert mutation_storm(tmp_path, 1000, seed=2).failures == []


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
    flips = [(at, 128) for at in (*range(16, 108), *range(start, 4096, 5))]
    # The last bit of the types of a row, which stand before its text, makes bytes of a text, as the fuzzer found.
    flips += [(match.start() - before, 1) for match in re.finditer(b"CREATE TABLE", good) for before in range(1, 30)]
    for at, bit in flips:
        closed.write_bytes(good[:at] + bytes([good[at] ^ bit]) + good[at + 1 :])
        try:
            with Ledger.open(closed, write=False) as ledger:
                assert content(ledger) == expected, at
        except (LedgerError, StorageError):
            refusals += 1
    assert refusals > 100


@pytest.mark.parametrize("write", [False, True])
def test_a_newer_format_is_refused(closed, write):
    execute(closed, "PRAGMA user_version = 3")
    with pytest.raises(LedgerError, match="has format 3; this version of bayesdp reads format 2"):
        Ledger.open(closed, write=write)


@pytest.mark.parametrize("write", [False, True])
def test_what_is_no_ledger_is_refused_and_left_alone(tmp_path, write):
    other, empty, text, folder = (tmp_path / name for name in ("other.db", "empty", "text", "folder"))
    execute(other, "CREATE TABLE steps (number INTEGER PRIMARY KEY)")
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
