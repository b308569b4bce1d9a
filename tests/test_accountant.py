"""The Bayesian accountant: against the published procedure, the moments accountant, and itself."""

import itertools
import json
import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesdp import BayesianAccountant, Laplace, LastLambdaWarning, SubsampledGaussian
from bayesdp.estimators import Beta, Dirichlet, StudentT
from oracle_files import rows

LEFT, RIGHT = np.array(list(itertools.combinations(range(50), 2))).T


def pair_distances(gradients):
    gram = gradients @ gradients.T
    return np.sqrt(np.maximum(0, np.diag(gram)[LEFT] + np.diag(gram)[RIGHT] - 2 * gram[LEFT, RIGHT]))


def published(total_steps, order):
    return BayesianAccountant(
        total_steps=total_steps,
        lambdas=[order],
        estimator=StudentT(gamma=2.0**-53),
        conversion="chernoff",
        as_published=True,
    )


@pytest.mark.parametrize("quantile", ["0.05", "0.25", "0.75", "0.95"])
def test_composition_as_published(quantile):
    oracle = {int(r["step"]): r for r in rows("composition_seed0.csv") if r["quant"] == quantile}
    rng = np.random.default_rng([0, ["0.05", "0.25", "0.75", "0.95"].index(quantile)])
    accountant = published(100, 16)
    for step in range(1, 101):
        gradients = rng.weibull(0.5, (50, 1000))
        clip = np.quantile(np.linalg.norm(gradients, axis=1), float(quantile))
        accountant.step(pair_distances(gradients), noise_std=2 * clip, sample_rate=1 / 1000)
        assert accountant.epsilon(1e-5) == pytest.approx(float(oracle[step]["ba_eps_1e-5"]), rel=1e-3)
        classic = step * SubsampledGaussian(sample_rate=1 / 1000).log_moment([1.0], [16])[0, 0]
        assert classic == pytest.approx(float(oracle[step]["ma_cost"]), rel=1e-3)


@pytest.mark.parametrize("mode", ["clip", "noclip"])
def test_sigma_epsilon_as_published(mode):
    quantiles = [".01", ".5", ".99"] if mode == "clip" else [".05", ".5", ".95"]
    for index, quantile in enumerate(map(float, quantiles)):
        rng = np.random.default_rng([0, 100 + index, mode == "clip"])
        gradients = rng.weibull(0.5, (50, 1000))
        norms = np.linalg.norm(gradients, axis=1)
        clip = np.quantile(norms, quantile)
        if mode == "clip":
            gradients = gradients * np.minimum(1, clip / norms)[:, None]
        distances = pair_distances(gradients)
        table = [r for r in rows("sigma_epsilon_seed0.csv") if r["mode"] == mode and float(r["quant"]) == quantile]
        assert table
        for row in table:
            accountant = published(1, 24)
            accountant.step(distances, noise_std=float(row["sigma"]) * 2 * clip, sample_rate=1 / 1000)
            assert accountant.costs[0] == pytest.approx(float(row["ba_cost"]), rel=1e-3)
            assert accountant.epsilon(1e-5) == pytest.approx(float(row["ba_eps_1e-5"]), rel=1e-3)


def test_lambda_epsilon():
    table = rows("lambda_epsilon.csv")
    minima = {}
    for clip in ("0.1", "0.7", "1.0"):
        here = [r for r in table if float(r["C"]) == float(clip)]
        orders = [int(r["lambda"]) for r in here]
        costs = 10_000 * SubsampledGaussian(sample_rate=64 / 60_000).log_moment([float(clip)], orders)[0]
        epsilons = (costs - math.log(1e-5)) / orders
        np.testing.assert_allclose(epsilons, [float(r["eps_1e-5"]) for r in here], rtol=1e-3)
        best = int(np.argmin(epsilons))
        minima[clip] = (orders[best], epsilons[best])
    assert minima["0.7"] == (26, pytest.approx(0.54315, abs=5e-6))
    assert minima["1.0"] == (12, pytest.approx(1.10647, abs=5e-6))
    assert minima["0.1"] == (49, pytest.approx(0.23782, abs=5e-6))


def test_the_moments_accountant_is_the_case_d_equals_clip():
    accountant = BayesianAccountant(total_steps=10_000, lambdas=range(1, 50), conversion="chernoff")
    for _ in range(10_000):
        accountant.step(np.full(3, 0.7), noise_std=1.0, sample_rate=64 / 60_000, clip=0.7)
    assert accountant.moments_accountant_epsilon(1e-5) == pytest.approx(0.54315, abs=5e-6)
    assert accountant.epsilon(1e-5) == pytest.approx(0.54315, abs=5e-6)
    assert accountant.best_lambda(1e-5) == 26


