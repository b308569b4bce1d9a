"""Differential privacy for examples inside each client: ledgers stay with the clients, only claims travel."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from flwr.app import ConfigRecord, Message

from bayesdp.claims.run_claims import RunClaims
from bayesdp.formatting import round_up
from bayesdp.validation import refuse

RECORD = "bayesdp-claims"
"""The name under which a client puts its claims into a reply."""
_CLAIMS = "claims"


def claims_record(claims: RunClaims) -> ConfigRecord:
    """Return the claims of a client's own run as a record for its reply: ``content["bayesdp-claims"]``.

    Nothing else of the ledger travels: no norm, histogram or number of records. Raises InvalidInputError if a claim was
    computed from training members (``claims(private=True)``): such a claim must not leave the client.
    """
    if any(claim.private for claim in claims):
        raise refuse("claims", "a private claim", "claims without private=True")
    return ConfigRecord({_CLAIMS: json.dumps([claim.to_dict() for claim in claims])})


@dataclass(frozen=True)
class ClientClaims:
    """What clients claim about their own examples, by node; each protects its examples by its own training.

    The model is as private for an example as the client that holds it claims: data of different clients do not overlap,
    so the worst case over all examples is the largest of the clients' (parallel composition). A person with examples in
    several clients loses up to the sum.
    """

    by_node: dict[int, list[dict[str, Any]]]
    without: tuple[int, ...] = ()
    "Nodes that answered without claims; nothing is known about their examples."

    @staticmethod
    def of(replies: Iterable[Message]) -> ClientClaims:
        """Collect the claims in the replies of a round; replies with errors are left out."""
        found: dict[int, list[dict[str, Any]]] = {}
        without: list[int] = []
        for reply in replies:
            if reply.has_error():
                continue
            node = reply.metadata.src_node_id
            record = reply.content.config_records.get(RECORD)
            try:
                found[node] = list(json.loads(cast(str, record[_CLAIMS]))) if record is not None else []
            except (KeyError, TypeError, ValueError):
                found[node] = []
            if not any(claim.get("audience") == "everyone" for claim in found[node]):
                del found[node]
                without.append(node)
        return ClientClaims(found, tuple(without))

    @property
    def everyone(self) -> float:
        """The largest epsilon that a client claims for everyone; infinite if one claims none."""
        if self.without or not self.by_node:
            return math.inf
        return max(_epsilon(claims) for claims in self.by_node.values())

    def statement(self) -> str:
        """Return the worst case over all clients in a sentence."""
        if math.isinf(self.everyone):
            return "For examples of all clients: no finite epsilon; not every client makes a claim."
        size = round_up(self.everyone, 4)
        return f"For every example of {len(self.by_node)} clients: epsilon at most {size}, as the clients claim."


def _epsilon(claims: list[dict[str, Any]]) -> float:
    everyone = next(claim for claim in claims if claim.get("audience") == "everyone")
    value = everyone.get("epsilon")
    return float(value) if isinstance(value, float | int) else math.inf
