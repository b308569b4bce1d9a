"""Claims of clients that train with differential privacy themselves."""

import math

import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from bayesdp import InvalidInputError, Ledger
from bayesdp.flower import ClientClaims, claims_record
from flower_runs import grid_of


def claims(noise, batch=(0.5, 2.0), **options):
    ledger = Ledger()
    ledger.step(noise_std=noise, sample_rate=0.1, clip=1.0, audit=[0.3] * 20, batch=batch)
    return ledger.claims(delta=1e-5, shares=[0.5], **options)


def reply(node, record):
    asked = grid_of(1, 0).create_message(RecordDict(), MessageType.TRAIN, node, "")
    return Message(RecordDict({} if record is None else {"bayesdp-claims": record}), reply_to=asked)


def test_the_worst_case_is_that_of_the_least_private_client():
    made = {node: claims(noise) for node, noise in ((2, 1.0), (3, 0.7), (4, 2.0))}
    collected = ClientClaims.of(reply(node, claims_record(made[node])) for node in made)
    assert collected.everyone == max(each.everyone.epsilon for each in made.values()) == made[3].everyone.epsilon
    assert "For every example of 3 clients" in collected.statement()


@pytest.mark.parametrize("record", [None, ConfigRecord({"claims": "no json"}), ConfigRecord({"claims": "[]"})])
def test_a_client_without_claims_leaves_no_worst_case(record):
    collected = ClientClaims.of([reply(2, claims_record(claims(1.0))), reply(3, record)])
    assert collected.everyone == math.inf
    assert collected.without == (3,)


def test_private_claims_do_not_travel():
    with pytest.raises(InvalidInputError, match="claims='a private claim': expected claims without private=True"):
        claims_record(claims(1.0, private=True))


def test_what_travels_does_not_depend_on_training_members():
    assert claims_record(claims(1.0)) == claims_record(claims(1.0, batch=[7.0]))