runs = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10_000),
        "steps": st.integers(1, 5),
        "spare": st.integers(0, 20),
        "noise": st.floats(0.5, 10),
        "rate": st.floats(1e-3, 1.0),
        "spread": st.floats(0.01, 2.0),
    }
)


def account(run, *, noise=None, steps=None, conversion="improved", total=None):
    rng = np.random.default_rng(run["seed"])
    steps = run["steps"] if steps is None else steps
    accountant = BayesianAccountant(
        total_steps=total or run["steps"] + run["spare"] + 1, lambdas=range(1, 17), conversion=conversion
    )
    for _ in range(steps):
        norms = np.exp(-0.5 + run["spread"] * rng.standard_normal(50))
        accountant.step(norms, noise_std=noise or run["noise"], sample_rate=run["rate"], clip=1.0)
    return accountant


@pytest.mark.filterwarnings("ignore::bayesdp.LastLambdaWarning")
@settings(max_examples=settings().max_examples * 40 // 100)
@given(runs, st.sampled_from(["improved", "chernoff"]))
def test_never_above_the_moments_accountant_once_gamma_is_accounted_for(run, conversion):
    accountant = account(run, conversion=conversion)
    usable = 1e-5 - accountant.total_gamma
    assert accountant.epsilon(1e-5) <= accountant.moments_accountant_epsilon(usable) * (1 + 1e-12)


@pytest.mark.filterwarnings("ignore::bayesdp.LastLambdaWarning")
@settings(max_examples=settings().max_examples * 40 // 100)
@given(runs)
def test_more_steps_and_smaller_delta_never_lower_epsilon(run):
    less, more = account(run), account(run, steps=run["steps"] + 1)
    assert more.epsilon(1e-5) >= less.epsilon(1e-5)
    assert less.epsilon(1e-7) >= less.epsilon(1e-5)
    assert more.delta(1.0) >= less.delta(1.0)


@pytest.mark.filterwarnings("ignore::bayesdp.LastLambdaWarning")
@settings(max_examples=settings().max_examples * 40 // 100)
@given(runs, st.floats(1.01, 3))
def test_less_noise_never_lowers_epsilon(run, factor):
    quiet, loud = account(run, noise=run["noise"] * factor), account(run)
    # Student-t is not monotone in its samples in general; with all exposures scaled alike it must be.
    assert loud.epsilon(1e-5) >= quiet.epsilon(1e-5) * (1 - 1e-9)


@pytest.mark.filterwarnings("ignore::bayesdp.LastLambdaWarning")
@settings(max_examples=settings().max_examples * 40 // 100)
@given(runs, st.floats(-9, -1), st.sampled_from(["improved", "chernoff"]))
def test_epsilon_and_delta_are_inverse(run, exponent, conversion):
    accountant = account(run, conversion=conversion)
    delta = 10.0**exponent
    epsilon = accountant.epsilon(delta)
    if epsilon > 0:
        assert accountant.delta(epsilon) == pytest.approx(delta, rel=1e-9)
        assert accountant.epsilon(accountant.delta(epsilon)) == pytest.approx(epsilon, rel=1e-9)
    else:
        assert accountant.delta(0.0) <= delta * (1 + 1e-12)
    assert 0 <= accountant.delta(0.0) <= 1


@pytest.mark.filterwarnings("ignore::bayesdp.LastLambdaWarning")
def test_the_improved_conversion_gains_what_theory_says():
    plain, better = (
        account({"seed": 1, "steps": 3, "spare": 0, "noise": 4, "rate": 0.1, "spread": 0.5}, conversion=c)
        for c in ("chernoff", "improved")
    )
    for order, gain in ((1, 1.39), (4, 0.63), (8, 0.39)):
        a, b = (BayesianAccountant(total_steps=1, lambdas=[order], conversion=c) for c in ("chernoff", "improved"))
        for accountant in (a, b):
            accountant.step([0.1, 0.5, 0.9], noise_std=1.0, sample_rate=1.0, clip=1.0)
        assert a.epsilon(1e-5) - b.epsilon(1e-5) == pytest.approx(gain, abs=0.005)
    assert better.epsilon(1e-5) < plain.epsilon(1e-5)


def test_a_larger_planned_number_of_steps_is_valid_and_more_steps_are_refused():
    accountant = BayesianAccountant(total_steps=2)
    for _ in range(2):
        accountant.step([0.1, 0.2, 0.9], noise_std=1.0, sample_rate=0.1, clip=1.0)
    before = accountant.state_dict()
    with pytest.raises(ValueError, match=r"steps=3: expected at most total_steps=2"):
        accountant.step([0.1, 0.2, 0.9], noise_std=1.0, sample_rate=0.1, clip=1.0)
    assert accountant.state_dict() == before


def test_hoelder_composition_dominates_the_product_inside_the_mean():
    """For fixed exposures E e^{sum_t kappa_t} <= prod (E e^{T kappa_t})^{1/T}, with plain means as estimates."""
    rng = np.random.default_rng(0)
    exposures = np.exp(rng.normal(-1, 0.5, (6, 400)))
    costs = np.stack([SubsampledGaussian(sample_rate=0.1).log_moment(e, [8])[:, 0] for e in exposures])
    inside = math.log(np.exp(costs.sum(axis=0)).mean())
    holder = sum(math.log(np.exp(6 * c).mean()) / 6 for c in costs)
    assert inside <= holder
    accountant = BayesianAccountant(total_steps=6, lambdas=[8])
    for e in exposures:
        accountant.step(e, noise_std=1.0, sample_rate=0.1)
    assert accountant.costs[0] >= holder


def test_gamma_is_charged_per_step_and_order_in_both_directions():
    accountant = BayesianAccountant(total_steps=100, lambdas=range(1, 11), estimator=StudentT(gamma=1e-9))
    assert accountant.total_gamma == pytest.approx(1e-6)
    accountant.step([0.1, 0.2, 0.9], noise_std=10.0, sample_rate=0.1, clip=1.0)
    assert accountant.delta(100.0) == pytest.approx(1e-6, rel=1e-6)
    with pytest.raises(ValueError, match="delta=1e-06: expected more than the total gamma"):
        accountant.epsilon(1e-6)
    labelled = BayesianAccountant(
        total_steps=100, lambdas=range(1, 11), estimator=StudentT(gamma=1e-9), as_published=True
    )
    labelled.step([0.1, 0.2, 0.9], noise_std=10.0, sample_rate=0.1, clip=1.0)
    assert labelled.total_gamma == pytest.approx(1e-9)


def test_nothing_released_costs_nothing():
    accountant = BayesianAccountant(total_steps=10)
    assert accountant.epsilon(1e-5) == 0
    assert accountant.delta(0.0) == pytest.approx(accountant.total_gamma)


def test_the_last_order_is_warned_about_and_noted():
    accountant = BayesianAccountant(total_steps=1, lambdas=range(1, 5))
    accountant.step([0.1, 0.2, 0.9], noise_std=10.0, sample_rate=0.1, clip=1.0)
    with pytest.warns(LastLambdaWarning, match="lambda=4 is the last"):
        accountant.epsilon(1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        claim = accountant.claim(1e-5)
    assert any("last of the grid" in note for note in claim.notes)
    assert claim.order == 4


def test_the_state_continues_bit_for_bit():
    rng = np.random.default_rng(3)
    norms = np.exp(rng.normal(-1, 1, (20, 40)))
    settings_ = {"total_steps": 25, "lambdas": range(1, 33)}
    whole = BayesianAccountant(**settings_)
    first = BayesianAccountant(**settings_)
    for row in norms[:11]:
        first.step(row, noise_std=1.3, sample_rate=0.05, clip=1.0)
    second = BayesianAccountant(**settings_)
    second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    for row in norms[11:]:
        second.step(row, noise_std=1.3, sample_rate=0.05, clip=1.0)
    for row in norms:
        whole.step(row, noise_std=1.3, sample_rate=0.05, clip=1.0)
    assert whole.state_dict() == second.state_dict()
    assert (whole.costs == second.costs).all()


def test_the_state_of_an_unclipped_run_is_json_too():
    accountant = BayesianAccountant(total_steps=3)
    accountant.step([0.1, 0.2, 0.9], noise_std=1.0, sample_rate=0.1)
    state = json.loads(json.dumps(accountant.state_dict(), allow_nan=False))
    other = BayesianAccountant(total_steps=3)
    other.load_state_dict(state)
    assert other.moments_accountant_epsilon(1e-5) == math.inf


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"total_steps": 9}, "total_steps=9"),
        ({"gamma": 0.5}, "gamma=0.5"),
        ({"steps": 99}, "steps=99"),
        ({"steps": -1}, "steps=-1"),
        ({"costs": [1.0]}, "costs="),
        ({"costs": "x"}, "costs="),
        ({"moments_accountant": None}, "moments_accountant=None"),
        ({"version": 2}, "version=2"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(change, message):
    accountant = BayesianAccountant(total_steps=5, lambdas=[1, 2])
    accountant.step([0.1, 0.2, 0.9], noise_std=1.0, sample_rate=0.1, clip=1.0)
    before = accountant.state_dict()
    with pytest.raises(ValueError, match=message):
        accountant.load_state_dict({**before, **change})
    assert accountant.state_dict() == before


GOOD = {"distances": [0.1, 0.5, 0.9], "noise_std": 1.0, "sample_rate": 0.1, "clip": 1.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sample_rate": 1.5}, r"sample_rate=1.5: expected a rate in \(0, 1\]"),
        ({"sample_rate": 0}, "sample_rate=0"),
        ({"noise_std": 0}, "noise_std=0"),
        ({"noise_std": math.inf}, "noise_std=inf"),
        ({"clip": -1}, "clip=-1"),
        ({"distances": [0.1, math.nan, 0.2]}, r"distances\[1\]=nan"),
        ({"distances": [0.1, math.inf, 0.2]}, r"distances\[1\]=inf"),
        ({"distances": [0.1, -0.1, 0.2]}, r"distances\[1\]=-0.1"),
        ({"distances": [0.1, 0.2]}, "samples=2"),
        ({"distances": []}, "samples=0"),
        ({"distances": ["a", "b", "c"]}, "distances="),
    ],
)
def test_bad_steps_are_refused_and_change_nothing(change, message):
    for as_published in (False, True):
        accountant = BayesianAccountant(total_steps=5, as_published=as_published)
        accountant.step(**GOOD)
        before = accountant.state_dict()
        with pytest.raises(ValueError, match=message):
            accountant.step(**{**GOOD, **change})
        assert accountant.state_dict() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"total_steps": 0}, "total_steps=0"),
        ({"total_steps": 2.5}, "total_steps=2.5"),
        ({"total_steps": 1, "lambdas": [0]}, "lambdas=0.0"),
        ({"total_steps": 1, "lambdas": []}, r"lambdas=\[\]"),
        ({"total_steps": 1, "conversion": "magic"}, "conversion='magic'"),
        ({"total_steps": 1, "estimator": "t"}, "estimator='t'"),
        ({"total_steps": 1, "estimator": Beta(), "as_published": True}, "estimator='Beta'"),
    ],
)
def test_bad_settings_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        BayesianAccountant(**arguments)


