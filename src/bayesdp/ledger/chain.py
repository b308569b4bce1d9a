"""One step as the ledger keeps it, and the hash chain over all steps.

The hash of a step covers its content and the hash of the step before; the first one follows the hash of the run's
settings. So no step can be changed, removed or moved without every later hash failing to match.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

NOTHING = b""
"""The digest that stands for content which a step does not have."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One noisy release: its settings, and digests of the larger content that other tables keep."""

    number: int
    "1 for the first step."
    noise_std: float
    sample_rate: float
    clip: float | None
    planned_batch: float | None
    time: float
    "Seconds since 1970, UTC."
    source: str
    caveats: str
    "Names of caveats between commas (``caveats.caveat_text``)."
    audited: int
    "How many norms of audit records were given; 0 if all are charged at the clip bound."
    audit_clipped: int
    "How many of these norms were above the clip bound."
    audit_digest: bytes
    batch_digest: bytes
    norms_digest: bytes

    def hash(self, previous: bytes) -> bytes:
        """Return the hash of this step, given the hash of the step before it."""
        content = (previous, *self.values())
        return sha256(json.dumps([part.hex() if isinstance(part, bytes) else part for part in content]).encode())

    def values(self) -> tuple[Any, ...]:
        """Return all fields in their order, which is that of the columns in the file."""
        return _ALL_FIELDS(self)


_ALL_FIELDS = attrgetter(*(field.name for field in fields(Step)))


@dataclass(frozen=True)
class StoredStep:
    """A step with its hash and the content in other tables; None where there is none, or none any more."""

    step: Step
    hash: bytes
    journal: bytes | None
    batch: bytes | None
    norms: bytes | None


def first_hash(settings: Mapping[str, str]) -> bytes:
    """Return the hash of the run's settings, which the first step follows."""
    return sha256(json.dumps(dict(sorted(settings.items()))).encode())


def sha256(*parts: bytes) -> bytes:
    """Return SHA-256 over several parts, each preceded by its length: moving bytes from one to the next changes it."""
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


def digest(content: bytes | None) -> bytes:
    """Return the digest of content, ``NOTHING`` for None."""
    return NOTHING if content is None else sha256(content)


def seal_of(chain_hash: bytes, slice_digests: Mapping[int, bytes]) -> bytes:
    """Return one hash over everything in a closed ledger: hash of the last step, then digests of slices in order."""
    return sha256(chain_hash, *(slice_digests[number] for number in sorted(slice_digests)))


def joined_digests(slice_digests: Mapping[int, bytes]) -> bytes:
    """Return the digests of slices in order, one behind the other."""
    return b"".join(slice_digests[number] for number in sorted(slice_digests))


def seal_from_joined(chain_hash: bytes, digests: bytes) -> bytes:
    """Return the seal from the hash of the last step and ``joined_digests``, each of which has the size of a hash."""
    size = len(chain_hash)
    return sha256(chain_hash, *(digests[start : start + size] for start in range(0, len(digests), size)))
