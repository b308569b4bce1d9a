"""How records come to ranks and into their batches, and whether the ranks really draw independently of each other.

The law
    Opacus' DistributedUniformWithReplacementSampler deals the records out: all ranks shuffle the numbers 0 ... N-1 with
    the same seed and epoch, and rank r of R takes every R-th from the r-th on. So each record is on exactly one rank.
    The rank then compares one ``torch.rand`` for each of its records with the rate, at each draw. If the random numbers
    of the ranks are independent, the batches of all ranks together are a Poisson sample of all records, whoever has
    them: each record is in with probability ceil(q 2^24) / 2^24, independently. Nothing else about ranks matters to the
    accounting. Two conditions are not in the sampler's hands, and are checked at each step:

    - All ranks deal in the same way. With other epochs or seeds a record could be on two ranks, and count twice.
    - No two ranks draw from the same stream. After ``torch.manual_seed(0)`` on all ranks, the records at the same
      position of different ranks are drawn together, always. Each is still in with probability q, but its company
      gives away whether it is: (1-q) A + q B against (1-q) A + q B', where A and B differ by the gradients of all the
      others at that position. All that is left is the factor q on delta (joint convexity); epsilon is that of rate 1.

How equal streams are found
    By the seed that the generator had at the draw: PyTorch's generator for the CPU uses its lower 32 bits, and equal
    ones are the same stream, possibly at other places (rank 0 also draws noise, and moves on), from which other ranks
    draw what it has drawn before. That is seen before anything of the first step is released. And by what was drawn:
    two ranks that draw independently come to the same positions with probability (q^2 + (1-q)^2)^n, and steps in which
    some ranks agree are counted as long as they follow each other, until honest ranks would not do that in 10^18 tries.

Why empty draws are handed out (``dealt_draws``)
    Opacus' sampler leaves a draw out if it is empty on its rank. The rank is then one batch behind the others, which
    wait for it at the end of the epoch, for ever; and batches that are never empty are not Poisson samples. So the
    loop of the sampler is repeated here, with its empty draws, for which Opacus' loaders have an empty batch.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from opacus.data_loader import CollateFnWithEmpty
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler
from torch.utils.data import DataLoader, Subset, TensorDataset

from bayesdp.opacus.ranks import Ranks
from bayesdp.validation import refuse

_IMPOSSIBLE = math.log(1e-18)
_ROWS = 64  # rows of a data set that are compared among ranks


@dataclass(frozen=True)
class Dealt:
    """What ranks compare about a draw: digests of 63 bits, which say nothing about the records."""

    positions: int
    "Digest of the positions drawn among the records of this rank."
    dealing: int
    "Digest of how records are dealt out to ranks."
    seed: int
    "The lower 32 bits of the seed of the generator; -1 if it has none."


def check_dealing(sampler: Any, loader: Any, ranks: Ranks) -> Any:
    """Return the sampler of a loader that deals records out to all ``ranks``; raise InvalidInputError for another."""
    if type(sampler) is not DistributedUniformWithReplacementSampler:
        expected = "Opacus' Poisson sampling over all ranks: make_private of the wrapped model, poisson_sampling=True"
        raise refuse("data_loader", type(sampler).__name__, f"DistributedUniformWithReplacementSampler, {expected}")
    if (sampler.rank, sampler.num_replicas) != (ranks.rank, ranks.size):
        raise refuse("sampler.rank", sampler.rank, f"{ranks.rank} of {ranks.size}, as in the process group")
    if not isinstance(loader.collate_fn, CollateFnWithEmpty):
        expected = "the one that make_private puts there: a rank may draw nobody, and others then wait for its batch"
        raise refuse("collate_fn", type(loader.collate_fn).__name__, expected)
    return sampler


def dealt_draws(sampler: Any) -> Iterator[tuple[torch.Tensor, Dealt]]:
    """Yield what a DistributedUniformWithReplacementSampler draws, bit for bit, and also the draws that are empty."""
    numbers = torch.arange(sampler.total_size)
    if sampler.shuffle:
        order = torch.Generator().manual_seed(sampler.shuffle_seed + sampler.epoch)
        numbers = torch.randperm(sampler.total_size, generator=order)
    numbers = numbers[sampler.rank : sampler.total_size : sampler.num_replicas]
    settings = (sampler.total_size, sampler.sample_rate, sampler.num_replicas, sampler.shuffle)
    order_seed = (sampler.shuffle_seed + sampler.epoch) if sampler.shuffle else 0
    dealing = digest(repr((*settings, order_seed)).encode())
    for _ in range(sampler.num_batches):
        seed = _seed_of(sampler.generator)
        mask = torch.rand(sampler.num_samples, generator=sampler.generator) < sampler.sample_rate
        positions = mask.nonzero(as_tuple=False).reshape(-1)
        yield numbers[positions], Dealt(digest(positions.numpy().tobytes()), dealing, seed)


class DrawGuard:
    """Compares what the ranks drew at each step.

    ``records`` is the number of records on the rank that has fewest; ``at_late_finding`` is called before a draw is
    refused for what earlier draws have shown as well.
    """

    def __init__(self, ranks: int, records: int, at_late_finding: Callable[[], None]) -> None:
        self._ranks, self._records, self._at_late_finding = ranks, records, at_late_finding
        self._log_chance = 0.0
        "Logarithm of the chance that honest ranks agree as they did in the last steps, without a pause."

    def check(self, dealt: Sequence[Dealt], rate: float) -> None:
        """Check one draw of each rank, each record drawn with probability ``rate``.

        Raises InvalidInputError if records are dealt out differently, or if ranks do not draw independently.
        """
        if len({draw.dealing for draw in dealt}) > 1:
            expected = "the same set_epoch, seed and data set on every rank: otherwise a record is on two of them"
            raise refuse("sampler", "other deals on other ranks", expected)
        seeds = [draw.seed for draw in dealt if draw.seed >= 0]
        if len(set(seeds)) < len(seeds):
            raise _drawn_together()
        if len({draw.positions for draw in dealt}) == self._ranks:
            self._log_chance = 0.0
            return
        pairs = math.comb(self._ranks, 2)
        chance = self._records * math.log(rate**2 + (1 - rate) ** 2) + math.log(pairs)
        self._log_chance += min(chance, 0.0)
        if self._log_chance < _IMPOSSIBLE:
            self._at_late_finding()
            raise _drawn_together()


def _drawn_together() -> Exception:
    return refuse(
        "seed",
        "the same on several ranks",
        "random numbers of its own for each rank, as by torch.manual_seed(seed + rank) before training: otherwise "
        "ranks draw records together, which is not Poisson sampling",
    )


def digest(content: bytes) -> int:
    """Return 63 bits of a hash."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") >> 1


