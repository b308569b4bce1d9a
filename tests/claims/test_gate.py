"""The gate: what is declared, what is counted, what is proved."""

import json
import math

import mpmath as mp
import numpy as np
import pytest
from scipy.stats import binom, norm

from bayesdp import Gate, Ledger, LedgerError
from traps import TRAPS, true_delta

GOOD = {"epsilon": 1.0, "delta": 1e-5, "share": 0.9, "gamma": 0.01, "records": 100}


@pytest.mark.parametrize("records", [44, 45, 100, 1000, 20_000])
@pytest.mark.parametrize("gamma", [0.01, 1e-6])
def test_the_count_that_is_allowed(records, gamma):
    if 0.9**records > gamma:
        with pytest.raises(ValueError, match=f"records={records}: expected at least"):
            Gate(**GOOD | {"records": records, "gamma": gamma})
        return
    allowed = Gate(**GOOD | {"records": records, "gamma": gamma}).allowed
    assert binom.cdf(allowed, records, 0.1) <= gamma * (1 + 1e-9)
    assert binom.cdf(allowed + 1, records, 0.1) > gamma


def test_the_budget_amounts_to_epsilon_and_delta():
    gate = Gate(**GOOD)
    with mp.workdps(40):
        order, budget = mp.mpf(gate.chosen_order), mp.mpf(gate.budget)
        constant = order**order / (order + 1) ** (order + 1)
        delta = constant * mp.exp(budget - order * gate.epsilon)
        assert delta <= mp.mpf(1e-5)
        assert delta > mp.mpf(1e-5) * (1 - mp.mpf(1e-9))
    others = [Gate(**GOOD | {"order": order}) for order in range(10, 30)]
    assert max(other.budget / (other.chosen_order * (other.chosen_order + 1)) for other in others) == gate.budget / (
        gate.chosen_order * (gate.chosen_order + 1)
    )


def test_met_or_not():
    gate = Gate(**GOOD)
    costs = np.full(100, gate.budget)
    assert gate.met(costs)
    costs[: gate.allowed] = [math.inf, math.nan, *[gate.budget * 1.01] * (gate.allowed - 2)]
    assert gate.met(costs)
    costs[gate.allowed] = np.nextafter(gate.budget, math.inf)
    assert not gate.met(costs)
    with pytest.raises(ValueError, match="len"):
        gate.met(costs[:99])


def test_claims_in_both_directions():
    outward, inward = Gate(**GOOD).claims(met=True)
    assert (outward.direction, inward.direction) == ("record out", "record in")
    assert Gate(**GOOD).allowed == 3
    assert outward.delta == pytest.approx(1e-5 + 4 / 101)  # less than 1 - share + gamma = 0.11
    assert outward.delta < inward.delta < 1e-5 + math.e * 4 / 101
    assert outward.epsilon == inward.epsilon == 1.0
    assert outward.kind == inward.kind == "proved"


def test_nothing_but_met_or_not_met_is_said():
    """Two runs that differ in everything but the one bit give the same text."""

    def said(norms: np.ndarray) -> list[str]:
        ledger = Ledger(gate=Gate(**GOOD))
        ledger.step(noise_std=4.0, sample_rate=0.1, clip=1.0, audit=norms)
        assert all("gate" in claim.method for claim in ledger.claims().gate)
        return [json.dumps(claim.to_dict()) for claim in ledger.claims().gate]

    assert said(np.full(100, 0.1)) == said(np.linspace(0, 1, 100))
    not_met = Gate(**GOOD).claims(met=False)
    assert all(claim.to_dict()["epsilon"] is None for claim in not_met)
    assert all("not met" in str(claim) for claim in not_met)


def test_declared_in_the_ledger_and_not_to_be_changed(tmp_path):
    path = tmp_path / "run.ledger"
    gate = Gate(epsilon=2.0, delta=1e-5, share=0.9, gamma=0.05, records=40)
    with Ledger.create(path, gate=gate) as ledger:
        ledger.step(noise_std=4.0, sample_rate=0.1, clip=1.0, audit=np.full(40, 0.5))
    with Ledger.open(path, write=False) as opened:
        assert opened.gate == gate
        assert opened.audit_records == 40
    import sqlite3

    connection = sqlite3.connect(path)
    tables = [row[0] for row in connection.execute("select name from sqlite_master where type = 'table'")]
    changed = 0
    for table in tables:
        columns = [row[1] for row in connection.execute(f"pragma table_info({table})")]
        for column in columns:
            changed += connection.execute(
                f"update {table} set {column} = replace({column}, '\"epsilon\": 2.0', '\"epsilon\": 1.0') "
                f"where typeof({column}) = 'text'"
            ).rowcount
    connection.commit()
    connection.close()
    assert changed
    with pytest.raises(LedgerError):
        Ledger.open(path, write=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0}, "epsilon=0"),
        ({"delta": 1}, "delta=1"),
        ({"share": 1.0}, "share=1"),
        ({"gamma": 0}, "gamma=0"),
        ({"records": 10}, "records=10: expected at least 44"),
        ({"order": 2.5}, "lambdas=2.5"),
        ({"order": 1}, "order=1"),
    ],
)
def test_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Gate(**GOOD | change)


def test_refused_by_the_ledger():
    with pytest.raises(ValueError, match=r"gate\.records=100"):
        Ledger(gate=Gate(**GOOD), audit_ids=["a", "b"])
    with pytest.raises(ValueError, match="gate="):
        Ledger(gate="strict")
    ledger = Ledger(gate=Gate(**GOOD))
    with pytest.raises(ValueError, match=r"len\(audit\)=3"):
        ledger.step(noise_std=4.0, sample_rate=0.1, clip=1.0, audit=[1, 2, 3])


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize("direction", ["record in", "record out"])
def test_holds_on_the_traps(trap, direction):
    """Everyone walks into the trap with the same chance; the gate counts those whose second step was loud."""
    trap = trap.set_for(direction)
    gate = Gate(epsilon=4.0, delta=1e-9, share=0.99, gamma=0.01, records=500)
    squares = np.array([trap.first**2, trap.first**2 + trap.second**2])
    costs = gate.chosen_order * (gate.chosen_order + 1) * squares / 2
    chance = norm.sf(trap.threshold)  # of being loud, for someone who was left out
    loud_is_over = costs[1] > gate.budget
    quiet_is_over = costs[0] > gate.budget
    over = 1.0 if quiet_is_over else chance * loud_is_over
    released = binom.cdf(gate.allowed, gate.records, over)
    # Release does not depend on x, who is not in the audit set: the most that an event after it can show.
    truth = true_delta(trap, 4.0, direction) * released
    bound = {claim.direction: claim.delta for claim in gate.claims(met=True)}[direction]
    assert truth <= bound
    if loud_is_over and not quiet_is_over:
        assert truth > gate.delta  # the budget alone would be too small: those who passed it count