@pytest.mark.parametrize("delta", [0, 1, -1, 2, math.nan])
def test_bad_delta_is_refused(delta):
    with pytest.raises(ValueError, match="delta="):
        BayesianAccountant(total_steps=1).epsilon(delta)


def test_other_mechanisms_and_estimators():
    accountant = BayesianAccountant(total_steps=2, lambdas=[1, 2, 8], estimator=Dirichlet(gamma=1e-12))
    accountant.step_with(Laplace(), [0.1, 0.1, 0.3, 0.3, 0.5], bound=0.5)
    ceiling = Laplace().log_moment([0.5], [1, 2, 8])[0]
    assert (accountant.costs <= ceiling * (1 + 1e-12)).all()
    assert (accountant.costs > Laplace().log_moment([0.3], [1, 2, 8])[0]).all()
    binary = BayesianAccountant(total_steps=1, lambdas=[4], estimator=Beta(gamma=1e-12))
    binary.step(np.r_[np.zeros(50), np.ones(2)], noise_std=2.0, sample_rate=0.1, clip=1.0)
    assert 0 < binary.costs[0] < SubsampledGaussian(sample_rate=0.1).log_moment([0.5], [4])[0, 0]


def test_unclipped_steps_have_no_worst_case():
    accountant = BayesianAccountant(total_steps=1)
    accountant.step([0.1, 0.2, 0.9], noise_std=1.0, sample_rate=0.1)
    claim = accountant.claim(1e-5)
    assert math.isfinite(claim.epsilon)
    assert claim.worst_case.epsilon == math.inf
    assert claim.to_dict()["worst_case"]["epsilon"] is None


