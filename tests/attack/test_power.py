"""Planted bugs: every attacker finds its bug in a broken copy and is silent on the right one; p-values are honest."""

import numpy as np
import pytest
from scipy.stats import kstest

from bayesdp import Ledger
from bayesdp.attack import detectors, planted
from bayesdp.attack.power import BUGS, LEVEL, detect
from bayesdp.estimators import order_statistic_rank

SLOW = {"a budget by PLD with adaptive settings"}


@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.name not in SLOW], ids=lambda bug: bug.name)
def test_found_in_a_broken_copy_and_not_in_the_right_one(bug):
    found = detect(bug, 7, BUGS.index(bug), small=True)
    assert found.caught == found.trials == 2
    assert found.false_alarms == 0


@pytest.mark.parametrize("look", [detectors.little_noise, detectors.missing_steps, detectors.audit_trained_on])
def test_p_values_are_uniform_on_the_right_mechanism(look):
    values = [look(np.random.default_rng([1, number]), False) for number in range(40)]
    assert kstest(values, "uniform").pvalue > 1e-4


def test_what_was_replaced_is_put_back():
    with pytest.raises(RuntimeError), planted.gamma_dropped():
        raise RuntimeError
    from bayesdp.claims import shares

    assert shares.order_statistic_rank is order_statistic_rank
    with planted.rounding_down():
        low = one_cost()
    assert low < one_cost()


def one_cost():
    ledger = Ledger()
    ledger.step(noise_std=1.0, sample_rate=1.0, clip=1.0, audit=[0.3])
    return ledger.costs([4.0])[0, 0]


def test_every_bug_of_the_list_is_planted():
    assert len({bug.name for bug in BUGS}) == len(BUGS) == 12
    assert LEVEL <= 0.01