def check_same_data(ranks: Ranks, dataset: Any, audit: Any) -> None:
    """Raise InvalidInputError, on all ranks, if they were given other data; as far as that is cheap to see.

    Compared are lengths, the chosen rows of a ``Subset``, and some rows of tensors.
    """
    if ranks.size > 1:
        same = "the same records in the same order on every rank: otherwise a record may be on two of them"
        ranks.agree_on("data_loader.dataset", data_digest(dataset), f"{same}, and count twice")
        ranks.agree_on("audit", data_digest(audit), f"{same} (split_audit(..., seed=) sets the same people aside)")


def data_digest(data: Any) -> int:
    """Return a digest of a data set, or of audit records in any form, by which ranks compare what they hold."""
    if isinstance(data, torch.Tensor):
        rows = torch.arange(_ROWS) * len(data) // _ROWS if len(data) else torch.arange(0)
        some = data[rows].detach().cpu().contiguous()
        return digest(repr((data.shape, data.dtype)).encode() + some.view(torch.uint8).numpy().tobytes())
    if isinstance(data, Subset):
        rows = np.asarray(list(data.indices), dtype=np.int64)
        return digest(rows.tobytes() + str(data_digest(data.dataset)).encode())
    if isinstance(data, TensorDataset):
        return digest(repr([data_digest(tensor) for tensor in data.tensors]).encode())
    if isinstance(data, Mapping):
        return digest(repr([data_digest(value) for value in cast(Mapping[Any, Any], data).values()]).encode())
    if isinstance(data, tuple | list) and len(cast(Sequence[Any], data)) <= _ROWS:
        return digest(repr([data_digest(value) for value in cast(Sequence[Any], data)]).encode())
    if isinstance(data, DataLoader):
        return data_digest(cast(Any, data).dataset)
    return digest(str(len(data) if hasattr(data, "__len__") else type(data).__name__).encode())


def _seed_of(generator: torch.Generator | None) -> int:
    try:
        return (torch.default_generator if generator is None else generator).initial_seed() & 0xFFFFFFFF
    except RuntimeError:  # not a generator with a seed
        return -1
