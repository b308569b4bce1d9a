"""Private selection: the bound against brute force on small mechanisms, hostile scores, and dp-accounting."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import rdp_privacy_accountant as renyi
from scipy.special import ndtr, ndtri

from bayesdp.guarantees.clip_bound import ClipBound
from bayesdp.guarantees.selection import (
    GaussianTrial,
    SelectedBound,
    Selection,
    renyi_selection_epsilon,
    trial_epsilon,
)
from bayesdp.guarantees.worst_case import to_dp_event
from bayesdp.profiles import gaussian_epsilon


class Discrete:
    """The exact profile of two laws with finitely many outcomes: the larger direction."""

    def __init__(self, first, second):
        self.laws = np.array(first), np.array(second)

    def deltas(self, epsilons, delta):
        p, q = self.laws
        ratio = np.exp(np.minimum(epsilons, 700.0))[:, None]
        return np.maximum(np.maximum(p - ratio * q, 0).sum(1), np.maximum(q - ratio * p, 0).sum(1))

    def epsilons(self, deltas):
        p, q = self.laws
        return np.full(len(deltas), np.abs(np.log(p / q)).max() if q.all() else math.inf)


def best_of(law, order, mean):
    """The law of the best of a geometric number of draws; ``order`` has the outcomes from worst to best."""
    stop = 1 / mean
    # Pr[all draws at most as good as the j-th] = E[F^K], for the geometric number K
    reached = np.cumsum(law[list(order)])
    at_most = stop * reached / (1 - (1 - stop) * reached)
    found = np.zeros(len(law))
    found[list(order)] = np.diff(at_most, prepend=0.0)
    return found


def hockey_stick(p, q, epsilon):
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def test_no_order_of_outcomes_exceeds_the_bound():
    rng = np.random.default_rng(0)
    closest = 0.0
    for _ in range(5):
        p, q = (rng.dirichlet(np.full(4, 2.0)) + 0.02 for _ in range(2))
        p, q = p / p.sum(), q / q.sum()
        for mean in (1.5, 20.0):
            bound = SelectedBound(Discrete(p, q), Selection(mean=mean))
            epsilons = np.array([0.0, 0.3, 1.0, 2.0, 3.0])
            claimed = bound.deltas(epsilons, 1e-5)
            for order in itertools.permutations(range(4)):
                first, second = best_of(p, order, mean), best_of(q, order, mean)
                exact = [
                    max(hockey_stick(first, second, epsilon), hockey_stick(second, first, epsilon))
                    for epsilon in epsilons
                ]
                assert (np.array(exact) <= claimed).all()
                closest = max(closest, float((np.array(exact) / np.maximum(claimed, 1e-9)).max()))
    assert closest > 0.6  # the bound is not empty


def drawn_one_by_one(law, scores, mean):
    """The law of the best of a geometric number of draws, summed over their number; of equal scores the first wins."""
    stop, scores = 1 / mean, np.array(scores)
    below = np.array([law[scores < score].sum() for score in scores])[:, None]
    at_most = np.array([law[scores <= score].sum() for score in scores])[:, None]
    found = np.zeros(len(law))
    for trials in range(1, math.ceil(-40 / math.log1p(-stop))):
        winner = np.arange(trials)  # those before it score less, those after it no more
        found += (
            stop * (1 - stop) ** (trials - 1) * law * (below**winner * at_most ** (trials - 1 - winner)).sum(axis=1)
        )
    return found


def test_scores_with_ties_and_outcomes_that_give_someone_away_keep_the_bound():
    """Enumerated without the formula of the docstring: every score on three outcomes, one possible in one law only."""
    rng = np.random.default_rng(2)
    epsilons = np.array([0.0, 0.4, 1.5, 4.0])
    for mean in (1.5, 6.0):
        p, q = rng.dirichlet(np.ones(3), 2)
        q = np.array([0.0, *q[1:] / q[1:].sum()])
        claimed = SelectedBound(Discrete(p, q), Selection(mean=mean)).deltas(epsilons, 1e-5)
        for scores in itertools.product(range(3), repeat=3):
            first, second = (drawn_one_by_one(law, scores, mean) for law in (p, q))
            assert first.sum() == pytest.approx(1, abs=1e-9)
            for epsilon, most in zip(epsilons, claimed, strict=True):
                assert max(hockey_stick(first, second, epsilon), hockey_stick(second, first, epsilon)) <= most


def test_an_epsilon_of_the_outcome_stays_ex_post_at_its_price():
    """epsilon(w) + log R at delta, for every score, where epsilon(w) uses up delta / E[K] of a trial exactly."""
    rng = np.random.default_rng(3)
    needed = 0
    for mean, delta in itertools.product((2.0, 8.0), (0.02, 0.2)):
        p, q = rng.dirichlet(np.full(3, 2.0), 2) + 0.02
        p, q = p / p.sum(), q / q.sum()
        lost = np.minimum(rng.dirichlet(np.ones(3)) * delta / mean, 0.9 * p)
        ex_post = np.log((p - lost) / q)  # its hockey-stick form is the sum of ``lost``
        price = SelectedBound(Discrete(p, q), Selection(mean=mean)).log_ratio
        for scores in itertools.product(range(3), repeat=3):
            first, second = (drawn_one_by_one(law, scores, mean) for law in (p, q))
            assert np.maximum(first - np.exp(ex_post + price) * second, 0).sum() <= delta
            needed += np.maximum(first - np.exp(ex_post) * second, 0).sum() > delta
    assert needed > 0  # without the price it would not hold


@pytest.mark.parametrize("mean", [2.0, 5.0, 25.0])
@pytest.mark.parametrize("mu", [0.03, 0.3, 1.5])
def test_hostile_scores_of_gaussian_trials(mu, mean):
    """A score that puts the outcomes that say most at the place where the ratio of densities is largest."""
    ends = np.linspace(-8, 8 + mu, 20001)
    p, q = np.diff(ndtr(ends - mu)), np.diff(ndtr(ends))
    delta = 1e-5
    bound = SelectedBound(GaussianTrial(mu), Selection(mean=mean))
    claimed = float(bound.epsilons([delta])[0])
    closest = 0.0
    for tail, share in itertools.product((3e-6, 1e-5, 5e-5), (0.2, 0.5, 0.8, 0.95)):
        far = np.searchsorted(ends, ndtri(1 - tail))
        near = np.searchsorted(ends, ndtri(1 - tail - share))
        order = [*range(near, far), *range(far, len(p)), *range(near)]  # telling ones first, then the most telling
        first, second = best_of(p, order, mean), best_of(q, order, mean)
        assert hockey_stick(first, second, claimed) <= delta
        low, high = 0.0, claimed
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (middle, high) if hockey_stick(first, second, middle) > delta else (low, middle)
        closest = max(closest, high / claimed)
    assert closest > 0.9


def test_one_trial_costs_what_it_costs():
    bound = SelectedBound(GaussianTrial(0.2), Selection(mean=1))
    assert bound.log_ratio < 1e-11
    assert float(bound.epsilons([1e-5])[0]) == pytest.approx(float(gaussian_epsilon(0.2, 1e-5)), rel=1e-6)


def test_a_profile_gives_what_the_formula_gives():
    """The trade-off function from lines of the profile is that of the Gaussian, a little above."""
    steps = [(20.0, 1.0, 10)]
    exact = SelectedBound(GaussianTrial(math.sqrt(10) / 20), Selection(mean=4))
    lines = SelectedBound(ClipBound.of(steps), Selection(mean=4))
    for delta in (1e-3, 1e-5, 1e-8):
        low, high = float(exact.epsilons([delta])[0]), float(lines.epsilons([delta])[0])
        assert low <= high * (1 + 1e-6) <= low * 1.01


def test_epsilon_and_delta_belong_together():
    bound = SelectedBound(GaussianTrial(0.3), Selection(mean=6))
    for delta in (1e-2, 1e-5, 1e-9):
        epsilon = float(bound.epsilons([delta])[0])
        assert delta * 0.99 <= float(bound.deltas(np.array([epsilon]), delta)[0]) <= delta
    assert float(bound.deltas(np.array([0.0]), 1e-5)[0]) <= 1
    assert (np.diff(bound.epsilons([1e-3, 1e-5, 1e-7])) > 0).all()


@pytest.mark.parametrize("mean", [1 + 2.0**-52, 2.0, 1e6])
@pytest.mark.parametrize("mu", [1e-12, 1.0, 40.0, 1e3, 2e6])
def test_extreme_trials_have_a_bound_above_that_of_one_trial(mu, mean):
    bound = SelectedBound(GaussianTrial(mu), Selection(mean=mean))
    with np.errstate(all="raise", under="ignore"):
        epsilons = bound.epsilons([0.5, 1e-5, 1e-298])
    alone = np.array([gaussian_epsilon(mu, delta) for delta in (0.5, 1e-5, 1e-298)])
    assert (epsilons >= alone * (1 - 1e-7)).all()
    assert not np.isnan(epsilons).any()
    assert np.isfinite(epsilons[:2]).all() == (mu <= 1e6)


def test_a_trial_that_may_show_everything_has_an_infinite_epsilon():
    p, q = np.array([0.5, 0.5]), np.array([0.0, 1.0])
    bound = SelectedBound(Discrete(p, q), Selection(mean=3))
    assert bound.epsilons([1e-5]) == math.inf
    assert bound.deltas(np.array([5.0]), 1e-5) >= hockey_stick(best_of(p, [1, 0], 3), best_of(q, [1, 0], 3), 5.0)


def test_more_trials_cost_more():
    costs = [
        float(SelectedBound(GaussianTrial(0.1), Selection(mean=mean)).epsilons([1e-5])[0]) for mean in (1, 2, 5, 30)
    ]
    assert (np.diff(costs) > 0).all()


@pytest.mark.parametrize("mean", [2.0, 10.0])
def test_less_than_by_renyi_divergences(mean):
    """dp-accounting's bound is another upper bound of the same thing, and a looser one for small epsilon."""
    selection, mu = Selection(mean=mean), 0.1
    ours = float(SelectedBound(GaussianTrial(mu), selection).epsilons([1e-5])[0])
    theirs = renyi_selection_epsilon(selection, [(1 / mu, 1.0, 1)], 1e-5)
    assert ours < theirs < 3 * ours


