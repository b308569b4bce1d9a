"""200 steps of one model with Opacus and with JAX Privacy, in float64: the ledgers are equal within one bucket."""

import numpy as np
import pytest

from bayesdp import Ledger
from bayesdp.ledger.exposure_grid import below, round_up
from contracts.adapter_runs import ADAPTERS, AUDIT_RECORDS, new_problem


def exposures(ledger):
    """Exposures of each audit record over all steps, rounded up to the grid, ascending, [m, T]."""
    counts = ledger.step_counts()
    return [
        np.sort(np.repeat(counts.exposures[kinds], of_record))
        for _, kinds, counted in counts.slices()
        for of_record in counted.T
    ]


def test_200_steps_are_equal_within_one_bucket():
    problem = new_problem(seed=1, epochs=20)
    assert problem.steps == 200
    ledgers = []
    for name in ("opacus", "jax_privacy"):
        ledger = Ledger()
        run = ADAPTERS[name](problem, ledger, lambda: None)
        run.train(200)
        run.close()
        ledgers.append(ledger)
    opacus, with_jax = ledgers
    assert opacus.steps == with_jax.steps == 200
    for own, other in zip(exposures(with_jax), exposures(opacus), strict=True):
        assert len(own) == len(other) == 200
        assert (below(round_up(np.maximum(own, other))) <= np.minimum(own, other)).all()
    assert len(exposures(with_jax)) == AUDIT_RECORDS
    claims, expected = with_jax.claims(shares=[0.5, 0.8]), opacus.claims(shares=[0.5, 0.8])
    assert claims.everyone.epsilon == expected.everyone.epsilon
    for share in (0.5, 0.8):
        for kind in ("ex_post", "estimate"):
            epsilon, other = (getattr(run.share(share), kind).epsilon for run in (claims, expected))
            assert epsilon == pytest.approx(other, rel=0.002)
