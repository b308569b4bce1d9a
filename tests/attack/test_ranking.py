"""Rankings: correlations against scipy, and a small version of the whole."""

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, spearmanr

from bayesdp.attack import ranking
from bayesdp.attack.finding import Ranking


def test_spearman_and_area_against_scipy():
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 9, 30).astype(float), rng.normal(size=30)
    second += 0.2 * first
    assert ranking.spearman(first, second) == pytest.approx(spearmanr(first, second).statistic)
    assert ranking.area_under_curve(first, second) == pytest.approx(mannwhitneyu(first, second).statistic / 900)
    assert np.isnan(ranking.spearman(first, np.ones(30)))


def test_the_interval_tells_a_relation_from_none():
    rng = np.random.default_rng(1)
    epsilons = rng.random(40)
    related = ranking.ranked(rng, "people", ranking.ALL_RELEASES, "estimate", epsilons, epsilons + 0.3 * rng.random(40))
    unrelated = ranking.ranked(rng, "people", ranking.ALL_RELEASES, "estimate", epsilons, rng.random(40))
    assert related.as_expected
    assert related.low < related.correlation < related.high
    assert not unrelated.as_expected
    assert related.line().startswith("agrees")
    assert unrelated.line().startswith("UNCLEAR")
    forgotten = ranking.ranked(rng, "people", ranking.FINAL_MODEL, "estimate", epsilons, rng.random(40))
    assert not forgotten.agrees
    assert forgotten.as_expected


def test_halves_are_ranked_by_themselves():
    """Claims that only tell the halves apart, and nobody within them, do not pass."""
    rng = np.random.default_rng(3)
    half = np.repeat([0.0, 1.0], 30)
    epsilons, leaks = half + 0.1 * rng.random(60), half + 0.1 * rng.random(60)
    shuffled = rng.permutation(60)
    of_all, less, more = ranking.ranked_by_share(
        rng, "people", ranking.ALL_RELEASES, "estimate", epsilons[shuffled], leaks[shuffled]
    )
    assert of_all.as_expected
    assert not less.as_expected
    assert not more.as_expected
    assert (of_all.records, less.records, more.records) == (60, 30, 30)
    assert (less.subject, more.subject) == ("people, the half with less", "people, the half with more")


def test_a_nan_is_not_agreement():
    values = {"subject": "s", "attacker": "a", "figure": "f", "records": 3, "correlation": 0.0, "high": 1.0}
    assert not Ranking(low=float("nan"), **values).as_expected


def test_claims_and_leaks_of_a_small_training_agree():
    from bayesdp.attack.lab import AttackOptions

    found = list(ranking.attack(AttackOptions(seed=2, small=True)))
    shares = ("", ", the half with less", ", the half with more")
    assert {one.subject for one in found} == {who + share for who in ("audit records", "members") for share in shares}
    assert len(found) == 24
    by_ratio = [one for one in found if one.attacker.startswith("likelihood") and "half" not in one.subject]
    assert all(one.correlation > 0.6 for one in by_ratio)
