"""Clients that fail, drop out, lie or are slow; what audit clients reveal; randomness that nobody is told."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MessageType, RecordDict

from bayesdp import Ledger
from bayesdp.flower import AuditMod, FixedSizeClients
from bayesdp.flower.audit_mod import ASK, NORM, NORMS, REPEATS, REQUEST, ROLE, UPDATE
from bayesdp.flower.private_sum import PrivateSum
from flower_runs import SIZE, arrays, client_app, grid_of, strategy, target

RANDOM = np.random.default_rng()


def run(grid, **changes):
    """The model and the ledger after two rounds in which everybody is drawn."""
    ledger = Ledger(audit_ids=["6", "7"], keep_norms=True)
    ran = strategy(ledger, draws=FixedSizeClients(6), **changes)
    return ran.start(grid, arrays(), num_rounds=2).arrays["w"].numpy(), ledger


def silent(*partitions):
    """A grid in which some clients are drawn and never answer a round."""
    return grid_of(6, 2, answers=lambda node, message: node - 2 not in partitions or "arrays" not in message.content)


def messages(caplog):
    """Everything that was logged, but for the time that Flower says it took."""
    return [record.getMessage() for record in caplog.records if "finished in" not in record.getMessage()]


def moves(w, context):
    return w + 0.5 * (target(context.node_config["partition-id"]) - w)


@pytest.mark.parametrize(
    "answer",
    [
        lambda: np.full(SIZE, np.nan),
        lambda: np.full(SIZE, np.inf),
        lambda: np.zeros(SIZE + 1),
        lambda: np.zeros(SIZE, int),
        lambda: np.array(["text"] * SIZE),
        lambda: 1 / 0,
    ],
    ids=["nan", "infinite", "another shape", "whole numbers", "text", "raises"],
)
def test_a_client_that_cannot_be_used_is_as_one_that_did_not_answer(answer, caplog):
    bad = client_app(lambda w, context: answer() if context.node_config["partition-id"] == 3 else moves(w, context))
    model, ledger = run(grid_of(6, 2, bad))
    logged = messages(caplog)
    caplog.clear()
    expected, reference = run(silent(3))
    np.testing.assert_array_equal(model, expected)
    assert messages(caplog) == logged
    assert ledger.claims().statement() == reference.claims().statement()


def test_a_huge_update_is_clipped():
    before = {"w": np.zeros(SIZE)}
    total = PrivateSum.of(before, [arrays(np.full(SIZE, 1e200)), arrays(np.full(SIZE, 1e-200))], clip=3.0).total["w"]
    assert np.linalg.norm(total) == pytest.approx(3.0)
    assert np.linalg.norm(total) <= 3.0


def test_clients_that_drop_out_do_not_change_the_divisor():
    """The step of a client is the same whether others answer or not: noise and divisor are fixed."""
    everybody, _ = run(grid_of(6, 2))
    fewer, ledger = run(silent(0, 1, 2))
    only_these, _ = run(grid_of(6, 2, client_app(lambda w, c: w if c.node_config["partition-id"] < 3 else moves(w, c))))
    np.testing.assert_allclose(fewer, only_these)
    assert not np.allclose(everybody, fewer)
    assert ledger.steps == 2


def test_an_audit_client_that_does_not_answer_is_charged_at_the_clip_bound():
    _, ledger = run(silent(7))
    charged, _ = ledger.private_norms(2)
    assert charged[1] == 1.0  # the clip bound
    assert charged[0] != 1.0


@pytest.mark.parametrize("norms", [[], [float("nan")], [-1.0], [float("inf")], [0.1, float("nan")], [-1.0, 0.1]])
def test_impossible_norms_of_an_audit_client_are_charged_at_the_clip_bound(norms):
    class Lies(AuditMod):
        def __call__(self, message, context, call_next):
            answer = super().__call__(message, context, call_next)
            if not answer.has_error() and REQUEST in answer.content.metric_records:
                answer.content.metric_records[REQUEST][NORMS] = norms
            return answer

    _, ledger = run(grid_of(6, 2, client_app(mods=[Lies()])))
    assert ledger.private_norms(1)[0].tolist() == [1.0, 1.0]


def asked(config, *, audit, request=UPDATE, kind=MessageType.TRAIN, train=moves):
    """What a client answers to a request."""
    content = {"arrays": arrays(), "config": ConfigRecord()}
    if request is not None:
        content[REQUEST] = ConfigRecord({ASK: request, REPEATS: 2})
    message = grid_of(1, 0).create_message(RecordDict(content), kind, 1, "")
    context = Context(1, 1, {"audit": audit, **config}, RecordDict(), {})
    return client_app(train)(message, context)


@pytest.mark.parametrize("request_", [UPDATE, None, "anything"])
def test_the_update_of_an_audit_client_never_leaves_it(request_):
    answer = asked({"partition-id": 3}, audit=True, request=request_)
    assert answer.has_error()
    assert not answer.has_content()


def test_an_audit_client_answers_with_its_norm_and_nothing_else():
    answer = asked({"partition-id": 3}, audit=True, request=NORM)
    assert list(answer.content) == [REQUEST]
    assert list(answer.content[REQUEST]) == [NORMS]
    np.testing.assert_allclose(answer.content[REQUEST][NORMS], [0.5 * np.linalg.norm(target(3))] * 2)


def test_an_audit_client_whose_training_fails_does_not_say_why():
    def fails(w, context):
        raise ValueError("the secret")

    answer = asked({"partition-id": 3}, audit=True, request=NORM, train=fails)
    assert "secret" not in answer.error.reason


def test_a_client_that_is_trained_on_does_not_reveal_its_norm():
    assert asked({"partition-id": 3}, audit=False, request=NORM).has_error()


def test_roles():
    assert dict(asked({"partition-id": 3}, audit=False, request=ROLE).content[REQUEST]) == {"audit": False}
    named = asked({"client-id": "phone 7", "partition-id": 3}, audit="True", request=ROLE)
    assert dict(named.content[REQUEST]) == {"audit": True, "client": "phone 7"}
    assert asked({}, audit=True, request=ROLE).has_error()  # nobody would know it again


def test_without_a_request_the_app_answers_as_ever():
    answer = asked({"partition-id": 3}, audit=False, request=None)
    np.testing.assert_allclose(answer.content["arrays"]["w"].numpy(), 0.5 * target(3))


def test_the_app_sees_the_message_as_flower_sends_it():
    contents = []

    def train(message, context, call_next):
        contents.append(sorted(message.content))
        return call_next(message, context)

    run(grid_of(6, 2, client_app(mods=[AuditMod(), train])))
    assert set(map(tuple, contents)) == {("arrays", "config")}


def test_local_training_that_draws_random_numbers_makes_shares_estimates(tmp_path):
    shuffled = client_app(lambda w, context: moves(w, context) + RANDOM.normal(size=SIZE) / 10)
    for app, kind in ((client_app(), "ex-post"), (shuffled, "estimate")):
        ran = strategy(tmp_path / f"{kind}.ledger", clip=3.0)
        ran.start(grid_of(20, 20, app), arrays(), num_rounds=3)
        claims = ran.ledger.claims(shares=[0.5])
        assert claims.share(0.5).ex_post.kind == kind
        assert claims.everyone.kind == "proved"


def test_state_that_a_client_keeps_makes_shares_estimates(tmp_path):
    """An audit client trains in every round, a client that is trained on only when it is drawn."""

    def train(w, context):
        state = context.state.setdefault("momentum", ArrayRecord({"m": Array(np.zeros(SIZE))}))
        momentum = 0.5 * state["m"].numpy() + 0.1 * (target(context.node_config["partition-id"]) - w)
        context.state["momentum"] = ArrayRecord({"m": Array(momentum)})
        return w + momentum

    ran, grid = strategy(tmp_path / "run.ledger", clip=3.0), grid_of(20, 20, client_app(train))
    ran.start(grid, arrays(), num_rounds=1)
    assert ran.ledger.claims(shares=[0.5]).share(0.5).ex_post.kind == "ex-post"  # nobody has a state yet
    ran.start(grid, arrays(), num_rounds=2)
    assert ran.ledger.claims(shares=[0.5]).share(0.5).ex_post.kind == "estimate"


def test_the_norm_is_that_of_what_other_mods_send():
    """The first mod of the list is around all others: a mod that scales updates is measured too."""

    def scales(message, context, call_next):
        answer = call_next(message, context)
        w = answer.content["arrays"]["w"].numpy()
        answer.content["arrays"] = arrays(3 * w)
        return answer

    _, plain = run(grid_of(6, 2, client_app(mods=[AuditMod()])))
    _, scaled = run(grid_of(6, 2, client_app(mods=[AuditMod(), scales])))
    np.testing.assert_allclose(scaled.private_norms(1)[0], 3 * np.asarray(plain.private_norms(1)[0]), rtol=1e-9)


def test_random_numbers_can_be_declared_instead_of_looked_for(tmp_path):
    calls = []
    app = client_app(lambda w, context: calls.append(context.node_config["audit"]) or moves(w, context))
    ran = strategy(tmp_path / "run.ledger", local_draws="estimate")
    ran.start(grid_of(5, 4, app), arrays(), num_rounds=2)
    assert sum(calls) == 8
    assert ran.ledger.claims(shares=[0.4]).share(0.4).ex_post.kind == "estimate"


def test_float32_models_stay_float32(tmp_path):
    def train(w, context):
        assert w.dtype == np.float32
        return (w + 1).astype(np.float32)

    start = ArrayRecord({"w": Array(np.zeros(SIZE, np.float32))})
    result = strategy(tmp_path / "run.ledger").start(grid_of(4, 0, client_app(train)), start, num_rounds=2)
    assert result.arrays["w"].numpy().dtype == np.float32
