"""The Laplace mechanism: noise with exponential tails on one number, with log-moments in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from bayesdp import validation
from bayesdp.logspace import expm1_minus
from bayesdp.mechanisms.mechanism import ROUND_UP, Mechanism, checked_exposures
from bayesdp.validation import FloatArray


@dataclass(frozen=True, kw_only=True)
class Laplace(Mechanism):
    """Laplace noise of scale b on one number; the exposure is e = |shift| / b.

    For real lambda > 0 (Mironov 2017, "Rényi differential privacy", Proposition 6)

        kappa_lambda(e) = log[(lambda+1)/(2 lambda+1) e^{lambda e} + lambda/(2 lambda+1) e^{-(lambda+1) e}],

    in both directions: reflection about the midpoint swaps the two laws. The first-order terms cancel, so it is
    computed as log1p of (lambda+1)/(2 lambda+1) r(lambda e) + lambda/(2 lambda+1) r(-(lambda+1) e) with
    r(x) = e^x - 1 - x, a sum of two non-negative terms. Never below the exact value, within 1e-10 relative of it.

    For a vector with independent noise on each coordinate, add the log-moments of the coordinates.
    """

    forward_is_larger: ClassVar[bool] = True

    def forward(self, exposure: Any, lambdas: ArrayLike | range) -> FloatArray:
        """Return kappa as in the class, [n, L]."""
        e = checked_exposures(exposure)[:, None]
        lam = validation.lambdas(lambdas, whole=False)[None, :]
        head, tail = (lam + 1) / (2 * lam + 1), lam / (2 * lam + 1)
        with np.errstate(over="ignore", invalid="ignore"):
            near = np.log1p(head * expm1_minus(lam * e) + tail * expm1_minus(-(lam + 1) * e))
            far = lam * e + np.log(head) + np.log1p(lam / (lam + 1) * np.exp(-(2 * lam + 1) * e))
            return np.where(lam * e < 30.0, near, far) * ROUND_UP
