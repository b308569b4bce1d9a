"""Randomized response over k answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from bayesdp import validation
from bayesdp.mechanisms.mechanism import ROUND_UP, Mechanism, exposures
from bayesdp.validation import FloatArray


@dataclass(frozen=True, kw_only=True)
class RandomizedResponse(Mechanism):
    """The true one of k answers with probability e^e / (e^e + k - 1), any other with 1 / (e^e + k - 1).

    The exposure e is the log-odds of truth against one lie. Between two different true answers

        log[(e^{(lambda+1) e} + e^{-lambda e} + k - 2) / (e^e + k - 1)]

    which equals log1p of ((e^e - 1)(e^{lambda e} - 1) + 4 sinh^2(lambda e / 2)) / (e^e + k - 1): no
    term cancels. lambda > 0 may be real. Relation: one answer is replaced by another.
    """

    answers: int = 2
    swaps: ClassVar[bool] = True  # exchange the two answers

    def __post_init__(self) -> None:
        object.__setattr__(self, "answers", validation.count("answers", self.answers, minimum=2))

    def forward(self, exposure: Any, lambdas: ArrayLike | range) -> FloatArray:
        """See the class."""
        e = exposures(exposure)[:, None]
        lam = validation.lambdas(lambdas, whole=False)[None, :]
        k = float(self.answers)
        with np.errstate(over="ignore", invalid="ignore"):
            growth = np.expm1(e) * np.expm1(lam * e) + 4.0 * np.sinh(0.5 * lam * e) ** 2
            near = np.log1p(growth / (np.exp(e) + k - 1.0))
            # log numerator - log denominator with e^{(lambda+1) e} and e^e taken out of each
            far = (
                lam * e
                + np.log1p(np.exp(-(2 * lam + 1) * e) + (k - 2.0) * np.exp(-(lam + 1) * e))
                - np.log1p((k - 1.0) * np.exp(-e))
            )
        return np.where((lam + 1) * e < 30.0, near, far) * ROUND_UP
