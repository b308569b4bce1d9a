"""The record of one step, and the hash chain over all of them.

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
"""The digest of content that a step does not have."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One noisy release, as the ledger keeps it: settings, and digests of the larger content beside it."""

    number: int
    "1 for the first."
    noise_std: float
    sample_rate: float
    clip: float | None
    planned_batch: float | None
    time: float
    "Seconds since 1970, UTC."
    source: str
    caveats: str
    "Names of what the step rests on (caveats.py), with commas."
    audited: int
    "Audit records whose norms were given; 0 if they are charged at the clip bound."
    audit_clipped: int
    "How many of them were above the clip bound."
    audit_digest: bytes
    batch_digest: bytes
    norms_digest: bytes

    def hash(self, previous: bytes) -> bytes:
        """The hash of this step after the one before it."""
        content = (previous, *self.values())
        return sha256(json.dumps([part.hex() if isinstance(part, bytes) else part for part in content]).encode())

    def values(self) -> tuple[Any, ...]:
        """All fields in their order."""
        return _ALL_FIELDS(self)


_ALL_FIELDS = attrgetter(*(field.name for field in fields(Step)))


@dataclass(frozen=True)
class StoredStep:
    """A step that follows from the one before, and the contents beside it that are still kept."""

    step: Step
    hash: bytes
    journal: bytes | None
    batch: bytes | None
    norms: bytes | None


def first_hash(settings: Mapping[str, str]) -> bytes:
    """What the first step follows: the hash of the run's settings."""
    return sha256(json.dumps(dict(sorted(settings.items()))).encode())


def sha256(*parts: bytes) -> bytes:
    """SHA-256 of several pieces; each is preceded by its length, so that none can lend bytes to the next."""
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


def digest(content: bytes | None) -> bytes:
    """The digest of content, or ``NOTHING``."""
    return NOTHING if content is None else sha256(content)


def seal_of(chain_hash: bytes, slice_digests: Mapping[int, bytes]) -> bytes:
    """Return one hash over everything in a closed ledger: the last step, and the digests of slices by their numbers."""
    return sha256(chain_hash, *(slice_digests[number] for number in sorted(slice_digests)))
