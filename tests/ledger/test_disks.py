"""Full, failing and read-only disks: an error that says so, and no step that is recorded in part."""

import contextlib
import errno
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

from bayesdp import Ledger, StorageError
from command_line import run
from ledger_processes import child
from ledger_runs import copy_ledger, counts_add_up, random_step, steps_of
from ledger_writers import use_a_read_only_folder, write_where_files_may_not_grow


def test_a_file_that_may_not_grow(tmp_path):
    [released] = child(write_where_files_may_not_grow, tmp_path / "run.ledger")
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
    with pytest.raises(StorageError, match="nothing was recorded") as full:  # noqa: PT012
        while True:
            released = random_step(ledger, rng)[0]
    assert (full.value.errno, full.value.filename) == (errno.ENOSPC, str(path))
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


def test_the_command_says_in_one_line_that_the_disk_is_full(small_disk, closed, killed):
    fill(small_disk / "ballast")
    result = run("compose", closed, killed, "-o", small_disk / "both.ledger")
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1
    assert "disk is full" in result.stderr
    assert os.listdir(small_disk) == ["ballast"]


def test_a_read_only_folder(closed):
    with tempfile.TemporaryDirectory() as folder:  # the folders of pytest are closed to other users
        os.chmod(folder, 0o755)
        path = copy_ledger(closed, Path(folder) / "disk")
        try:
            assert len(child(use_a_read_only_folder, path)) == 2
        finally:
            os.chmod(path.parent, 0o755)
