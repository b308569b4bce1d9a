"""Seals that were noted: found again after the ledger was closed, continued or both, and in no other ledger."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from bayesdp import InvalidInputError, Ledger, LedgerError
from bayesdp.ledger import chain, histograms, lasting_seal, verify
from ledger_processes import process
from ledger_runs import random_step
from ledger_writers import written


def extended(ledger: Ledger, steps: int, seed: int = 0) -> Ledger:
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        random_step(ledger, rng)
    return ledger


def covered(path: Path, seal: str) -> int | None:
    with Ledger.open(path, write=False) as ledger:
        return verify(ledger, seal).covered


@pytest.mark.parametrize("more", [0, 1, 40])
def test_the_seal_of_an_open_ledger_is_found_after_closing_and_growing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    monkeypatch.setattr(histograms, "_SHORTEST", 16)
    monkeypatch.setattr(histograms, "_LONGEST", 16)
    path = tmp_path / "run.ledger"
    with Ledger.create(path) as ledger:
        noted = lasting_seal(extended(ledger, 30))
        assert verify(ledger, noted).covered == 29  # the last step may still be amended
        with Ledger.open(path, write=False) as reader:
            assert lasting_seal(reader) == noted
        extended(ledger, more)
    assert covered(path, noted) == 29
    with Ledger.open(path) as ledger:
        extended(ledger, 5)
    assert covered(path, noted) == 29


def test_norms_that_come_late_do_not_void_a_seal(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "run.ledger") as ledger:
        numbers = [ledger.step(noise_std=2.0, sample_rate=0.1, clip=1.0) for _ in range(3)]
        noted = lasting_seal(ledger)
        ledger.amend(numbers[-1], audit=[0.5, 0.7])
    assert covered(tmp_path / "run.ledger", noted) == 2


def test_the_seal_of_a_closed_ledger_covers_everything_until_it_is_continued(tmp_path: Path) -> None:
    path, noted = tmp_path / "run.ledger", []
    Ledger.create(path).close()
    for _ in range(3):
        with Ledger.open(path) as ledger:
            noted.append(lasting_seal(ledger))
            assert lasting_seal(ledger) == ledger.seal
            extended(ledger, 20)
            assert [verify(ledger, seal).covered for seal in noted] == list(range(0, 20 * len(noted), 20))
    with Ledger.open(path, write=False) as ledger:
        noted.append(ledger.seal)
        assert [verify(ledger, seal).covered for seal in noted] == [0, 20, 40, None]
        assert ledger.steps == 60


def test_a_ledger_that_was_killed_has_a_seal_to_note(tmp_path: Path) -> None:
    path = written(tmp_path, closed=False)
    with Ledger.open(path, write=False) as ledger:
        steps, noted = ledger.steps, lasting_seal(ledger)
        found = verify(ledger, noted)
    assert (found.covered, found.closed, found.being_written) == (steps - 1, False, False)
    assert "It was not closed" in found.statement()
    Ledger.open(path).close()
    assert covered(path, noted) == steps - 1


def test_another_ledger_is_blamed_and_not_the_seal(tmp_path: Path) -> None:
    path, copy = tmp_path / "run.ledger", tmp_path / "copy.ledger"
    with Ledger.create(path) as ledger:
        extended(ledger, 10)
    shutil.copy(path, copy)
    with Ledger.open(path) as ledger:
        open_seal = lasting_seal(extended(ledger, 5, seed=1))
    with Ledger.open(path, write=False) as ledger:
        closed_seal = ledger.seal
    with Ledger.open(copy) as other:  # the same run, which took other steps from there
        extended(other, 5, seed=2)
    with Ledger.open(copy, write=False) as other:
        for seal in (open_seal, closed_seal, "ab" * 32):
            with pytest.raises(LedgerError, match=r"copy\.ledger.*is not the ledger of the seal given.*15 steps"):
                verify(other, seal)
        for seal in ("", "00", "x" * 64, open_seal[:-1]):
            with pytest.raises(InvalidInputError, match=r"seal=.*expected 64 hexadecimal digits"):
                verify(other, seal)
        assert verify(other, f" {lasting_seal(other).upper()}\n").covered is None


def test_a_made_up_note_of_an_earlier_closing_vouches_for_nothing(tmp_path: Path) -> None:
    """Whoever has the file can write into it that it was closed before; no seal of other steps follows from that."""
    path, other = tmp_path / "run.ledger", tmp_path / "other.ledger"
    for file, seed in ((path, 1), (other, 2)):
        with Ledger.create(file) as ledger:
            extended(ledger, 10, seed)
    with Ledger.open(other, write=False) as ledger:
        wanted = ledger.seal
        digests = chain.joined_digests(ledger.storage._digests)
    database = sqlite3.connect(path)
    for note in (digests, bytes.fromhex(wanted), b"", b"odd", "text", None):
        database.execute("DELETE FROM state WHERE number > 1")
        if note is not None:
            database.execute("INSERT INTO state VALUES (2, 0, 10, ?)", (note,))
        database.execute("INSERT INTO state VALUES (3, 0, 99, x'00')")
        database.commit()
        with Ledger.open(path, write=False) as ledger, pytest.raises(LedgerError, match="is not the ledger"):
            verify(ledger, wanted)
    database.close()


def hold(pipe: object, path: Path) -> None:
    with Ledger.create(path) as ledger:
        extended(ledger, 3)
        pipe.send("ready")
        pipe.recv()
        extended(ledger, 2)
    pipe.send("closed")


def test_it_says_while_another_process_writes(tmp_path: Path) -> None:
    path = tmp_path / "run.ledger"
    with process(hold, path) as writer:
        assert writer.hear() == "ready"
        with Ledger.open(path, write=False) as ledger:
            found = verify(ledger)
        assert found.being_written
        assert "complete and unchanged so far, 3 steps; a process is still writing it." in found.statement()
        writer.pipe.send("go on")
        assert writer.hear() == "closed"
    with Ledger.open(path, write=False) as ledger:
        after = verify(ledger, found.seal)
    assert (after.steps, after.covered, after.closed, after.being_written) == (5, 2, True, False)
    assert "first 2 steps" in after.statement()
