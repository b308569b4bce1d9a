"""How much rounding exposures up in the ledger can have added to epsilon."""

from __future__ import annotations

import numpy as np

from bayesdp.ledger import StoredLedger
from bayesdp.profiles.conversion import record_epsilons

_LAMBDAS = np.unique(np.geomspace(1, 512, 96).round())


def rounding_added(ledger: StoredLedger, delta: float) -> float:
    """Return the largest relative excess of epsilon among audit records; 0.01 means 1 %.

    It compares Rényi epsilons from exposures (and rates) rounded up with those from exposures rounded down, each at
    the best of many orders: an upper bound on what rounding added. It is infinite if an exposure is beyond the grid,
    or if epsilon might be 0.
    """
    up = record_epsilons(ledger.rounded_costs(_LAMBDAS, "up"), _LAMBDAS, delta)
    down = record_epsilons(ledger.rounded_costs(_LAMBDAS, "down"), _LAMBDAS, delta)
    comparable = up > down
    with np.errstate(divide="ignore"):
        return float((up[comparable] / down[comparable] - 1).max(initial=0.0))
