"""Randomized response over k answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from bayesdp import validation
from bayesdp.mechanisms.mechanism import ROUND_UP, Mechanism, checked_exposures
from bayesdp.validation import FloatArray


@dataclass(frozen=True, kw_only=True)
class RandomizedResponse(Mechanism):
    """The true one of k = ``answers`` answers with probability e^e / (e^e + k - 1), any other with 1 / (e^e + k - 1).

    The exposure e is the log-odds of the truth against one particular lie. P and Q are the laws under two different
    true answers, so the relation is that one answer is replaced by another; exchanging the two answers swaps the laws.
    For real lambda > 0, by summing over the answers,

        kappa_lambda(e) = log[(e^{(lambda+1) e} + e^{-lambda e} + k - 2) / (e^e + k - 1)]

    which equals log1p of ((e^e - 1)(e^{lambda e} - 1) + 4 sinh^2(lambda e / 2)) / (e^e + k - 1), where no term cancels.
    Never below the exact value, within 1e-10 relative of it. Fewer than 2 answers raise InvalidInputError.
    """

    answers: int = 2
    forward_is_larger: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "answers", validation.count("answers", self.answers, minimum=2))

    def forward(self, exposure: Any, lambdas: ArrayLike | range) -> FloatArray:
        """Return kappa as in the class, [n, L]."""
        e = checked_exposures(exposure)[:, None]
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
