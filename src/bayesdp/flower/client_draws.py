"""Which clients a round draws, and how that is accounted for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bayesdp import validation
from bayesdp.randomness import Randomness, poisson_batch


class ClientDraws(Protocol):
    """How clients come into a round, ``PoissonClients`` or ``FixedSizeClients``."""

    @property
    def accounted_rate(self) -> float:
        """The Poisson sampling rate that the ledger gets for a round."""
        ...

    @property
    def caveats(self) -> frozenset[str]:
        """What a round rests on besides its figures."""
        ...

    def draw(self, randomness: Randomness, nodes: Sequence[int], *, step: int) -> list[int]:
        """Return the nodes of a round."""
        ...


@dataclass(frozen=True)
class PoissonClients:
    """Each connected client is in each round with probability ``rate``, independently of all others.

    The number of clients varies, and a round may be empty. This is the sampling for which amplification is proved
    under add/remove of one client, and what ``bayesdp.epsilon`` computes. Raises InvalidInputError for a rate outside
    (0, 1].
    """

    rate: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", validation.sample_rate(self.rate))

    @property
    def accounted_rate(self) -> float:
        """The rate itself: no client is drawn more often."""
        return self.rate

    @property
    def caveats(self) -> frozenset[str]:
        """None."""
        return frozenset()

    def draw(self, randomness: Randomness, nodes: Sequence[int], *, step: int) -> list[int]:
        """Return the nodes that were drawn; at most the stated rate for each, from a cryptographic generator."""
        return [nodes[index] for index in poisson_batch(randomness, len(nodes), self.rate, step=step).tolist()]


@dataclass(frozen=True)
class FixedSizeClients:
    """Exactly ``count`` connected clients in each round, all sets of that size equally likely, as Flower draws them.

    Accounted without amplification, at rate 1, under the zero-out relation: the client's contribution becomes zero,
    while everybody else is drawn as before. If a client were removed altogether, somebody else would be drawn in its
    place: that changes the sum by up to twice the clip bound, and needs replace-one (``bayesdp.epsilon(...,
    sampling="fixed-size")`` computes it). With fewer than ``count`` clients connected, all are drawn. Raises
    InvalidInputError unless ``count`` is a whole number of at least 1.
    """

    count: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", validation.count("count", self.count, minimum=1))

    @property
    def accounted_rate(self) -> float:
        """1: sampling gives no amplification here."""
        return 1.0

    @property
    def caveats(self) -> frozenset[str]:
        """The zero-out relation."""
        return frozenset({"zero-out"})

    def draw(self, randomness: Randomness, nodes: Sequence[int], *, step: int) -> list[int]:
        """Return the nodes that were drawn, from a cryptographic generator."""
        keys = np.frombuffer(randomness.bytes(8 * len(nodes), step=step, purpose="batch"), dtype="<u8")
        return [nodes[index] for index in sorted(np.argsort(keys, kind="stable")[: self.count].tolist())]
