"""Refuse a collate function that puts several records into one row of a batch, as mixup and cutmix do.

A row is clipped once. If it is made of two records, each of them is in two rows, and whoever leaves changes both: no
epsilon holds. So a few records are collated twice, beside the same others in another order and with the same random
numbers. The first record must come out the same. Random augmentation of each record by itself passes, padding too.

What it cannot see: rows that are mixed in the training loop, between loader and model; mixing with random numbers
that are not those of PyTorch, NumPy or Python; statistics of the whole batch, which do not depend on its order (the dry
run of the audit sees those, if audit records are collated in this way).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch.utils.data import IterableDataset

from bayesdp.opacus.hidden_draws import borrowed_random_numbers, draw_on, own_copy, same
from bayesdp.validation import InvalidInputError, refuse

_READ = 7  # records
_TRIES = 8  # mixup may leave a record alone, or do nothing this time


def check_collated_by_itself(loader: Any, axis: int) -> None:
    """Raise InvalidInputError if a row of a batch depends on the other records in it; ``axis`` is that of records.

    Nothing of the run changes: random numbers are put back, and generators of the collate function are copied. Data
    that cannot be read by index, or only with an error, pass.
    """
    if isinstance(loader.dataset, IterableDataset) or not hasattr(loader.dataset, "__getitem__"):
        return
    with borrowed_random_numbers():
        try:
            if _mixes(loader, axis):
                raise mixed("collate_fn")
        except InvalidInputError:
            raise
        except Exception:  # whatever is wrong with a record is no business of ours, and must not show
            return


def mixed(name: str) -> InvalidInputError:
    """Return the error for rows that several records are in."""
    expected = (
        "rows of one record each: what is made of several (mixup, cutmix) is clipped once, and no epsilon holds; "
        "augment each record by itself"
    )
    return refuse(name, "mixed records", expected)


def _mixes(loader: Any, axis: int) -> bool:
    records = len(loader.dataset)
    numbers = sorted({number * (records - 1) // (_READ - 1) for number in range(_READ)})
    if len(numbers) < _READ:
        return False
    dataset, collate = own_copy(loader.dataset), own_copy(loader.collate_fn)
    items = [dataset[number] for number in numbers]
    reordered = [items[0], *items[2:], items[1]]

    def rows_of(given: list[Any]) -> list[Sequence[torch.Tensor]]:
        with borrowed_random_numbers():
            return list(_rows(own_copy(collate)(given), axis))

    for _ in range(_TRIES):
        first, repeated, again = rows_of(items), rows_of(items), rows_of(reordered)
        if not first or len(first) != len(again) or not same(first, repeated):
            return False
        pairs = list(zip(first, again, strict=True))
        if not any(all(same(rows[0], others[place]) for rows, others in pairs) for place in range(_READ)):
            return True
        draw_on()
        collate(items)  # generators of its own move on, too
    return False


def _rows(batch: Any, axis: int) -> Iterator[Sequence[torch.Tensor]]:
    """Yield the rows of each tensor of a batch."""
    if isinstance(batch, torch.Tensor):
        along = next((each for each in (axis, 0) if batch.ndim > each and batch.shape[each] == _READ), None)
        if along is not None:
            yield batch.unbind(along)
    elif isinstance(batch, Mapping | tuple | list):
        inside = cast(Mapping[Any, Any], batch).values() if isinstance(batch, Mapping) else cast(Sequence[Any], batch)
        for each in inside:
            yield from _rows(each, axis)
