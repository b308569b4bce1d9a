"""Lower bounds beside claims: below what is known exactly, close to it, and below every claim."""

from pathlib import Path

import numpy as np
import pytest

import bayesdp
from bayesdp import Budget, InvalidInputError, Ledger, Plan
from bayesdp.attack.lab import AttackOptions
from bayesdp.attack.tightness import attack, lowest_average, lowest_epsilon, tightness
from bayesdp.guarantees.selection import Selection
from bayesdp.profiles import gaussian_delta, gaussian_epsilon


@pytest.mark.parametrize("direction", ["both", "record in", "record out"])
def test_without_sampling_it_is_just_below_the_gaussian_epsilon(direction):
    exact = gaussian_epsilon(np.sqrt(10 * 0.2**2 + 5 * 0.1**2), 1e-5)
    assert 0.995 * exact < lowest_epsilon([(0.2, 1.0, 10), (0.1, 1.0, 5)], 1e-5, direction) < exact


def test_with_sampling_it_is_just_below_the_worst_case():
    claimed = bayesdp.epsilon(noise_multiplier=2.0, sample_rate=0.1, steps=40, delta=1e-5).epsilon
    assert 0.98 * claimed < lowest_epsilon([(0.5, 0.1, 40)], 1e-5, "both") < claimed
    assert lowest_epsilon([(0.5, 0.1, 40)], 1e-5, "record out") < 0.9 * claimed
    assert lowest_epsilon([], 1e-5, "both") == 0


def test_claims_of_a_ledger_stand(tmp_path):
    rng = np.random.default_rng(0)
    settings = {"noise_std": 3.0, "sample_rate": 0.2, "clip": 1.0}
    people = rng.lognormal(-1.5, 0.5, 60)
    with Ledger.create(tmp_path / "run.ledger", plan=Plan(steps=20, **settings)) as ledger:
        for _ in range(20):
            ledger.step(**settings, audit=people)
    findings = list(attack(AttackOptions(ledgers=(tmp_path / "run.ledger",), delta=1e-4)))
    assert [finding.line() for finding in findings if not finding.stands] == []
    assert [finding.claim for finding in findings][:2] == ["everyone", "everyone who was left out"]
    for finding in findings:
        assert finding.bound > (0.95 if finding.note.endswith("rounding") else 0.5) * finding.claimed
    assert {(finding.claim, finding.kind) for finding in findings} >= {
        ("50 % of people, ex-post", "ex-post"),
        ("50 % of people, estimate", "estimate"),
        ("50 % of members, ex-post", "ex-post"),
    }


@pytest.fixture(scope="module")
def unsampled():
    rng = np.random.default_rng(1)
    settings = {"noise_std": 10.0, "sample_rate": 1.0, "clip": 1.0}
    people = np.minimum(rng.lognormal(-1.0, 0.6, 800), 1.0)
    ledger = Ledger(plan=Plan(steps=20, **settings))
    for _ in range(20):
        ledger.step(**settings, audit=people)
    return list(tightness(ledger, "a run", 1e-4))


def test_every_claim_of_a_run_without_sampling_has_its_bound(unsampled):
    assert [finding.line() for finding in unsampled if not finding.stands] == []
    claims = [finding.claim for finding in unsampled]
    for share in ("50 %", "90 %", "99 %"):
        assert f"{share} of people, ex-post" in claims
        assert f"{share} of people, estimate" in claims
    assert any("of members, ex-post" in claim for claim in claims)
    assert any("level of" in claim for claim in claims)
    assert claims[-2:] == ["on average", "on average, by the paper's accountant"]
    kinds = {finding.claim: finding.kind for finding in unsampled}
    assert kinds["on average"] == "estimate"
    assert kinds["on average, by the paper's accountant"] == "model-based"


def test_bounds_are_close_where_the_gap_is_rounding(unsampled):
    for finding in unsampled:
        if finding.note.endswith("rounding"):
            assert finding.bound > 0.97 * finding.claimed


def test_an_average_is_bounded_from_below():
    """Of people with known exposures, the bound is below the epsilon at which their average delta is delta."""
    rng = np.random.default_rng(2)
    at_clip, delta = [(0.1, 1.0, 25)], 1e-4
    everybody = np.minimum(rng.lognormal(-1.2, 0.5, 200_000), 0.5)
    top = float(gaussian_epsilon(0.5, delta))
    low, high = 0.0, top
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(everybody, middle).mean() > delta else (low, middle)
    found = [lowest_average(rng.choice(everybody, 500), at_clip, delta, top) for _ in range(20)]
    assert max(found) <= high
    assert np.median(found) > 0.7 * high


def test_a_run_that_was_chosen_among_others_is_refused():
    settings = {"noise_std": 10.0, "sample_rate": 1.0, "clip": 1.0}
    ledger = Ledger(plan=Plan(steps=1, **settings), selection=Selection(mean=3))
    ledger.step(**settings, audit=[0.5] * 9)
    with pytest.raises(InvalidInputError, match="chosen among others"):
        next(tightness(ledger, "a run"))


def test_the_command_names_its_ledgers():
    options = AttackOptions(ledgers=(Path("a.ledger"), Path("b c.ledger")))
    assert options.command("tightness") == "bayesdp attack tightness --seed 0 --ledger a.ledger --ledger 'b c.ledger'"


@pytest.mark.parametrize(
    ("noise", "declared"),
    [
        (9.0, {"plan": Plan(steps=100, noise_std=10.0, sample_rate=1.0, clip=1.0)}),  # the run left it
        (
            10.0,
            {
                "plan": Plan(steps=100, noise_std=10.0, sample_rate=1.0, clip=1.0),
                "budget": Budget(epsilon=2.0),  # less than the plan
            },
        ),
        (10.0, {"budget": Budget(epsilon=2.0)}),
    ],
)
def test_the_claim_for_everyone_meets_the_steps_that_it_is_about(noise, declared):
    ledger = Ledger(**declared)
    for _ in range(20):
        ledger.step(noise_std=noise, sample_rate=1.0, clip=1.0, audit=np.linspace(0.1, 1.0, 60))
    found = list(tightness(ledger, "run"))
    assert [finding.line() for finding in found if not finding.stands] == []
    assert found[0].claim == "everyone"
    assert 0.8 * found[0].claimed < found[0].bound
