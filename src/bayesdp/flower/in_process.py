"""A grid without a network: every client is a function call in this process, for experiments and tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy, deepcopy
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from bayesdp.validation import refuse

_FAILED = 0
_RUN = _SERVER = 1


class InProcessGrid(Grid):
    """Clients that are called one after the other in this process, with Flower's own messages and apps.

    ``clients`` holds the node config of each client, such as ``{"partition-id": 3, "audit": True}``; the node ids are
    2, 3, ... in this order. ``answers(node, message)``, if given, says whether a client answers in time: a drop-out or
    a straggler is one that does not. An exception in a client becomes an error reply, as it does in Flower.

    Nothing is sent over a network, nothing runs in parallel, and there is no time limit: 500 small clients take
    milliseconds where processes take minutes. Flower's own simulation (``flwr run`` with Ray) runs the same apps.
    """

    def __init__(
        self,
        app: ClientApp,
        clients: Sequence[Mapping[str, Any]],
        *,
        answers: Callable[[int, Message], bool] = lambda node, message: True,
    ) -> None:
        if not clients:
            raise refuse("clients", [], "a node config for each client")
        self._app, self._answers = app, answers
        self._contexts = {
            node: Context(run_id=_RUN, node_id=node, node_config=dict(config), state=RecordDict(), run_config={})
            for node, config in enumerate(clients, start=_SERVER + 1)
        }
        self._replies: dict[str, Message] = {}
        self._sent = 0
        if TaskIdentity._run_id is None:  # Flower sets it where it starts an app; without it there are no messages
            TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = _RUN, _SERVER, _RUN

    def set_run(self, run: Run) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> Run:
        """The run, which has no settings."""
        return Run.create_empty(_RUN)

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Return a message, as ``Message`` makes it."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all clients."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let each client answer its message now, and return the ids of the messages."""
        ids: list[str] = []
        for message in messages:
            self._sent += 1
            name = str(self._sent)
            ids.append(name)
            node = message.metadata.dst_node_id
            received = copy(message)
            received.__dict__["_metadata"] = copy(message.metadata)
            received.metadata.__dict__["_message_id"] = name
            received.content = deepcopy(message.content)
            try:
                answer = self._app(received, self._contexts[node])
            except Exception as error:  # a client that fails is an error reply, as in Flower
                answer = Message(Error(code=_FAILED, reason=type(error).__name__), reply_to=received)
            answer.metadata.__dict__["_src_node_id"] = node
            if self._answers(node, message):
                self._replies[name] = answer
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages that have not been returned yet."""
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Return the replies of all clients that answer."""
        return self.pull_messages(self.push_messages(messages))
