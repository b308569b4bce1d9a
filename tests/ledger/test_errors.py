"""Errors of the ledger's files: bad ledgers are bad input, bad disks are OSErrors, and each is one line."""

from __future__ import annotations

import errno
import pickle
import sqlite3
from pathlib import Path

import pytest

from bayesdp import InvalidInputError, Ledger, LedgerError, StorageError
from bayesdp.ledger import file as ledger_file
from bayesdp.ledger.database import translated_errors
from command_line import run


def test_what_the_errors_are() -> None:
    assert issubclass(LedgerError, InvalidInputError)
    assert issubclass(LedgerError, ValueError)
    assert issubclass(StorageError, OSError)
    assert not issubclass(StorageError, ValueError)


def test_a_storage_error_names_the_ledger_and_the_code_of_the_system() -> None:
    error = StorageError(Path("run.ledger"), "the disk is full", errno.ENOSPC)
    assert str(error) == "ledger='run.ledger': the disk is full."
    assert (error.errno, error.filename) == (errno.ENOSPC, "run.ledger")
    assert StorageError("run.ledger", "cannot be used").errno is None
    with pytest.raises(OSError, match="the disk is full"):
        raise error


def test_errors_can_be_pickled() -> None:
    storage = pickle.loads(pickle.dumps(StorageError("run.ledger", "the disk is full", errno.ENOSPC)))
    assert (str(storage), storage.errno) == ("ledger='run.ledger': the disk is full.", errno.ENOSPC)
    refused = pickle.loads(pickle.dumps(LedgerError(Path("run.ledger"), "is damaged")))
    assert (type(refused), str(refused)) == (LedgerError, "ledger='run.ledger': is damaged.")


@pytest.mark.parametrize(
    ("said", "kind", "code", "words"),
    [
        ("database or disk is full", StorageError, errno.ENOSPC, "the disk is full; nothing was recorded"),
        ("disk I/O error", StorageError, errno.EIO, "the disk failed"),
        ("attempt to write a readonly database", StorageError, errno.EACCES, "cannot be opened here"),
        ("unable to open database file", StorageError, errno.EACCES, "cannot be opened here"),
        ("database is locked", LedgerError, None, "used by another process"),
        ("database disk image is malformed", LedgerError, None, "is damaged, or not a ledger"),
    ],
)
def test_what_sqlite_says_in_plain_words(
    said: str, kind: type[LedgerError] | type[StorageError], code: int | None, words: str
) -> None:
    with pytest.raises(kind, match=words) as error, translated_errors("run.ledger"):
        raise sqlite3.OperationalError(said)
    assert str(error.value).startswith("ledger='run.ledger': ")
    assert "\n" not in str(error.value)
    assert getattr(error.value, "errno", None) == code


def test_errors_of_the_system_keep_their_code() -> None:
    with pytest.raises(StorageError, match="No space left") as error, translated_errors("run.ledger"):
        raise OSError(errno.ENOSPC, "No space left on device", "something else")
    assert (error.value.errno, error.value.filename) == (errno.ENOSPC, "run.ledger")
    with pytest.raises(StorageError) as same, translated_errors("another.ledger"):
        raise error.value
    assert same.value is error.value


def test_a_step_that_fails_says_so_and_can_be_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with Ledger.create(tmp_path / "run.ledger") as ledger:
        with monkeypatch.context() as broken:
            broken.setattr(ledger._file, "insert", full)
            with pytest.raises(StorageError, match="must not be used") as error:
                ledger.step(noise_std=1.0, sample_rate=0.1, clip=1.0)
        assert (error.value.errno, error.value.filename) == (errno.ENOSPC, str(tmp_path / "run.ledger"))
        assert ledger.steps == 0
        assert ledger.step(noise_std=1.0, sample_rate=0.1, clip=1.0) == 1


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be opened here") as error:
        Ledger.create(tmp_path / "no" / "run.ledger")
    assert error.value.filename == str(tmp_path / "no" / "run.ledger")


def test_the_command_prints_one_line_and_ends_with_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        Ledger.create(tmp_path / name).close()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ledger_file, "give_name", full)
    result = run("compose", tmp_path / "a", tmp_path / "b", "-o", tmp_path / "both")
    assert (result.returncode, result.stdout) == (2, "")
    expected = f"bayesdp: ledger='{tmp_path / 'both'}': cannot be used (No space left on device)."
    assert result.stderr.splitlines() == [expected]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "b"]
