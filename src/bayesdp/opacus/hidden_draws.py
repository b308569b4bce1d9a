"""Find randomness that training uses and does not release: dropout, stochastic depth, random augmentation.

Why it matters
    Let Q be the law of what a step releases without a record, and P_u its law with the record if the hidden draw (a
    dropout mask, a crop) is u. Nobody is told u, so the record's privacy loss belongs to the mixture E_u[P_u]. An audit
    record has one draw at each step, and its norm is the norm of that draw: a mask that happens to silence it gives
    norm 0 and epsilon 0, although the mixture gives it away. The mean over all draws of e^kappa would be a bound
    (Jensen: (Q / E[P_u])^lambda <= E[(Q / P_u)^lambda]); its mean over a few draws is random and may lie below. So
    shares are called estimates, or audit records are charged at the clip bound. The gate and the average are
    unaffected: by joint convexity the divergence of mixtures is at most the mean divergence, over records and draws.

How it is found
    By what happens, not by what layers are called: whether the pass of audit records draws random numbers (of PyTorch,
    NumPy or Python) is seen at every step, and a second pass shows random numbers from other sources. Data are read
    twice, a few records of a private copy of the data set; all that comes out is whether the two readings are equal.

What it cannot see: augmentation in the training loop itself, between loader and model.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.utils.data import IterableDataset

_READ = 4  # records of the data set that are read twice
_LARGE = 1000  # a list this long is data, and is not copied
_DEPTH = 8
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


class Borrowed:
    """Whether random numbers of the run were drawn while they were borrowed."""

    drawn = False


@contextmanager
def borrowed_random_numbers(devices: Sequence[int] = ()) -> Generator[Borrowed]:
    """Put the random numbers of the run (PyTorch, NumPy, Python) back afterwards, and note whether any were drawn."""
    borrowed, before = Borrowed(), _states(devices)
    try:
        yield borrowed
    finally:
        borrowed.drawn = not _same_states(before, _states(devices))
        if borrowed.drawn:
            torch.set_rng_state(before[0])
            np.random.set_state(before[1])  # noqa: NPY002
            random.setstate(before[2])
            for device, state in zip(devices, before[3:], strict=True):
                torch.cuda.set_rng_state(state, device)


def draw_on() -> None:
    """Move the random numbers of the run (PyTorch, NumPy, Python) on by one each: for another try with others."""
    torch.rand(())
    np.random.random_sample()  # noqa: NPY002
    random.random()


def _states(devices: Sequence[int]) -> list[Any]:
    on_devices = [torch.cuda.get_rng_state(device) for device in devices]
    return [torch.get_rng_state(), np.random.get_state(legacy=False), random.getstate(), *on_devices]  # noqa: NPY002


def _same_states(before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Return whether no generator has moved. Python's state is a long tuple of numbers, which compares by itself."""
    tensors = (0, *range(3, len(before)))
    return (
        before[2] == after[2]
        and same(before[1], after[1])
        and all(torch.equal(before[number], after[number]) for number in tensors)
    )


def devices_of(model: nn.Module) -> list[int]:
    """Return the numbers of the GPUs that hold a model."""
    if not torch.cuda.is_initialized():
        return []
    return sorted({parameter.get_device() for parameter in model.parameters() if parameter.is_cuda})


def random_layers(model: nn.Module) -> list[str]:
    """Return the names of the classes of layers that are known to draw at random in training mode, each once."""
    return sorted({type(layer).__name__ for layer in model.modules() if layer.training and draws_at_random(layer)})


