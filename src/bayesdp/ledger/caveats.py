"""What a step may rest on besides its figures: named by whoever records it, kept with the step, said in every claim."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from bayesdp.validation import refuse


@dataclass(frozen=True)
class Caveat:
    """An assumption in words, and which claims are no more than estimates because of it."""

    text: str
    weakens: Literal["nothing", "audit", "everything"]


CAVEATS = {
    "zero-out": Caveat(
        "data without a record is data in which it contributes nothing, while batches stay as they are", "nothing"
    ),
    "earlier-norms": Caveat("at some steps the norms of audit records were those of an earlier step", "audit"),
    "left-out": Caveat("which drawn records were left out of a step did not depend on other records", "everything"),
    "drawn-size-public": Caveat("how many records adaptive clipping drew at each step is public", "everything"),
    "sampling-mismatch": Caveat(
        "batches that were drawn do not fit the sampling rate, so the figures may be too small", "everything"
    ),
    "seeded": Caveat(
        "nobody knows the seed from which noise and batches came. It was given: an experiment, NOT FOR RELEASE",
        "nothing",
    ),
}
"""By the name under which a step has them."""


def joined(names: Iterable[str]) -> str:
    """As a step keeps them: in order, each once."""
    given = [names] if isinstance(names, str) else sorted(set(names))
    for name in given:
        if name not in CAVEATS:
            raise refuse("caveats", name, f"names among {', '.join(CAVEATS)}")
    return ",".join(given)


def split(text: str) -> list[str]:
    """The names in what ``joined`` gave."""
    return text.split(",") if text else []
