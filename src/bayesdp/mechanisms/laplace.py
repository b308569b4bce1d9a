"""The Laplace mechanism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from bayesdp import validation
from bayesdp.logspace import expm1_minus
from bayesdp.mechanisms.mechanism import ROUND_UP, Mechanism, exposures
from bayesdp.validation import FloatArray


@dataclass(frozen=True, kw_only=True)
class Laplace(Mechanism):
    """Laplace noise of scale b on one number; exposure e = |shift| / b.

    With lambda > 0 real (Mironov 2017, "Rényi differential privacy", Proposition 6)

        log[(lambda+1)/(2 lambda+1) e^{lambda e} + lambda/(2 lambda+1) e^{-(lambda+1) e}].

    Both first-order terms cancel; r(x) = e^x - 1 - x leaves a sum of two non-negative terms. For a
    vector with independent noise, add the log-moments of its coordinates.
    """

    swaps: ClassVar[bool] = True  # reflection about the midpoint

    def forward(self, exposure: Any, lambdas: ArrayLike | range) -> FloatArray:
        """See the class."""
        e = exposures(exposure)[:, None]
        lam = validation.lambdas(lambdas, whole=False)[None, :]
        head, tail = (lam + 1) / (2 * lam + 1), lam / (2 * lam + 1)
        with np.errstate(over="ignore", invalid="ignore"):
            near = np.log1p(head * expm1_minus(lam * e) + tail * expm1_minus(-(lam + 1) * e))
            far = lam * e + np.log(head) + np.log1p(lam / (lam + 1) * np.exp(-(2 * lam + 1) * e))
        return np.where(lam * e < 30.0, near, far) * ROUND_UP
