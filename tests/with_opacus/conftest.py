"""What tests with Opacus share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bayesdp import Ledger


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    """A ledger in memory that keeps the norms it is given."""
    with Ledger(keep_norms=True) as ledger:
        yield ledger
