"""The client's side: a mod that keeps the update of an audit client at home and sends only its norm."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy, deepcopy
from typing import cast

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from bayesdp.flower.private_sum import update_norm

REQUEST = "bayesdp"
"""The name of the record in which the server says what it asks for; the client's app never sees it."""
ASK, ROLE, UPDATE, NORM = "ask", "role", "update", "norm"
REPEATS = "repeats"
AUDIT, CLIENT, NORMS = "audit", "client", "norms"
_REFUSED = 1  # any code: the server looks only at whether there is an error


def _declared_audit(context: Context) -> bool:
    return str(context.node_config.get("audit", False)).lower() in ("true", "1")


class AuditMod:
    """A mod for the ClientApp of every client: ``ClientApp(mods=[AuditMod()])``, the first in the list.

    Flower puts the first mod around all others, so the norm is that of what would have been sent: other mods may have
    changed the update (compression, a local clip bound). A mod in front of this one would change updates that nobody
    has measured.

    Each client has one of two roles for the whole run, and decides it itself:

    - Clients that are trained on answer as they would without the mod, and never reveal the norm of their update.
    - Audit clients compute the update that they would have sent, and answer with its norm and nothing else. No array,
      metric or error text of their training leaves the client, whatever the server asks for. Messages of other types
      (evaluation, queries) reach the app as ever: ``PrivateFedAvg`` sends none.

    An app that keeps state from round to round (``context.state``) trains differently after rounds in which it was
    drawn. Where two norms are asked for, an audit client computes one of them from an empty state: if they differ, the
    server counts that as random draws, and shares are estimates.

    ``audit`` says from the context whether this is an audit client. By default it is whoever was started with
    ``--node-config "audit=true client-id='...'"``. An audit client needs an id that stays the same when it connects
    again: ``client-id``, or else ``partition-id``, of its node config.

    Audit clients must be drawn at random from the same population as the others, before training, and nobody may have
    devices of both kinds. The model's guarantee does not cover them: the server learns their norms.
    """

    def __init__(self, audit: Callable[[Context], bool] = _declared_audit) -> None:
        self._audit = audit

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer a message of the server, by the app (``call_next``) where that is needed."""
        request = message.content.config_records.get(REQUEST)
        is_audit = bool(self._audit(context))
        if request is None:  # evaluation, or a server without bayesdp
            return (
                _refusal(message, "an audit client")
                if is_audit and _asks_to_train(message)
                else call_next(message, context)
            )
        asked = request[ASK]
        if asked == ROLE:
            return _role(message, context, is_audit)
        if asked != (NORM if is_audit else UPDATE):
            return _refusal(message, "an audit client" if is_audit else "a client that is trained on")
        if is_audit:
            return _norms(message, context, call_next, cast(int, request[REPEATS]))
        return call_next(_for_the_app(message), context)


def _role(message: Message, context: Context, is_audit: bool) -> Message:
    identity = str(context.node_config.get("client-id", context.node_config.get("partition-id", "")))
    if is_audit and not identity:
        return _refusal(message, "an audit client without client-id")
    # Nothing else is needed of a client that is trained on.
    answer = {AUDIT: True, CLIENT: identity} if is_audit else {AUDIT: False}
    return Message(RecordDict({REQUEST: ConfigRecord(answer)}), reply_to=message)


def _norms(message: Message, context: Context, call_next: ClientAppCallable, repeats: int) -> Message:
    """Return the norms of as many updates as asked for; the last with the state of the app, the others without."""
    norms: list[float] = []
    sent = _only_arrays(message.content)
    before = {name: array.numpy().copy() for name, array in sent.items()} if sent is not None else {}
    for left in reversed(range(repeats)):
        try:
            answer = call_next(_for_the_app(message), context if left == 0 else _without_state(context))
            arrays = None if answer.has_error() else _only_arrays(answer.content)
        except Exception:  # whatever goes wrong in training, its text stays here: it may quote data
            arrays = None
        norm = None if arrays is None else update_norm(before, arrays)
        if norm is None:
            return _refusal(message, "an audit client that has no update")
        norms.append(norm)
    return Message(RecordDict({REQUEST: MetricRecord({NORMS: norms})}), reply_to=message)


def _without_state(context: Context) -> Context:
    """Return the context of a client that is drawn for the first time."""
    fresh = deepcopy(context)
    fresh.state = RecordDict()
    return fresh


def _for_the_app(message: Message) -> Message:
    """Return a copy of the message without the server's request, which the app may change as it likes."""
    copied = copy(message)
    copied.content = RecordDict({name: deepcopy(record) for name, record in message.content.items() if name != REQUEST})
    return copied


def _asks_to_train(message: Message) -> bool:
    return message.metadata.message_type.split(".")[0] == "train"


def _only_arrays(content: RecordDict) -> ArrayRecord | None:
    records = list(content.array_records.values())
    return records[0] if len(records) == 1 else None


def _refusal(message: Message, who: str) -> Message:
    return Message(Error(code=_REFUSED, reason=f"{who} does not answer this"), reply_to=message)
