"""Claims of clients that train with differential privacy themselves."""

import json
import math

import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from bayesdp import InvalidInputError, Ledger
from bayesdp.flower import ClientClaims, claims_record
from flower_runs import grid_of


def claims(noise, batch=(0.5, 2.0), steps=1, **options):
    ledger = Ledger()
    for _ in range(steps):
        ledger.step(noise_std=noise, sample_rate=0.1, clip=1.0, audit=[0.3] * 20, batch=batch)
    return ledger.claims(**{"delta": 1e-5, "shares": [0.5], **options})


def reply(node, record):
    asked = grid_of(1, 0).create_message(RecordDict(), MessageType.TRAIN, node, "")
    return Message(RecordDict({} if record is None else {"bayesdp-claims": record}), reply_to=asked)


def test_the_worst_case_is_that_of_the_least_private_client():
    made = {node: claims(noise) for node, noise in ((2, 1.0), (3, 0.7), (4, 2.0))}
    collected = ClientClaims.of(reply(node, claims_record(made[node])) for node in made)
    assert collected.everyone == max(each.everyone.epsilon for each in made.values()) == made[3].everyone.epsilon
    assert "For every example of 3 clients" in collected.statement()


def altered(**changes):
    """A record whose claim for everyone says something else than the ledger gave."""
    record = claims_record(claims(1.0))
    everyone, *others = json.loads(record["claims"])
    assert everyone["audience"] == "everyone"
    record["claims"] = json.dumps([{**everyone, **changes}, *others])
    return record


UNUSABLE = {
    "no record": None,
    "no claims": ConfigRecord({"claims": "[]", "steps": 1}),
    "no json": ConfigRecord({"claims": "no json", "steps": 1}),
    "no list": ConfigRecord({"claims": "{}", "steps": 1}),
    "no claim": ConfigRecord({"claims": '["everyone"]', "steps": 1}),
    "no steps": ConfigRecord({"claims": claims_record(claims(1.0))["claims"]}),
    "nan": altered(epsilon=math.nan),
    "infinite": altered(epsilon=None),
    "negative": altered(epsilon=-1.0),
    "true": altered(epsilon=True),
    "delta": altered(delta=1.0),
    "kind": altered(kind="certain"),
    "one direction": ConfigRecord(
        {"claims": json.dumps([claims(1.0).left_out.to_dict()]), "steps": 1}  # covers who is not in the data
    ),
}


@pytest.mark.parametrize("record", UNUSABLE.values(), ids=UNUSABLE)
def test_a_client_without_claims_leaves_no_worst_case(record):
    collected = ClientClaims.of([reply(2, claims_record(claims(1.0))), reply(3, record)])
    assert collected.everyone == math.inf
    assert collected.without == (3,)
    assert "no finite epsilon" in collected.statement()


def test_the_statement_has_the_largest_delta_and_the_weakest_kind():
    estimate = altered(kind="estimate", condition=None)
    collected = ClientClaims.of([reply(2, claims_record(claims(1.0, delta=1e-3))), reply(3, estimate)])
    assert collected.delta == 1e-3
    assert collected.kind == "estimate"
    assert "at delta = 0.001, as the clients claim (estimate if the number of steps" in collected.statement()


def test_clients_of_earlier_rounds_count():
    """The least private client took part in the first round only."""
    first = ClientClaims.of([reply(2, claims_record(claims(0.7))), reply(3, claims_record(claims(1.0)))])
    collected = first.after([reply(3, claims_record(claims(1.0, steps=2)))])
    assert collected.everyone == claims(0.7).everyone.epsilon
    assert collected.steps == {2: 1, 3: 2}
    assert first.steps == {2: 1, 3: 1}


@pytest.mark.parametrize(("noise", "steps"), [(1.0, 1), (1.5, 2)], ids=["a new ledger", "a smaller epsilon"])
def test_a_client_that_begins_a_new_ledger_leaves_no_worst_case(noise, steps):
    collected = ClientClaims.of([reply(2, claims_record(claims(1.0)))])
    assert math.isfinite(collected.everyone)
    collected = collected.after([reply(2, claims_record(claims(noise, steps=steps)))])
    assert collected.without == (2,)
    assert collected.everyone == math.inf
    assert collected.after([reply(2, claims_record(claims(1.0, steps=9)))]).everyone == math.inf


def test_a_client_without_claims_in_one_round_stays_unknown():
    collected = ClientClaims.of([reply(2, None)]).after([reply(2, claims_record(claims(1.0, steps=2)))])
    assert collected.everyone == math.inf


def test_private_claims_do_not_travel():
    with pytest.raises(InvalidInputError, match="claims='a private claim': expected claims without private=True"):
        claims_record(claims(1.0, private=True))


def test_what_travels_does_not_depend_on_training_members():
    assert claims_record(claims(1.0)) == claims_record(claims(1.0, batch=[7.0]))