def draws_at_random(layer: Any) -> bool:
    """Return whether a layer is known to draw at random in training mode."""
    if isinstance(layer, nn.modules.dropout._DropoutNd):  # pyright: ignore[reportPrivateUsage]
        return layer.p > 0
    if isinstance(layer, nn.RReLU):
        return layer.lower < layer.upper
    if isinstance(layer, nn.MultiheadAttention | nn.RNNBase):
        return layer.dropout > 0
    if isinstance(layer, nn.FractionalMaxPool2d | nn.FractionalMaxPool3d):
        return True
    names = {"StochasticDepth": "p", "DropPath": "drop_prob", "DropBlock2d": "p", "DropBlock3d": "p"}
    return bool(getattr(layer, names.get(type(layer).__name__, ""), None))


def loader_draws(loader: Any) -> bool:
    """Return whether a loader gives the same records in another form when it is asked again.

    False for data that cannot be read by index, or only with an error. Nothing of the run changes: random numbers are
    put back, and generators of the data set's own are copied.
    """
    if isinstance(loader.dataset, IterableDataset) or not hasattr(loader.dataset, "__getitem__"):
        return False
    with borrowed_random_numbers() as borrowed:
        try:
            dataset, collate = own_copy(loader.dataset), own_copy(loader.collate_fn)
            first, second = _read(dataset, collate), _read(dataset, collate)
        except Exception:  # whatever is wrong with a record is no business of ours, and must not show
            return False
    return borrowed.drawn or not same(first, second)


def _read(dataset: Any, collate: Any) -> Any:
    indices = sorted({number * (len(dataset) - 1) // (_READ - 1) for number in range(_READ)})
    fetch = getattr(dataset, "__getitems__", None)  # as PyTorch's loader does it
    return collate(fetch(indices) if fetch else [dataset[index] for index in indices])


def own_copy(value: Any, depth: int = 0, memo: dict[int, Any] | None = None) -> Any:
    """Return a copy that shares all data but has random generators of its own; what cannot be copied is shared."""
    memo = {} if memo is None else memo
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, _GENERATORS):
        copied: Any = copy.deepcopy(value)
    elif depth > _DEPTH or isinstance(value, torch.Tensor | np.ndarray | type):
        copied = cast(Any, value)
    elif type(value) in (list, tuple, dict):
        if len(value) > _LARGE:
            return value
        if isinstance(value, dict):
            items = cast(dict[Any, Any], value).items()
            copied = {key: own_copy(item, depth + 1, memo) for key, item in items}
        else:
            copied = type(value)(own_copy(item, depth + 1, memo) for item in value)
    elif hasattr(value, "__dict__") and not callable(getattr(value, "__get__", None)):
        try:
            copied = copy.copy(value)
            if copied is value:
                return value
            for name, attribute in vars(value).items():
                copied.__dict__[name] = own_copy(attribute, depth + 1, memo)
        except Exception:
            copied = value
    else:
        copied = value
    memo[id(value)] = copied
    return copied


def same(first: Any, second: Any) -> bool:
    """Return whether two values are equal, tensors and arrays bit for bit; objects that cannot be compared are."""
    if type(first) is not type(second):
        return False
    if isinstance(first, torch.Tensor):
        return first.shape == second.shape and bool(((first == second) | ((first != first) & (second != second))).all())
    if isinstance(first, np.ndarray):
        return np.array_equal(first, second, equal_nan=first.dtype.kind in "fc")
    if isinstance(first, Mapping):
        mapping, other = cast(Mapping[Any, Any], first), cast(Mapping[Any, Any], second)
        return mapping.keys() == other.keys() and all(same(mapping[key], other[key]) for key in mapping)
    if isinstance(first, tuple) and all(type(item) is int for item in cast(tuple[Any, ...], first)):
        return first == second  # the state of Python's generator, which is long
    if isinstance(first, list | tuple):
        items, others = cast(Sequence[Any], first), cast(Sequence[Any], second)
        return len(items) == len(others) and all(map(same, items, others))
    if type(first).__eq__ is not object.__eq__:
        try:
            return bool(first == second) or first != first  # NaN is equal to itself here
        except Exception:
            return True
    return same(vars(first), vars(second)) if hasattr(first, "__dict__") else True
