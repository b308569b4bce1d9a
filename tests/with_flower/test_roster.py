"""Which clients there are: each is asked for its role once, and whoever is slow is heard later."""

import time

import pytest
from flwr.app import MessageType

from bayesdp import Ledger
from bayesdp.flower.roster import Roster
from flower_runs import arrays, client_app, grid_of, strategy


class SlowGrid:
    """A grid whose node 3 answers the question for its role ``calls`` looks later, or never."""

    def __init__(self, grid, calls):
        self.grid, self.calls, self.asked = grid, calls, []

    def get_node_ids(self):
        return self.grid.get_node_ids()

    def push_messages(self, messages):
        self.asked += [message.metadata.dst_node_id for message in messages]
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids):
        self.calls -= 1
        slow = [name for name in message_ids if name == self.name_of(3)]
        return self.grid.pull_messages([name for name in message_ids if self.calls < 0 or name not in slow])

    def name_of(self, node):
        return str(self.asked.index(node) + 1)


def test_a_node_that_does_not_answer_is_asked_and_waited_for_once():
    """Asking again would make a slow client slower, and every round would wait for a dead one."""
    grid, roster = SlowGrid(grid_of(4, 1), calls=10**9), Roster()
    begin = time.monotonic()
    assert roster.ask(grid, 1.0) == {2, 3, 4, 5, 6}
    assert time.monotonic() - begin > 1
    begin = time.monotonic()
    for _ in range(20):
        roster.ask(grid, 1.0)
    assert time.monotonic() - begin < 0.5
    assert sorted(grid.asked) == [2, 3, 4, 5, 6]
    assert roster.training_nodes({2, 3, 4, 5, 6}) == [2, 4, 5]


def test_an_answer_that_comes_late_counts():
    grid, roster = SlowGrid(grid_of(4, 1), calls=3), Roster()
    connected = roster.ask(grid, 0.1)
    assert roster.training_nodes(connected) == [2, 4, 5]
    for _ in range(3):
        roster.ask(grid, 0.1)
    assert roster.training_nodes(connected) == [2, 3, 4, 5]
    assert roster.audit_nodes(connected) == {6: "4"}


def test_messages_that_could_not_be_sent_are_sent_again():
    class Lossy(SlowGrid):
        def push_messages(self, messages):
            names = super().push_messages(messages)
            return [None, *names[1:]] if len(self.asked) == 5 else names

    grid, roster = Lossy(grid_of(4, 1), calls=0), Roster()
    assert roster.training_nodes(roster.ask(grid, 0.1)) == [3, 4, 5]
    assert roster.training_nodes(roster.ask(grid, 0.1)) == [2, 3, 4, 5]


@pytest.mark.parametrize("larger", [0, 1])
def test_of_several_nodes_with_one_id_the_largest_norm_is_charged(larger):
    """An audit client that connected twice: whichever node comes first, nothing smaller is charged."""

    def train(w, context):
        return w + (0.4 if context.node_id == 6 + larger else 0.1 if context.node_config["audit"] else 0.01)

    grid = grid_of(4, 2, client_app(train))
    for context in grid._contexts.values():
        context.node_config["client-id"] = "phone" if context.node_config["audit"] else ""
    ledger = Ledger(audit_ids=["phone"], keep_norms=True)
    strategy(ledger).start(grid, arrays(), num_rounds=1)
    assert ledger.private_norms(1)[0].tolist() == pytest.approx([0.8])


def test_messages_to_audit_clients_are_training_messages():
    """So that an app needs no further function for them."""
    kinds = []
    grid = grid_of(3, 1, answers=lambda node, message: kinds.append(message.metadata.message_type) or True)
    strategy(Ledger(audit_ids=["3"])).start(grid, arrays(), num_rounds=1)
    assert set(kinds) == {MessageType.TRAIN}
