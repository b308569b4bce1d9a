"""Set people aside for the audit: one call, before training, that leaves the user's random numbers as they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.data import Subset

from bayesdp import validation
from bayesdp.claims.request import DEFAULT_SHARES
from bayesdp.estimators import records_needed
from bayesdp.opacus.ranks import from_rank_zero
from bayesdp.validation import refuse


def split_audit(
    dataset: Any,
    *,
    records: int | None = None,
    shares: Iterable[float] = DEFAULT_SHARES,
    gamma: float = 0.01,
    seed: int | None = None,
) -> tuple[Subset[Any], Subset[Any]]:
    """Return (training data, audit data): the audit records are drawn at random, without replacement.

    ``records`` is how many people are set aside; by default as many as the ``shares`` need at confidence
    1 - ``gamma`` and no more, 459 for 99 % of people at 99 % confidence. Fewer leave some shares without a claim, and
    more give smaller figures. The draw comes from ``seed``, or from the operating system; the random numbers of
    PyTorch, NumPy and Python stay as they are. With a seed the same people are set aside again, as a run that is
    resumed needs it. In a process group, all ranks must call this; they set the same people aside, those of rank 0.

    Raises InvalidInputError if the data set has no length or index, or no more than ``records`` records.
    """
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise refuse("dataset", type(dataset).__name__, "a data set with a length, whose records can be read by number")
    probability = validation.probability("gamma", gamma)
    wanted = max(records_needed(validation.probability("shares", share), probability) for share in shares)
    set_aside = wanted if records is None else validation.count("records", records, minimum=1)
    if len(dataset) <= set_aside:
        raise refuse("len(dataset)", len(dataset), f"more than the {set_aside} records that are set aside")
    generator = torch.Generator()
    if seed is None:
        generator.manual_seed(from_rank_zero(generator.seed() >> 1))
    else:
        generator.manual_seed(validation.count("seed", seed, minimum=0))
    order = torch.randperm(len(dataset), generator=generator).tolist()
    return Subset(dataset, sorted(order[set_aside:])), Subset(dataset, sorted(order[:set_aside]))
