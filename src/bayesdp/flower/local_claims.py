"""Differential privacy for examples inside each client: ledgers stay with the clients, only claims travel."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeGuard, cast

from flwr.app import ConfigRecord, Message

from bayesdp.claims.run_claims import RunClaims
from bayesdp.formatting import round_up
from bayesdp.validation import refuse

RECORD = "bayesdp-claims"
"""The name under which a client puts its claims into a reply."""
_CLAIMS, _STEPS = "claims", "steps"
_WEAKEST_FIRST = ("model-based", "estimate", "ex-post", "proved")


def claims_record(claims: RunClaims) -> ConfigRecord:
    """Return the claims of a client's own run as a record for its reply: ``content["bayesdp-claims"]``.

    The number of steps travels with them, so that the server sees that the ledger goes on from round to round. Nothing
    else of the ledger does: no norm, histogram or number of records. Raises InvalidInputError if a claim was computed
    from training members (``claims(private=True)``): such a claim must not leave the client.
    """
    if any(claim.private for claim in claims):
        raise refuse("claims", "a private claim", "claims without private=True")
    return ConfigRecord({_CLAIMS: json.dumps([claim.to_dict() for claim in claims]), _STEPS: claims.facts.steps})


@dataclass(frozen=True)
class ClientClaims:
    """What clients claim about their own examples, by node; each protects its examples by its own training.

        collected = ClientClaims()                # before the first round
        collected = collected.after(replies)      # in every round, in aggregate_train

    The model is as private for an example as the client that holds it claims: data of different clients do not overlap,
    so the worst case over all examples is the largest of the clients' (parallel composition). A person with examples in
    several clients loses up to the sum.

    It holds for all clients that ever took part, so every round has to be collected, and each client has to continue
    one ledger in all its rounds. A client whose steps do not grow from one round to the next has begun a new ledger:
    what it lost before is not in it, and nothing is known about its examples.
    """

    by_node: dict[int, list[dict[str, Any]]] = field(default_factory=dict[int, list[dict[str, Any]]])
    without: tuple[int, ...] = ()
    "Nodes that answered without usable claims, or began a new ledger; nothing is known about their examples."
    steps: dict[int, int] = field(default_factory=dict[int, int])
    "The number of steps in the ledger of each client."

    @staticmethod
    def of(replies: Iterable[Message]) -> ClientClaims:
        """Collect the claims in the replies of a first, or only, round."""
        return ClientClaims().after(replies)

    def after(self, replies: Iterable[Message]) -> ClientClaims:
        """Return the claims after a further round of training; replies with errors brought no update, and no claim."""
        by_node, steps, without = dict(self.by_node), dict(self.steps), dict.fromkeys(self.without)
        for reply in replies:
            if reply.has_error():
                continue
            node = reply.metadata.src_node_id
            claims, taken = _read(reply.content.config_records.get(RECORD))
            grown = taken > steps.get(node, 0) and _epsilon(claims) >= _epsilon(by_node.get(node, []), 0.0)
            by_node[node], steps[node] = claims, taken
            if not grown or not math.isfinite(_epsilon(claims)):
                without[node] = None
        for node in without:
            by_node.pop(node, None)
        return ClientClaims(by_node, tuple(without), steps)

    @property
    def everyone(self) -> float:
        """The largest epsilon that a client claims for everyone, at ``delta``; infinite if one claims none."""
        if self.without or not self.by_node:
            return math.inf
        return max(_epsilon(claims) for claims in self.by_node.values())

    @property
    def delta(self) -> float:
        """The largest delta of these claims; 1 if there are none."""
        return max((_everyone(claims)["delta"] for claims in self.by_node.values()), default=1.0)

    @property
    def kind(self) -> str:
        """The weakest kind of these claims: "proved" if all are proved, else "ex-post" or "estimate"."""
        kinds = [str(_everyone(claims)["kind"]) for claims in self.by_node.values()]
        return min(kinds, key=_WEAKEST_FIRST.index, default="estimate")

    def statement(self) -> str:
        """Return the worst case over all clients in a sentence."""
        if math.isinf(self.everyone):
            return "For examples of all clients: no finite epsilon; not every client makes a claim."
        figures = f"epsilon at most {round_up(self.everyone, 4)} at delta = {round_up(self.delta)}"
        conditions = {_everyone(claims).get("condition") for claims in self.by_node.values()} - {None}
        kind = " ".join([self.kind, *sorted(map(str, conditions))])
        return f"For every example of {len(self.by_node)} clients: {figures}, as the clients claim ({kind})."


def _read(record: ConfigRecord | None) -> tuple[list[dict[str, Any]], int]:
    """Return the claims and the number of steps of a client; none and 0 for what is no record of claims."""
    try:
        claims = json.loads(cast(str, record[_CLAIMS])) if record is not None else []
        steps = record[_STEPS] if record is not None else 0
    except (KeyError, TypeError, ValueError):
        return [], 0
    if not isinstance(claims, list) or not isinstance(steps, int):
        return [], 0
    return [claim for claim in cast(list[Any], claims) if isinstance(claim, dict)], steps


def _everyone(claims: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the claim for everyone that bounds both directions; the others cover less. Empty if there is none."""
    for claim in claims:
        if claim.get("audience") == "everyone" and claim.get("direction") == "both":
            return claim
    return {}


def _epsilon(claims: list[dict[str, Any]], otherwise: float = math.inf) -> float:
    """Return the epsilon for everyone; ``otherwise`` if there is none that is a claim."""
    claim = _everyone(claims)
    epsilon, delta = claim.get("epsilon"), claim.get("delta")
    if not _is_number(epsilon) or not _is_number(delta) or claim.get("kind") not in _WEAKEST_FIRST:
        return otherwise
    return float(epsilon) if epsilon >= 0 and 0 <= delta < 1 else otherwise


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, float | int) and not isinstance(value, bool) and math.isfinite(value)
