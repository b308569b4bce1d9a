"""The sum of clipped updates with noise: what a round releases about the clients that it drew."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import Array, ArrayRecord

from bayesdp.randomness import Randomness, gaussian
from bayesdp.validation import FloatArray, refuse

_BELOW = 1 - 2.0**-40  # clipped updates stay below the clip bound, whatever a product rounds
_ABOVE = 1 + 2.0**-40  # norms that are handed on are rounded up


def model_of(arrays: ArrayRecord) -> dict[str, FloatArray]:
    """Return the arrays of a model as float64, by name.

    Raises InvalidInputError unless all are finite floating-point arrays: counters and other buffers cannot have noise.
    """
    model: dict[str, FloatArray] = {}
    for name, array in arrays.items():
        values = array.numpy()
        if values.dtype.kind != "f":
            expected = "floating-point arrays only: send parameters, without buffers such as BatchNorm's counters"
            raise refuse(f"initial_arrays[{name!r}]", str(values.dtype), expected)
        if not np.isfinite(values).all():
            raise refuse(f"initial_arrays[{name!r}]", "values that are not finite", "finite numbers")
        model[name] = values.astype(np.float64)
    if not model:
        raise refuse("initial_arrays", {}, "at least one array")
    return model


def update_of(before: Mapping[str, FloatArray], arrays: ArrayRecord) -> dict[str, FloatArray] | None:
    """Return what a client changed, its arrays minus those it was sent, by name; None if that cannot be had.

    None for other names or shapes than those sent, for values that are not finite, and for anything that cannot be
    read: a client must not be able to stop the run, or to show in any other way that it took part.
    """
    try:
        if set(arrays.keys()) != set(before):
            return None
        update: dict[str, FloatArray] = {}
        for name, start in before.items():
            values = np.asarray(arrays[name].numpy())
            if values.shape != start.shape or values.dtype.kind != "f":
                return None
            update[name] = values.astype(np.float64) - start
    except Exception:  # bytes that are no array, for instance: see above
        return None
    return update if math.isfinite(_norm(update)) else None


def update_norm(before: Mapping[str, FloatArray], arrays: ArrayRecord) -> float | None:
    """Return the norm of a client's update over all arrays together, rounded up; None as in ``update_of``."""
    update = update_of({name: np.asarray(value, np.float64) for name, value in before.items()}, arrays)
    return None if update is None else _norm(update) * _ABOVE


def _norm(update: Mapping[str, FloatArray]) -> float:
    largest = max((float(np.abs(part).max(initial=0.0)) for part in update.values()), default=0.0)
    if not 0 < largest < math.inf:  # 0, infinity or NaN
        return largest
    return largest * math.sqrt(math.fsum(float(np.square(part / largest).sum()) for part in update.values()))


@dataclass(frozen=True)
class PrivateSum:
    """A sum of clipped updates that is about to be released; ``norms`` are those of its clients, before clipping."""

    total: dict[str, FloatArray]
    norms: list[float]

    @staticmethod
    def of(before: Mapping[str, FloatArray], answers: Iterable[ArrayRecord], clip: float) -> PrivateSum:
        """Add up what clients answered, each clipped to norm ``clip``; answers that cannot be used add nothing."""
        total = {name: np.zeros(start.shape) for name, start in before.items()}
        norms: list[float] = []
        for arrays in answers:
            update = update_of(before, arrays)
            if update is None:
                continue
            norm = _norm(update)
            scale = 1.0 if norm <= clip * _BELOW else clip / norm * _BELOW
            for name, part in update.items():
                total[name] += scale * part
            norms.append(norm)
        return PrivateSum(total, norms)

    def released(self, randomness: Randomness, noise_std: float, *, step: int) -> dict[str, FloatArray]:
        """Return the sum with Gaussian noise of this standard deviation on every coordinate, by name."""
        size = sum(part.size for part in self.total.values())
        noise = gaussian(randomness, [size], noise_std, step=step)
        noisy: dict[str, FloatArray] = {}
        start = 0
        for name, part in self.total.items():
            noisy[name] = part + noise[start : start + part.size].reshape(part.shape)
            start += part.size
        return noisy


def moved(arrays: ArrayRecord, change: Mapping[str, FloatArray], rate: float) -> ArrayRecord:
    """Return a model that has moved by ``rate`` times ``change``, in the types of its arrays."""
    after: dict[str, Array] = {}
    for name, array in arrays.items():
        values = array.numpy()
        after[name] = Array(np.asarray(values.astype(np.float64) + rate * change[name], dtype=values.dtype))
    return ArrayRecord(after)