@pytest.mark.parametrize("steps", [[(10.0, 1.0, 1)], [(40.0, 1.0, 1), (30.0, 1.0, 60)], [(1.0, 0.01, 500)]])
def test_the_renyi_bound_is_that_of_the_event_of_dp_accounting(steps):
    """``rdp_epsilon`` of a choice: what dp-accounting has for RepeatAndSelectDpEvent, to rounding up."""
    for mean in (2.0, 5.0, 30.0):
        accountant = renyi.RdpAccountant()
        accountant.compose(RepeatAndSelectDpEvent(to_dp_event(steps), mean, 1.0))  # shape 1: a geometric number
        theirs = accountant.get_epsilon(1e-5)
        assert theirs <= renyi_selection_epsilon(Selection(mean=mean), steps, 1e-5) * (1 + 1e-9) <= theirs * (1 + 1e-6)


def test_renyi_bound_of_dp_accounting_against_brute_force():
    """Its formula (Papernot & Steinke 2022, Theorem 2) holds for every order of outcomes of small mechanisms."""
    rng = np.random.default_rng(1)
    orders = np.array([1.5, 2.0, 4.0, 16.0])
    for _ in range(10):
        p, q = (rng.dirichlet(np.full(3, 3.0)) + 0.05 for _ in range(2))
        p, q = p / p.sum(), q / q.sum()
        single = np.maximum(_divergences(p, q, orders), _divergences(q, p, orders))
        claimed = renyi._compute_rdp_repeat_and_select(orders, single, 4.0, 1.0)
        for order in itertools.permutations(range(3)):
            first, second = best_of(p, order, 4.0), best_of(q, order, 4.0)
            assert (_divergences(first, second, orders) <= claimed + 1e-12).all()


