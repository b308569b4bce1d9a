"""Audit records in whatever form records come: tensors, a dictionary, a data set, a loader with a collate function.

Whatever the form, the audit asks for some records by their numbers, and gets a batch as the training loop would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np
import torch
from opacus.data_loader import CollateFnWithEmpty
from torch.utils.data import DataLoader, IterableDataset

from bayesdp.opacus.hidden_draws import own_copy
from bayesdp.opacus.trained_rows import check_not_trained_on
from bayesdp.validation import refuse

Rows = slice | torch.Tensor
"""Numbers of records: a slice, or a vector of indices on the CPU."""
EXPECTED = (
    "what the loader yields for the audit records, (inputs, targets) or a dictionary with one row for each of them; a "
    "data set; or a loader"
)
_MOST_PARTS = 8
"""How many containers of equal length are taken for the parts of a batch; more are records."""


class AuditData(Protocol):
    """Audit records that can be taken in any selection."""

    records: int
    "How many there are."

    def take(self, rows: Rows) -> Any:
        """Return a batch of the records with these numbers, in this order, on the device of the model."""
        ...

    def kinds(self) -> torch.Tensor:
        """Return a number for each record that tells records with different targets apart where it can, [m]."""
        ...


class OneBatch:
    """All audit records as one batch: tensors, or sequences with an entry for each record, in any nest of containers.

    The first axis of a tensor is that of records; ``axis`` says which it is for those in the first entry of a pair, the
    inputs (for models that are not ``batch_first``). Raises InvalidInputError if entries have different lengths.
    """

    def __init__(self, batch: Any, device: torch.device, axis: int = 0) -> None:
        if any(isinstance(leaf, np.ndarray) for leaf in _leaves(batch)):
            raise refuse("audit", "NumPy arrays", "tensors: torch.from_numpy(array) makes one of each")
        self._batch = to_device(batch, device)
        self._axis = axis
        self._pair = is_pair(batch)
        lengths = dict.fromkeys(self._lengths())
        if not lengths:
            raise refuse("audit", type(batch).__name__, EXPECTED)
        if len(lengths) > 1:
            raise refuse("audit", list(lengths), "as many rows in each of its tensors, one for each record")
        self.records = next(iter(lengths))

    def _lengths(self) -> list[int]:
        if not self._pair:
            return [len(tensor) for tensor in tensors_of(self._batch)]
        inputs, targets = self._batch
        shapes = [tensor.shape for tensor in tensors_of(inputs)]
        if any(len(shape) <= self._axis for shape in shapes):
            raise refuse("audit", [tuple(shape) for shape in shapes], f"inputs with at least {self._axis + 1} axes")
        return [shape[self._axis] for shape in shapes] + [len(tensor) for tensor in tensors_of(targets)]

    def take(self, rows: Rows) -> Any:
        """Return the rows of all tensors."""
        if self._pair and self._axis:
            inputs, targets = self._batch
            return type(self._batch)([_mapped(inputs, lambda tensor: tensor[:, rows]), self._taken(targets, rows)])
        return self._taken(self._batch, rows)

    def _taken(self, batch: Any, rows: Rows) -> Any:
        return _mapped(batch, lambda tensor: tensor[rows])

    def kinds(self) -> torch.Tensor:
        """Return the targets, if they are whole numbers; for sequences of them, how many are negative (ignored)."""
        return _kinds(_targets(self._batch), self.records)


class ReadRecords:
    """Audit records that were read from a data set once, and are put together by a collate function for each batch.

    Random generators that data set and collate function have of their own are copied: training may share them.
    """

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any], device: torch.device) -> None:
        self.records = len(dataset)
        try:
            self._items = _all_items(own_copy(dataset))
        except Exception:  # a data set that does not survive being copied
            self._items = _all_items(dataset)
        self._collate, self._device = own_copy(collate), device
        self._kept: dict[tuple[int, int], Any] = {}
        "Batches that are asked for at every step, by the first of their records and the one after the last."

    def take(self, rows: Rows) -> Any:
        """Return the records as the collate function puts them together; slices are put together once."""
        if not isinstance(rows, slice):
            return self._put_together([self._items[int(number)] for number in rows])
        start, stop, _ = rows.indices(self.records)
        if (start, stop) not in self._kept:
            self._kept[start, stop] = self._put_together(self._items[start:stop])
        return self._kept[start, stop]

    def kinds(self) -> torch.Tensor:
        """Return the same as ``OneBatch.kinds``, record by record."""
        each = [_kinds(_targets(item, of_one=True), 1) for item in self._items]
        return torch.cat(each)

    def _put_together(self, items: list[Any]) -> Any:
        return to_device(self._collate(items), self._device)


def _all_items(dataset: Any) -> list[Any]:
    numbers = list(range(len(dataset)))
    fetch = getattr(dataset, "__getitems__", None)  # as PyTorch's loader does it
    return list(fetch(numbers)) if fetch else [dataset[number] for number in numbers]


class SomeRecords:
    """The records of other audit data from ``first`` to before ``after``, under numbers that begin with 0."""

    def __init__(self, data: AuditData, first: int, after: int) -> None:
        self.records = after - first
        self._data, self._first = data, first

    def take(self, rows: Rows) -> Any:
        """Return the rows of the other data."""
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(self.records)
            return self._data.take(slice(self._first + start, self._first + stop))
        return self._data.take(rows + self._first)

    def kinds(self) -> torch.Tensor:
        """Return the kinds of these records."""
        return self._data.kinds()[self._first : self._first + self.records]


def audit_data(audit: Any, loader: Any, device: torch.device, axis: int) -> AuditData:
    """Return the audit records that a user gave; a data set is collated as the training ``loader`` does it.

    It may draw random numbers of the run, as reading and collating may. Raises InvalidInputError for anything that is
    no batch, data set or loader, if there is no record, and for rows that the loader evidently trains on.
    """
    check_not_trained_on(audit, loader.dataset)
    data: AuditData
    if _is_records(audit):
        data = ReadRecords(audit, _own_collate(loader.collate_fn), device)
    elif isinstance(audit, DataLoader):
        data = _from_loader(cast(Any, audit), device)
    elif isinstance(audit, torch.Tensor | Mapping | tuple | list):
        data = OneBatch(audit, device, axis)
    elif hasattr(audit, "__getitem__") and hasattr(audit, "__len__") and not isinstance(audit, str | bytes):
        data = ReadRecords(audit, _own_collate(loader.collate_fn), device)
    else:
        raise refuse("audit", type(audit).__name__, EXPECTED)
    if not data.records:
        raise refuse("audit", [], "at least one record")
    return data


def _is_records(audit: Any) -> bool:
    """Return whether a list has a record in each entry, as a data set may be a list; otherwise it is one batch.

    Records are tuples, lists or dictionaries of one form. Containers of tensors that all have the same length may be
    the parts of a batch, (inputs, targets) for example, if they are few and no dictionaries.
    """
    if not isinstance(audit, list) or not audit:
        return False
    items = cast(list[Any], audit)
    forms = {(type(item), tuple(item) if isinstance(item, Mapping) else len(item)) for item in items if _holds(item)}
    if len(forms) != 1 or not all(map(_holds, items)):
        return False
    lengths = {len(leaf) if isinstance(leaf, torch.Tensor) and leaf.ndim else None for leaf in _leaves(items)}
    return len(items) > _MOST_PARTS or isinstance(items[0], Mapping) or len(lengths) != 1 or None in lengths


def _holds(item: Any) -> bool:
    return isinstance(item, tuple | list | Mapping)


def _leaves(batch: Any) -> Iterator[Any]:
    """Yield what is in the containers of a batch."""
    if not _holds(batch):
        yield batch
        return
    for part in cast(Mapping[Any, Any], batch).values() if isinstance(batch, Mapping) else batch:
        yield from _leaves(part)


def _from_loader(loader: Any, device: torch.device) -> ReadRecords:
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise refuse(
            "audit", type(dataset).__name__, "a loader of a data set whose records can be read by their number"
        )
    return ReadRecords(dataset, _own_collate(loader.collate_fn), device)


def _own_collate(collate: Any) -> Callable[[list[Any]], Any]:
    """Return the user's collate function, from inside the one with which Opacus keeps the shape of a first batch."""
    if isinstance(collate, CollateFnWithEmpty):
        collate = collate.wrapped_collator_fn
    return list if collate is None else collate


