"""Random values for the fuzzer: ordinary ones, the ends of every range, and what nobody should pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

TINY, HUGE = 5e-324, 1.7976931348623157e308
EDGES = (0.0, -0.0, TINY, 1e-308, 2.3e-308, 1e-100, 1e-16, 1e-6, 0.5, 1 - 2.0**-53, 1.0, 1 + 2.0**-52, 2.0, 64.0, 1e6)
EDGES += (1e12, 1e12 + 1, 2.0**53, 1e100, 1e154, 1.4e154, 1e300, HUGE)
WRONG: tuple[Any, ...] = (
    *(math.nan, math.inf, -math.inf, -1, -1e-9, -TINY, None, "0.5", "", "nan", b"1", 1j, 10**400, -(10**400), object()),
    *(Decimal("0.5"), Decimal("NaN"), Decimal("Infinity"), Decimal("-1"), Decimal("1e-400"), Fraction(1, 3)),
    *(Fraction(10**400), True, False, np.bool_(True), np.float16(0.5), np.float16(6e-8), np.float32(1e-45)),
    *(np.float64("nan"), np.int8(-128), np.uint64(2**64 - 1), np.longdouble("1e4000"), np.datetime64("2020"), [], ()),
    *(
        [0.5],
        [[0.5]],
        {},
        {"a": 1},
        set(),
        np.array(0.5),
        np.array([]),
        np.zeros((1, 1, 1)),
        np.array("a"),
        float,
        print,
    ),
    *(np.ma.masked, "a\nb", "x" * 500, [math.nan] * 200, range(3), iter([1.0]), Ellipsis, NotImplemented),
)
DTYPES = ("f8", "f8", "f8", "f4", "f2", "g", "i1", "u1", "i8", "u8", "b1", "O", "c16", "U4", "M8[s]", ">f8", ">i4")


class Values:
    """Random values of one case, all from one generator."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def one_of(self, choices: Any) -> Any:
        """Return one of several values."""
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return bool(self.rng.random() < probability)

    def scalar(self, ordinary: Callable[[], Any], wild: float = 0.03) -> Any:
        """Return an ordinary value, mostly; else an end of a range or something wrong, each with probability wild."""
        luck = self.rng.random()
        if luck < wild:
            return self.one_of(WRONG)
        if luck < 2 * wild:
            return self.one_of(EDGES)
        value = ordinary()
        return self.one_of((np.float64, Decimal, Fraction, np.array))(float(value)) if luck < 2.3 * wild else value

    def log_uniform(self, low: float, high: float) -> float:
        """Return a number whose logarithm is uniform between those of two numbers."""
        return float(min(high, max(low, math.exp(self.rng.uniform(math.log(low), math.log(high))))))

    def rate(self) -> Any:
        """Return a sampling rate."""
        return self.scalar(lambda: 1.0 if self.chance(0.3) else self.log_uniform(1e-9, 1.0))

    def probability(self) -> Any:
        """Return a probability, delta or gamma or share."""
        return self.scalar(lambda: self.log_uniform(1e-30, 0.999) if self.chance(0.5) else self.rng.random())

    def positive(self, low: float = 1e-3, high: float = 1e3) -> Any:
        """Return a positive number."""
        return self.scalar(lambda: self.log_uniform(low, high))

    def count(self, most: int) -> Any:
        """Return a whole number, as an int or as a float that is whole."""
        return self.scalar(lambda: self.one_of((int, int, float, np.int32))(self.rng.integers(0, most + 1)))

    def orders(self, most: float = 1e6) -> Any:
        """Return orders lambda; the valid ones are at most ``most``, since sums over an order take as long as it is."""
        kind = int(self.rng.integers(6))
        if kind == 0:
            return range(1, int(self.rng.integers(2, 20)))
        if kind == 1:
            return self.array(lambda n: self.rng.integers(1, 65, n).astype(float))
        if kind == 2:
            return [self.log_uniform(1e-3, 1e3)]
        if kind == 3:
            return self.one_of(
                ([1], [1000.0], [most], [1.5, 2.5], [64, 1], np.arange(1, 9, dtype=np.int8), [0], [1e6 + 1])
            )
        return sorted(int(order) for order in self.rng.integers(1, 65, int(self.rng.integers(1, 6))))

    def array(self, ordinary: Callable[[int], Any], sizes: tuple[int, ...] = (0, 1, 2, 3, 5, 20, 60)) -> Any:
        """Return an array: of ordinary numbers mostly, at times of another shape or type, or with a bad entry in it."""
        size = self.one_of(sizes)
        values = np.asarray(ordinary(size), dtype=float)
        luck = self.rng.random()
        if luck < 0.03 and size:
            values = values.copy()
            values[int(self.rng.integers(size))] = self.one_of(
                (math.nan, math.inf, -math.inf, -1.0, -0.0, TINY, HUGE, 1e200)
            )
        elif luck < 0.06:
            return self._of_type(values, self.one_of(DTYPES))
        elif luck < 0.08:
            return values.reshape(self.one_of(((-1, 1), (1, -1), (1, -1, 1), (-1,))) if size else (0, 3))
        elif luck < 0.10:
            return self.one_of((values.tolist(), tuple(values), [Decimal(v) for v in values], values[::-1], values[:0]))
        elif luck < 0.11:
            return np.ma.masked_array(values, mask=self.rng.random(size) < 0.3)
        elif luck < 0.12:
            return self.one_of(WRONG)
        elif luck < 0.13:
            return [values.tolist(), [1.0]] if size != 1 else [[1.0], [1.0, 2.0]]
        return values

    @staticmethod
    def _of_type(values: Any, kind: str) -> Any:
        with np.errstate(all="ignore"):
            if kind == "M8[s]":
                return np.zeros(len(values), kind)
            return values.astype(kind)

    def norms(self, sizes: tuple[int, ...] = (0, 1, 3, 5, 20, 60)) -> Any:
        """Return gradient norms."""
        scale = self.log_uniform(1e-6, 1e3)
        return self.array(lambda n: scale * self.rng.lognormal(0.0, 1.0, n), sizes)

    def text(self) -> Any:
        """Return text, of which some cannot be encoded."""
        return self.one_of(("a", "", "é ü 漢字", "\ud800", "a\nb", "\x00", "<b>&amp;", "x" * 1000, 5, None, "‮abc"))
