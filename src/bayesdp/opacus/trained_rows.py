"""Refuse audit records that are rows of the training data, and a person with several rows, where that is evident.

Claims about shares rest on audit records that were not trained on: the norms of those that were are smaller, and so
are the figures. Only the structure of data sets is looked at (which objects they are made of, which numbers a
``Subset`` takes, which memory the inputs have), never the values of a row, so a refusal says nothing about training
data. Copies, and data sets inside a class of somebody's own, are not recognised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

from bayesdp.validation import refuse

Rows = NDArray[np.int64]
"""Numbers of rows [n], in any order; none below 0 if the data set has a length."""


def check_not_trained_on(audit: Any, dataset: Any) -> None:
    """Raise InvalidInputError if ``audit``, in any form that ``watch`` takes, evidently has rows of ``dataset``."""
    if have_rows_in_common(audit, dataset):
        expected = (
            "people who are not trained on: train, audit = bayesdp.opacus.split_audit(data), and make the data_loader "
            "of train, not of data"
        )
        raise refuse("audit", "rows of the training data", expected)


def have_rows_in_common(audit: Any, dataset: Any) -> bool:
    """Return whether ``audit``, in any form that ``watch`` takes, evidently has rows of ``dataset``."""
    held = audit.dataset if isinstance(audit, DataLoader) else audit
    return any(_meet(ours, theirs) for ours, theirs in product(parts_of(held), parts_of(dataset)))


def check_one_row_each(dataset: Any) -> None:
    """Raise InvalidInputError if a data set, of which nobody has more than one row, evidently has a row twice."""
    parts = list(parts_of(dataset))
    repeated = any(rows is not None and len(np.unique(rows)) < len(rows) for _, rows in parts)
    if repeated or any(_meet(ours, theirs) for ours, theirs in combinations(parts, 2)):
        expected = (
            "'row': the training data has the same row more than once; claims(rows=k) are about a person with k of them"
        )
        raise refuse("unit", "person", expected)


def parts_of(dataset: Any, numbers: Rows | None = None) -> Iterator[tuple[Any, Rows | None]]:
    """Yield the data sets that one is made of, each with the numbers of the rows that are taken; None for all."""
    if isinstance(dataset, Subset):
        taken = _whole(cast(Any, dataset).indices, dataset.dataset)
        if taken is not None:
            yield from parts_of(dataset.dataset, taken if numbers is None else taken[numbers])
    elif isinstance(dataset, ConcatDataset):
        first = 0
        for part, after in zip(dataset.datasets, dataset.cumulative_sizes, strict=True):
            its_own = None if numbers is None else numbers[(numbers >= first) & (numbers < after)] - first
            yield from parts_of(part, its_own)
            first = after
    else:
        yield dataset, numbers


def _whole(indices: Any, dataset: Any) -> Rows | None:
    """Return the indices of a subset as numbers of rows; None if they are something else."""
    try:
        numbers = np.asarray(indices)
    except ValueError:
        return None
    if not numbers.size:
        return np.empty(0, np.int64)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        return None
    numbers = numbers.astype(np.int64)
    if hasattr(type(dataset), "__len__") and numbers.min() < 0:
        return np.where(numbers < 0, numbers + len(dataset), numbers)
    return numbers


def _meet(ours: tuple[Any, Rows | None], theirs: tuple[Any, Rows | None]) -> bool:
    """Return whether two parts have a row in common."""
    (first, first_rows), (second, second_rows) = ours, theirs
    if any(rows is not None and not rows.size for rows in (first_rows, second_rows)):
        return False
    if first is second:
        return first_rows is None or second_rows is None or bool(np.isin(first_rows, second_rows).any())
    tensors, others = _tensors(first), _tensors(second)
    if len(tensors) != len(others):
        return False
    for number, (tensor, other) in enumerate(zip(tensors, others, strict=True)):
        offset = _offset(tensor, other) if number == 0 or tensor.ndim > 1 else None  # dummy targets may be shared
        if offset is None:
            continue
        mine = np.arange(len(tensor)) if first_rows is None else first_rows
        if bool(np.isin(mine + offset, np.arange(len(other)) if second_rows is None else second_rows).any()):
            return True
    return False


def _offset(tensor: torch.Tensor, other: torch.Tensor) -> int | None:
    """Return which row of ``other`` row 0 of ``tensor`` is in memory; None if their rows are not the same there."""
    if any(each.layout != torch.strided for each in (tensor, other)):
        return None
    same_form = (tensor.dtype, tensor.device, tensor.shape[1:]) == (other.dtype, other.device, other.shape[1:])
    if not same_form or tensor.stride() != other.stride() or not tensor.stride(0):
        return None
    apart, left = divmod(tensor.data_ptr() - other.data_ptr(), tensor.stride(0) * tensor.element_size())
    return None if left else apart


def _tensors(dataset: Any) -> Sequence[torch.Tensor]:
    """Return the tensors of a data set of tensors, or of a batch; none if it is something else."""
    given = dataset.tensors if isinstance(dataset, TensorDataset) else dataset
    if not isinstance(given, tuple | list) or len(cast(Sequence[Any], given)) > 8:
        return []
    tensors = cast(Sequence[Any], given)
    known = all(isinstance(tensor, torch.Tensor) and tensor.ndim and tensor.numel() for tensor in tensors)
    return tensors if known else []