def _divergences(p, q, orders):
    return np.array([math.log((p**order * q ** (1 - order)).sum()) / (order - 1) for order in orders])


@pytest.mark.parametrize(("target", "mean"), [(0.1, 5.0), (0.65, 3.0), (4.0, 10.0), (1e5, 5.0)])
def test_calibration_ends_on_the_private_side(target, mean):
    selection = Selection(mean=mean)
    epsilon = trial_epsilon(selection, target, 1e-5)
    low, high = 0.0, 1e3
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_epsilon(middle, 1e-5) <= epsilon else (low, middle)
    assert 0.998 * target <= float(SelectedBound(GaussianTrial(low), selection).epsilons([1e-5])[0]) <= target


@pytest.mark.parametrize(("target", "delta"), [(0.5, 0.9), (0.5, 0.3), (1e-6, 1e-5)])
def test_a_target_that_no_epsilon_of_a_trial_leads_to_is_refused(target, delta):
    """At a large delta one epsilon, 0, belongs to many noises; a tiny target is below what rounding up adds."""
    with pytest.raises(ValueError, match="target_epsilon="):
        trial_epsilon(Selection(mean=5), target, delta)


def test_the_number_of_trials_is_geometric():
    selection = Selection(mean=4)
    draws = (np.arange(100_000) + 0.5) / 100_000
    trials = np.array([selection.trials(draw) for draw in draws])
    assert trials.min() == 1
    assert trials.mean() == pytest.approx(4, rel=1e-3)
    assert (trials == 1).mean() == pytest.approx(0.25, abs=1e-4)
    assert (trials == 3).mean() == pytest.approx(0.75**2 / 4, abs=1e-4)
    assert {Selection(mean=1).trials(draw) for draw in (0.0, 0.5, 0.999)} == {1}