def _targets(batch: Any, *, of_one: bool = False) -> torch.Tensor | None:
    """Return the targets of a batch, or of one record as a batch; None if it has none that are known by their place."""
    found: Any = None
    if isinstance(batch, Mapping):
        named = cast(Mapping[Any, Any], batch)
        found = named.get("labels", named.get("label"))
    elif is_pair(batch):
        found = batch[1]
    if of_one and isinstance(found, int):
        found = torch.tensor(found)
    if not isinstance(found, torch.Tensor) or found.is_floating_point() or found.is_complex():
        return None
    return found[None] if of_one else found


def _kinds(targets: torch.Tensor | None, records: int) -> torch.Tensor:
    if targets is None or targets.ndim == 0 or len(targets) != records:
        return torch.zeros(records, dtype=torch.int64)
    if targets.ndim == 1:
        return targets.long().cpu()
    return (targets < 0).flatten(1).sum(1).cpu()


def is_pair(batch: Any) -> bool:
    """Return whether a batch is (inputs, targets)."""
    return isinstance(batch, tuple | list) and len(cast(Sequence[Any], batch)) == 2


def tensors_of(batch: Any) -> list[torch.Tensor]:
    """Return all tensors of a batch with at least one axis, in the order of its containers."""
    found: list[torch.Tensor] = []
    _mapped(batch, found.append)
    return [tensor for tensor in found if tensor.ndim]


def to_device(batch: Any, device: torch.device) -> Any:
    """Return a batch with all its tensors on a device."""
    return _mapped(batch, lambda tensor: tensor.to(device))


def _mapped(batch: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Return a batch of the same form in which every tensor is changed; what is no tensor or container stays."""
    if isinstance(batch, torch.Tensor):
        return change(batch) if batch.ndim else batch
    if isinstance(batch, Mapping):
        items = cast(Mapping[Any, Any], batch).items()
        return {key: _mapped(value, change) for key, value in items}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_mapped(value, change) for value in cast(tuple[Any, ...], batch)))
    if isinstance(batch, tuple | list):
        return type(batch)([_mapped(value, change) for value in cast(Sequence[Any], batch)])  # type: ignore[arg-type]
    return batch
