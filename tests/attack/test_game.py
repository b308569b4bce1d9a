"""Games: attackers are as good as theory says, and the bounds from them are bounds."""

import numpy as np
import pytest
from scipy.stats import binom, norm

from bayesdp import InvalidInputError
from bayesdp.attack import game
from bayesdp.attack.lower_bounds import at_least, at_most, guessing
from bayesdp.attack.one_run import guess_most_certain, one_run_epsilon, one_run_mu, one_run_p_value, refuted_mu
from bayesdp.attack.small_training import SmallTraining, Target, log_likelihood_ratios, two_classes
from bayesdp.profiles import gaussian_epsilon


def training(**changes):
    rows, labels = two_classes(np.random.default_rng(0), 20, 5)
    rows[:, -1] = 0.0
    settings = {"steps": 9, "sample_rate": 1.0, "noise_multiplier": 3.0, "learning_rate": 1.0, "start": np.zeros(5)}
    return SmallTraining(rows=rows, labels=labels, **settings | changes)


ALIGNED = Target(row=np.eye(5)[-1], label=1.0, gradient=5 * np.eye(5)[-1])


def test_the_likelihood_ratio_has_the_law_of_a_gaussian_release():
    """Exposure 1/3 in nine steps: N(mu^2/2, mu^2) with the record and N(-mu^2/2, mu^2) without, mu = 1."""
    subject, rng = training(), np.random.default_rng(1)
    for included, mean in ((True, 0.5), (False, -0.5)):
        ratios = log_likelihood_ratios(subject.run(rng, 4000, ALIGNED, included=included), 3.0, 1.0)
        assert ratios.mean() == pytest.approx(mean, abs=5 / np.sqrt(4000))
        assert ratios.std() == pytest.approx(1.0, rel=0.06)


def test_the_likelihood_ratio_has_mean_1_without_the_record_also_with_sampling():
    subject = training(sample_rate=0.3, noise_multiplier=1.0)
    released = subject.run(np.random.default_rng(2), 4000, ALIGNED, included=False)
    ratios = np.exp(log_likelihood_ratios(released, 1.0, 0.3))
    assert ratios.mean() == pytest.approx(1.0, abs=5 * ratios.std() / np.sqrt(4000))


def test_norms_are_those_of_the_gradients_that_were_summed():
    subject = training(noise_multiplier=0.5)
    released = subject.run(np.random.default_rng(3), 2)
    norms = subject.norms(released, subject.rows, subject.labels)
    assert norms.shape == (2, 9, 20)
    lengths = np.linalg.norm(subject.rows, axis=1)
    assert norms[0, 0] == pytest.approx(lengths / 2)  # weights of 0
    factors = np.minimum(norms, 1.0) / lengths
    assert -(factors * subject.labels) @ subject.rows == pytest.approx(released.known)


def test_clopper_pearson_covers():
    trials, alpha = 40, 0.02
    for probability in (0.05, 0.5, 0.9):
        chances = binom.pmf(np.arange(trials + 1), trials, probability)
        for side in (at_least, at_most):
            bounds = side(np.arange(trials + 1), trials, alpha)
            wrong = bounds > probability if side is at_least else bounds < probability
            assert chances[wrong].sum() <= alpha
            assert chances[wrong].sum() > alpha / 50 or (probability, side) == (0.05, at_most)


@pytest.mark.parametrize("mu", [0.0, 1.0, 2.0])
def test_bounds_from_guesses_are_bounds_and_not_far_off(mu):
    rng, above = np.random.default_rng(4), 0
    for _ in range(30):
        shown = guessing(rng.normal(mu, 1, 2000), rng.normal(0, 1, 2000), 1e-5, 0.05)
        truth = float(gaussian_epsilon(mu, 1e-5)) if mu else 0.0
        above += shown.epsilon > truth or shown.mu > mu
    assert above <= binom.isf(1e-4, 30, 0.1)
    if mu:
        assert mu - 0.35 < shown.mu
        assert shown.epsilon > 0.3 * mu
    assert shown.gaussian_epsilon == pytest.approx(float(gaussian_epsilon(shown.mu, 1e-5)) if shown.mu else 0.0)


# One run


def test_pure_guarantees_are_randomised_response():
    """With delta 0 the bound is a binomial tail, and exact for randomised response."""
    accuracy = np.e / (1 + np.e)
    assert one_run_p_value(100, 60, 50, 1.0) == pytest.approx(binom.sf(49, 60, accuracy))
    assert one_run_p_value(100, 60, 0, 1.0) == 1.0