def test_the_claim_names_everything():
    accountant = BayesianAccountant(total_steps=5, as_published=True)
    accountant.step(**GOOD)
    claim = accountant.claim(1e-5)
    text = str(claim)
    assert claim.kind == "model-based"
    assert claim.private
    for part in ("On average", "as published", "delta = 1e-05", "Private", "It assumes", "For everyone"):
        assert part in text
    assert "as published" not in str(BayesianAccountant(total_steps=5, audit=True).claim(1e-5))
    json.dumps(claim.to_dict(), allow_nan=False)


def test_anything_that_becomes_an_array_is_accepted():
    class Tensor:
        def __array__(self, dtype=None, copy=None):
            return np.array([0.1, 0.5, 0.9], dtype=dtype)

    class WithGraph:
        """Like a torch tensor that requires a gradient."""

        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("call detach first")

        def detach(self):
            return Tensor()

    results = []
    for distances in ([0.1, 0.5, 0.9], (0.1, 0.5, 0.9), np.array([[0.1], [0.5], [0.9]]), Tensor(), WithGraph()):
        accountant = BayesianAccountant(total_steps=1)
        accountant.step(distances, noise_std=1.0, sample_rate=0.1, clip=1.0)
        results.append(accountant.costs)
    assert all((r == results[0]).all() for r in results)


