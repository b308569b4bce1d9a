"""One-run auditing against JAX Privacy's: the same counts give the same epsilon."""

import numpy as np
import pytest
from jax_privacy import auditing

from bayesdp.attack.one_run import one_run_epsilon


@pytest.mark.parametrize(("canaries", "guesses", "right"), [(200, 40, 36), (1000, 100, 95), (1000, 500, 300)])
@pytest.mark.parametrize("delta", [1e-5, 1e-3])
def test_one_run(canaries, guesses, right, delta):
    """Half of the canaries are in; above the threshold lie ``right`` of these and ``guesses - right`` others."""
    within, without = (np.where(np.arange(canaries // 2) < above, 1.0, 0.0) for above in (right, guesses - right))
    theirs = auditing.CanaryScoreAuditor(within, without).epsilon_one_run(
        0.05, delta, threshold_strategy=auditing.Explicit(0.5)
    )
    assert one_run_epsilon(canaries, guesses, right, delta, 0.05) == pytest.approx(theirs, abs=1e-4)