def test_the_formula_by_enumeration():
    canaries, guesses, right, epsilon, delta = 40, 12, 9, 0.7, 1e-3
    accuracy = 1 / (1 + np.exp(-epsilon))
    at = binom(guesses, accuracy)
    most = max(sum(at.pmf(k) for k in range(right - i, right)) / i for i in range(1, right + 1))
    expected = sum(at.pmf(k) for k in range(right, guesses + 1)) + 2 * canaries * delta * most
    assert one_run_p_value(canaries, guesses, right, epsilon, delta) == pytest.approx(expected, rel=1e-12)


def test_epsilon_is_the_last_that_is_refuted():
    epsilon = one_run_epsilon(1000, 100, 95, 1e-5, 0.05)
    assert 1.5 < epsilon < np.log(95 / 5)
    assert one_run_p_value(1000, 100, 95, epsilon, 1e-5) <= 0.05
    assert one_run_p_value(1000, 100, 95, epsilon + 1e-5, 1e-5) > 0.05
    assert one_run_epsilon(1000, 100, 50, 1e-5, 0.05) == 0.0


def test_one_run_does_not_refute_what_is_true():
    """Randomised response with epsilon 1 on every canary: refuted at most with probability alpha."""
    rng = np.random.default_rng(5)
    rights = rng.binomial(200, np.e / (1 + np.e), 400)
    refuting = [right for right in np.unique(rights) if one_run_epsilon(200, 200, int(right), 0.0, 0.1) > 1.0]
    refuted = np.isin(rights, refuting).sum()
    assert refuted <= binom.isf(1e-4, 400, 0.1)


def test_a_gaussian_trade_off_is_refuted_rarely_and_shows_more():
    """Canaries of a mu-Gaussian mechanism, all of them independent: mu is above the truth with probability alpha."""
    rng, canaries, guesses, mu = np.random.default_rng(6), 300, 60, 1.5
    rights = []
    for _ in range(200):
        included = (rng.random(canaries) < 0.5).astype(float)
        rights.append(guess_most_certain(mu * included + rng.standard_normal(canaries), included, guesses))
    refuting = [right for right in np.unique(rights) if refuted_mu(canaries, guesses, int(right), mu, 0.1)]
    assert np.isin(rights, refuting).sum() <= binom.isf(1e-4, 200, 0.1)
    shown = one_run_mu(canaries, guesses, 58, 0.1)
    assert 0.3 < shown < mu
    assert refuted_mu(canaries, guesses, 58, shown, 0.1)
    assert not refuted_mu(canaries, guesses, 58, shown + 1e-5, 0.1)
    assert one_run_mu(canaries, guesses, 30, 0.1) == 0.0


def test_the_largest_sums_that_a_gaussian_allows_are_reached_with_one_canary():
    """With one canary and one guess the inequality is the trade-off itself: right with probability Phi(mu / 2)."""
    mu = 1.3
    right = norm.cdf(mu / 2)
    assert refuted_mu(1, 1, 1, mu, right + 1e-9)
    assert not refuted_mu(1, 1, 1, mu, right - 1e-9)


def test_the_most_certain_guesses():
    scores, included = np.array([3.0, -1.0, 2.0, -4.0, 0.1]), np.array([1.0, 1.0, 0.0, 0.0, 1.0])
    assert guess_most_certain(scores, included, 4) == 2


@pytest.mark.parametrize("wrong", [{"guesses": 20}, {"right": 9}, {"epsilon": -1.0}, {"canaries": 0}])
def test_refused(wrong):
    with pytest.raises(InvalidInputError, match=r"right=|epsilon=|canaries="):
        one_run_p_value(**{"canaries": 10, "guesses": 8, "right": 5, "epsilon": 1.0, **wrong})


# The whole


def test_claims_stand_and_the_likelihood_ratio_is_the_better_attacker():
    findings = list(game.play(np.random.default_rng(6), training(), ALIGNED, "aligned", 1500))
    assert [finding.stands for finding in findings] == [True] * 4
    ratio, as_gaussian, loss, _ = (finding.bound for finding in findings)
    assert ratio > 0.5
    assert as_gaussian > 0.55 * findings[0].claimed
    assert loss <= ratio + 0.5


def test_too_little_noise_breaks_the_claim():
    """The same attackers on runs with half the noise: the Gaussian reading passes the claim."""

    class Quiet(SmallTraining):
        def noise(self, rng, shape):
            return 0.5 * super().noise(rng, shape)

    right = training()
    quiet = Quiet(**{name: getattr(right, name) for name in right.__dataclass_fields__})
    assert not all(f.stands for f in game.play(np.random.default_rng(7), quiet, ALIGNED, "aligned", 1500))


def test_a_single_run_shows_something_and_not_too_much():
    pure, gaussian = game.single_run(np.random.default_rng(8), 1.0, 400)
    assert 0.3 < pure.bound < gaussian.bound < gaussian.claimed
    assert norm.cdf(1.0) > 0.8  # what a score of exposure 2 is right about
