"""One-run auditing against JAX Privacy's: the same counts give the same epsilon."""

import numpy as np
import pytest
from jax_privacy import auditing

from bayesdp.attack.one_run import one_run_epsilon, one_run_mu
from bayesdp.profiles import gaussian_epsilon

COUNTS = pytest.mark.parametrize(("canaries", "guesses", "right"), [(200, 40, 36), (1000, 100, 95), (1000, 500, 300)])


def auditor(canaries, guesses, right):
    """Half of the canaries are in; above the threshold lie ``right`` of these and ``guesses - right`` others."""
    above = [np.where(np.arange(canaries // 2) < count, 1.0, 0.0) for count in (right, guesses - right)]
    return auditing.CanaryScoreAuditor(*above)


@COUNTS
@pytest.mark.parametrize("delta", [1e-5, 1e-3])
def test_one_run(canaries, guesses, right, delta):
    theirs = auditor(canaries, guesses, right).epsilon_one_run(0.05, delta, threshold_strategy=auditing.Explicit(0.5))
    assert one_run_epsilon(canaries, guesses, right, delta, 0.05) == pytest.approx(theirs, abs=1e-4)


@COUNTS
def test_one_run_with_a_gaussian_trade_off(canaries, guesses, right):
    theirs = auditor(canaries, guesses, right).epsilon_one_run_fdp(
        0.05, 1e-5, threshold_strategy=auditing.Explicit(0.5)
    )
    assert gaussian_epsilon(one_run_mu(canaries, guesses, right, 0.05), 1e-5) == pytest.approx(theirs, abs=1e-3)
