"""Ledgers that another process wrote, for tests that damage, change and continue them."""

import pytest

from ledger_runs import copy_ledger
from ledger_writers import written


@pytest.fixture(scope="session")
def closed_original(tmp_path_factory):
    """A closed ledger; for tests that leave it as it is."""
    return written(tmp_path_factory.mktemp("closed"), closed=True)


@pytest.fixture(scope="session")
def killed_original(tmp_path_factory):
    """A ledger whose writer was killed, with its log and head beside it; for tests that leave it as it is."""
    return written(tmp_path_factory.mktemp("killed"), closed=False)


@pytest.fixture
def closed(closed_original, tmp_path):
    """A copy of a closed ledger."""
    return copy_ledger(closed_original, tmp_path / "closed")


@pytest.fixture
def killed(killed_original, tmp_path):
    """A copy of a ledger whose writer was killed."""
    return copy_ledger(killed_original, tmp_path / "killed")
