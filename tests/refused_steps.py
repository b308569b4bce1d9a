"""A step that `watch` refuses, and what it must leave as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bayesdp import InvalidInputError, Ledger
from opacus_runs import Run


def check_step_refused(run: Run, ledger: Ledger, steps: int, said: str, loader: Any = None) -> None:
    """Check that the next step is refused with these words, and leaves ledger and parameters as they were."""
    before = run.parameters
    with pytest.raises(InvalidInputError, match=said):
        run.train(loader=loader, most=1)
    assert ledger.steps == steps
    assert np.array_equal(run.parameters, before)