@pytest.mark.parametrize("m", [7, 50, 1001])
def test_equal_exposures_are_one_value_for_estimators_that_count(m):
    exposures = np.where(np.random.default_rng(0).random(m) < 0.3, 0.5, 0.1)
    results = []
    for estimator in (Beta(gamma=1e-9), Dirichlet(gamma=1e-9)):
        accountant = BayesianAccountant(total_steps=100, estimator=estimator)
        accountant.step(exposures, noise_std=1.0, sample_rate=0.3, clip=0.5)
        results.append(accountant.costs)
    assert (results[1] >= results[0] * (1 - 1e-12)).all()  # two categories: Dirichlet bounds Beta


def test_a_cost_that_is_no_number_is_never_read_as_none():
    class Broken(Laplace):
        def forward(self, exposure, lambdas):
            return np.full((np.size(exposure), np.size(lambdas)), np.nan)

    accountant = BayesianAccountant(total_steps=2, as_published=True)
    with pytest.raises(ValueError, match="log_values=nan"):
        accountant.step_with(Broken(), [0.1, 0.2, 0.3])
    assert accountant.steps == 0


def test_exposures_above_their_bound_are_refused_as_published_too():
    for as_published in (False, True):
        accountant = BayesianAccountant(total_steps=2, as_published=as_published)
        with pytest.raises(ValueError, match=r"bound=1\.0"):
            accountant.step_with(Laplace(), [5.0, 5.0, 6.0], bound=1.0)


@pytest.mark.parametrize("state", [None, [], "state"])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(ValueError, match="state="):
        BayesianAccountant(total_steps=1).load_state_dict(state)


@pytest.mark.parametrize("costs", [[[1.0]] * 64, ["1"] * 64, [math.nan] * 64, [-1.0] * 64])
def test_damaged_costs_are_refused(costs):
    accountant = BayesianAccountant(total_steps=1)
    with pytest.raises(ValueError, match="costs"):
        accountant.load_state_dict({**accountant.state_dict(), "costs": costs})


@pytest.mark.parametrize(
    "distances",
    [
        [1j, 2j, 3j],
        np.array(["1", "2", "3"]),
        np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0]),
        [10**400, 1, 2],
        [[1], [2, 3]],
    ],
)
def test_what_are_no_real_numbers_is_refused(distances):
    with pytest.raises(ValueError, match="distances="):
        BayesianAccountant(total_steps=1).step(distances, noise_std=1.0, sample_rate=0.1, clip=1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"noise_std": 10**400}, "noise_std="),
        ({"noise_std": "1"}, "noise_std='1'"),
        ({"sample_rate": "0.5"}, "sample_rate='0.5'"),
    ],
)
def test_settings_that_are_no_floats_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        BayesianAccountant(total_steps=1).step(**{**GOOD, **arguments})


def test_numpy_scalars_are_kept_as_plain_floats():
    accountant = BayesianAccountant(total_steps=np.int64(3), estimator=StudentT(gamma=np.float32(1e-5)))
    json.dumps(accountant.state_dict())
    assert type(SubsampledGaussian(sample_rate=np.float32(0.5)).sample_rate) is float


def test_a_mechanism_is_asked_for():
    with pytest.raises(ValueError, match="mechanism=None"):
        BayesianAccountant(total_steps=1).step_with(None, [1.0, 2.0, 3.0])
