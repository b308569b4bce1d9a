"""Which clients there are, and which of them are audit clients: the server asks each once, when it connects."""

from __future__ import annotations

from typing import cast

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from bayesdp.flower.audit_mod import ASK, AUDIT, CLIENT, REQUEST, ROLE
from bayesdp.validation import refuse


class Roster:
    """The clients of a run that have said what they are; whoever has not is neither trained on nor audited."""

    def __init__(self) -> None:
        self._training: set[int] = set()
        self._audit: dict[int, str] = {}
        self._refused: set[int] = set()

    def training_nodes(self, connected: set[int]) -> list[int]:
        """Return the connected nodes that may be trained on, in a fixed order."""
        return sorted(self._training & connected)

    def audit_nodes(self, connected: set[int]) -> dict[str, int]:
        """Return the connected audit clients, by id; of several nodes with one id the last one that came."""
        return {name: node for node, name in self._audit.items() if node in connected}

    def ask(self, grid: Grid, timeout: float) -> set[int]:
        """Ask all nodes that have just connected for their role, and return all connected nodes.

        Raises InvalidInputError if every client that was ever asked has refused: the mod is missing in the app.
        """
        connected = set(grid.get_node_ids())
        new = sorted(connected - self._training - set(self._audit) - self._refused)
        if new:
            question = ConfigRecord({ASK: ROLE})
            messages = [Message(RecordDict({REQUEST: question}), node, MessageType.TRAIN) for node in new]
            for answer in grid.send_and_receive(messages, timeout=timeout):
                self._enter(answer)
            if self._refused and not self._training and not self._audit:
                expected = "clients that know their role: ClientApp(mods=[bayesdp.flower.AuditMod()])"
                raise refuse("clients", "none has said what it is", expected)
        return connected

    def _enter(self, answer: Message) -> None:
        node = answer.metadata.src_node_id
        role = None if answer.has_error() else answer.content.config_records.get(REQUEST)
        if role is None or AUDIT not in role:
            self._refused.add(node)
        elif role[AUDIT]:
            self._audit[node] = cast(str, role[CLIENT])
        else:
            self._training.add(node)
