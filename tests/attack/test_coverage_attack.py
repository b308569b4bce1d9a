"""Coverage from end to end: a small version here, thousands of runs by `bayesdp attack coverage`."""

import numpy as np
import pytest

from bayesdp.attack.coverage import POPULATIONS, attack
from bayesdp.attack.lab import AttackOptions


@pytest.mark.parametrize("population", POPULATIONS, ids=lambda population: population.name)
def test_everybody_has_the_law_of_the_people_who_are_drawn(population):
    norms, weights = population.everybody()
    assert weights.sum() == pytest.approx(1)
    drawn = population.norms(np.random.default_rng(0), 200_000)
    assert (drawn**2).sum(axis=0).mean() == pytest.approx(weights @ (norms**2).sum(axis=0), rel=0.01)


def test_no_claim_is_too_small_more_often_than_it_may():
    findings = list(attack(AttackOptions(small=True)))
    assert len(findings) == 5 * len(POPULATIONS)
    assert [finding.line() for finding in findings if not finding.stands] == []
