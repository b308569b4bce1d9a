"""A small run to report on."""

import numpy as np

from bayesdp import Ledger


def small_run(records=600, groups=None, **about):
    """Return a ledger of sixty steps in which typical records are quiet."""
    rng = np.random.default_rng(0)
    ledger = Ledger(audit_groups=groups, **about)
    for _ in range(60):
        norms = rng.lognormal(-1.5, 0.8, records) if records else None
        ledger.step(noise_std=2.0, sample_rate=0.1, clip=1.0, audit=norms)
    return ledger
