"""Which clients there are, and which of them are audit clients: the server asks each once, when it connects."""

from __future__ import annotations

import time
from typing import cast

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from bayesdp.flower.audit_mod import ASK, AUDIT, CLIENT, REQUEST, ROLE
from bayesdp.validation import refuse

_PAUSE = 0.5  # seconds between two looks for answers


class Roster:
    """The clients of a run that have said what they are; whoever has not is neither trained on nor audited."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        "Questions without an answer, by the id of their message: whom each was sent to."
        self._training: set[int] = set()
        self._audit: dict[int, str] = {}
        self._refused: set[int] = set()

    def training_nodes(self, connected: set[int]) -> list[int]:
        """Return the connected nodes that may be trained on, in a fixed order."""
        return sorted(self._training & connected)

    def audit_nodes(self, connected: set[int]) -> dict[int, str]:
        """Return the connected audit clients with their ids; several nodes may have one id."""
        return {node: name for node, name in self._audit.items() if node in connected}

    def ask(self, grid: Grid, timeout: float) -> set[int]:
        """Ask all nodes that have just connected for their role, and return all connected nodes.

        A node is asked once, and waited for once, ``timeout`` seconds at most. Its answer counts whenever it comes: a
        client that is slow is neither asked again, which would make it slower, nor waited for in each round. Raises
        InvalidInputError if every client that was ever asked has refused: the mod is missing in the app.
        """
        connected = set(grid.get_node_ids())
        known = self._training | set(self._audit) | self._refused | set(self._open.values())
        question = ConfigRecord({ASK: ROLE})
        new = sorted(connected - known)
        messages = [Message(RecordDict({REQUEST: question}), node, MessageType.TRAIN) for node in new]
        sent = zip(grid.push_messages(messages), new, strict=False) if new else ()  # without an id: it was not sent
        asked = {question_id: node for question_id, node in sent if question_id}
        self._open.update(asked)
        end = time.monotonic() + timeout
        self._listen(grid)
        while asked.keys() & self._open.keys() and time.monotonic() < end:
            time.sleep(_PAUSE)
            self._listen(grid)
        if self._refused and not self._training and not self._audit:
            expected = "clients that know their role: ClientApp(mods=[bayesdp.flower.AuditMod()])"
            raise refuse("clients", "none has said what it is", expected)
        return connected

    def _listen(self, grid: Grid) -> None:
        """Enter the answers that have come."""
        if self._open:
            for answer in grid.pull_messages(list(self._open)):
                node = self._open.pop(answer.metadata.reply_to_message_id, None)
                if node is not None:
                    self._enter(node, answer)

    def _enter(self, node: int, answer: Message) -> None:
        role = None if answer.has_error() else answer.content.config_records.get(REQUEST)
        if role is None or AUDIT not in role:
            self._refused.add(node)
        elif role[AUDIT]:
            self._audit[node] = cast(str, role[CLIENT])
        else:
            self._training.add(node)