def test_what_is_no_selection_is_refused():
    for mean in (0.5, math.nan, math.inf, 2e6):
        with pytest.raises(ValueError, match="mean="):
            Selection(mean=mean)
    for exposure in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="exposure="):
            Selection(mean=3, exposure=exposure)
    for selection in (Selection(mean=3), Selection(mean=3, exposure=0.1)):
        assert Selection.from_json(selection.to_json()) == selection


def test_renyi_divergences_of_trials_whose_plans_differ_are_taken_together():
    """Two plans with the same epsilon, at different orders: a trial may have either, so theirs is larger than both."""
    steps, delta, mean = [(0.8, 0.01, 1000)], 1e-5, 5.0
    alone = renyi_selection_epsilon(Selection(mean=mean), steps, delta)
    low, high = 0.01, 3.0
    for _ in range(30):
        middle = (low + high) / 2
        below = renyi_selection_epsilon(Selection(mean=mean), [(1 / middle, 1.0, 1)], delta) < alone
        low, high = (middle, high) if below else (low, middle)
    accountants = [renyi.RdpAccountant() for _ in range(3)]
    for accountant, trial in zip(accountants, (steps, [(1 / low, 1.0, 1)]), strict=False):
        accountant.compose(to_dp_event(trial))
    together = accountants[2]
    curve = np.maximum(accountants[0]._rdp, accountants[1]._rdp)
    together._rdp = renyi._compute_rdp_repeat_and_select(together._orders, curve, mean, 1.0)
    found = renyi_selection_epsilon(Selection(mean=mean, exposure=low), steps, delta)
    assert found == pytest.approx(together.get_epsilon(delta), rel=1e-6)
    assert found > 1.01 * alone
    # An exposure that reveals nothing beside the plan adds nothing.
    assert renyi_selection_epsilon(Selection(mean=mean, exposure=1e-6), steps, delta) == pytest.approx(alone, rel=1e-9)
