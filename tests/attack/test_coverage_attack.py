"""Coverage from end to end: a small version here, thousands of runs by `bayesdp attack coverage`."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from bayesdp.attack import coverage
from bayesdp.attack import coverage_promises as promises
from bayesdp.attack.coverage import attack
from bayesdp.attack.lab import AttackOptions
from bayesdp.attack.populations import POPULATIONS
from bayesdp.attack.small_training import step_losses
from bayesdp.attack.two_steps import DIRECTIONS, two_steps_delta
from bayesdp.profiles import gaussian_delta


@pytest.mark.parametrize("population", POPULATIONS, ids=lambda population: population.name)
def test_everybody_has_the_law_of_the_people_who_are_drawn(population):
    norms, weights = population.everybody()
    assert weights.sum() == pytest.approx(1)
    drawn = population.norms(np.random.default_rng(0), 200_000)
    assert (drawn**2).sum(axis=0).mean() == pytest.approx(weights @ (norms**2).sum(axis=0), rel=0.01)


def test_no_claim_is_too_small_more_often_than_it_may():
    findings = list(attack(AttackOptions(small=True)))
    assert len(findings) == 9 * len(POPULATIONS) + 8
    assert [finding.line() for finding in findings if not finding.stands] == []
    for promise in ("everyone, with a plan", "everyone, with a budget"):
        assert {finding.claimed for finding in findings if finding.claim == promise} == {promises.PROMISED_DELTA}


def test_figures_are_judged_as_they_are_printed(monkeypatch):
    """A capped figure is the guarantee for everyone: it is not judged by the person's own; all others are."""
    monkeypatch.setattr(coverage, "POPULATIONS", [population := replace(POPULATIONS[2], threshold=1.0)])
    attackers = {finding.claim: finding.attacker for finding in attack(AttackOptions(small=True))}
    assert "judged in 12 of 12" in attackers["a member, with 80%"]
    assert "judged in 12 of 12" in attackers["90% of people, ex-post, before the cap"]
    rng = np.random.default_rng([0, 0, 80])
    capped = 0
    for _ in range(12):
        claims = population.ledger(population.norms(rng, 80)).claims(1e-5, 0.05, (0.9,))
        population.norms(rng, 1, member=True)
        capped += claims.share(0.9).ex_post.own_epsilon is not None
    assert 0 < capped < 12
    assert f"judged in {12 - capped} of 12" in attackers["90% of people, ex-post, as printed"]


def test_the_true_average_is_that_of_gaussian_profiles():
    for population in POPULATIONS[:3]:
        norms, weights = population.everybody()
        exposures = np.sqrt((norms**2).sum(axis=0)) / population.noise
        exact = float(weights @ gaussian_delta(exposures, population.average_epsilon(1e-5)))
        assert exact == pytest.approx(1e-5, rel=2e-3)
        assert exact <= 1e-5


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_interpolated_deltas_are_hardly_too_large(direction):
    population = POPULATIONS[3]
    first, second = population.everybody()[0][:, ::400, None] / population.noise
    exact = two_steps_delta(first, second, 1.2, population.sample_rate, direction)
    assert (population.deltas(1.2, direction)[::400] >= exact * (1 - 1e-9)).all()
    assert population.deltas(1.2, direction)[::400] == pytest.approx(exact, rel=5e-3, abs=1e-9)


def test_the_average_of_fixed_norms_has_the_figure_that_is_judged():
    ledger = POPULATIONS[0].ledger(POPULATIONS[0].norms(np.random.default_rng(1), 80))
    estimated, proved = (ledger.claims(1e-5, 0.05, fixed_exposures=fixed).average for fixed in (False, True))
    assert (estimated.kind, proved.kind) == ("estimate", "proved")
    assert estimated.epsilon == proved.epsilon


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_failures_of_a_population_are_those_that_are_counted(direction):
    """The integral over first outputs, against runs in which both outputs are drawn."""
    population, rng, people = POPULATIONS[0], np.random.default_rng(0), 400_000
    norms = population.norms(rng, people, member=direction == "record in")
    exposures = norms / population.noise
    # The first output is drawn anew given what the second step tells of it: on which side of the threshold it lies.
    shift = exposures[0] if direction == "record in" else 0.0
    edge, loud = ndtr(population.threshold - shift), norms[1] == 1
    places = np.where(loud, edge + (1 - edge) * rng.random(people), edge * rng.random(people))
    first = shift + ndtri(places)
    second = rng.standard_normal(people) + (exposures[1] if direction == "record in" else 0.0)
    losses = step_losses(first, exposures[0], 1.0) + step_losses(second, exposures[1], 1.0)
    losses = losses if direction == "record in" else -losses
    epsilon = 0.3
    counted = np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0)
    error = 5 * counted.std() / np.sqrt(people)
    assert promises.average_failure(population, epsilon, direction) == pytest.approx(counted.mean(), abs=error)


@pytest.mark.parametrize("promise", [promises.plans, promises.budgets])
def test_less_noise_than_is_accounted_for_breaks_what_was_promised(promise, monkeypatch):
    """The attack has teeth: where steps are 1.5 times as loud as the ledger says, most lines break."""
    real = promises._step
    monkeypatch.setattr(
        promises, "_step", lambda rng, exposures, rate, direction: real(rng, 1.5 * exposures, rate, direction)
    )
    findings = list(promise(np.random.default_rng(0), 20_000, 1e-4))
    assert sum(not finding.stands for finding in findings) >= len(findings) // 2


@pytest.mark.parametrize("population", POPULATIONS, ids=lambda population: population.name)
def test_the_gate_is_met_in_some_runs_and_not_in_others(population):
    gate, rng = promises.population_gate(population, 80), np.random.default_rng(0)
    met = [
        gate.met(population.ledger(population.norms(rng, 80), gate=gate).costs([gate.chosen_order])[:, 0])
        for _ in range(60)
    ]
    assert 0 < sum(met) < 60
