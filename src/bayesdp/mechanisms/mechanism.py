"""What every mechanism offers the accountant: its log-moments.

P is the law of one release with the record, Q the law without it. For order lambda > 0

    forward(e, lambda) = lambda D_{lambda+1}(P || Q) = log E_P[(P/Q)^lambda]    (record in)
    reverse(e, lambda) = lambda D_{lambda+1}(Q || P) = log E_Q[(Q/P)^lambda]    (record out)

and ``log_moment`` is the larger of the two. The exposure e says how far one record moves P from Q.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from bayesdp import validation
from bayesdp.validation import FloatArray

ROUND_UP = 1.0 + 2.0**-40
"""Results are multiplied by this; it covers the rounding on the way, so that they are never below exact."""


class Mechanism(ABC):
    """One noisy release.

    Guarantee: log-moments are 0 at exposure 0, never negative, increasing in exposure and lambda,
    and infinite exactly where the divergence is.
    """

    swaps: ClassVar[bool] = False
    """True if some involution of the outcomes swaps P and Q. Then forward equals reverse, and for the
    Poisson-subsampled release the forward direction is the larger (Mironov, Talwar & Zhang 2019,
    "Rényi differential privacy of the sampled Gaussian mechanism", Theorem 5)."""

    @abstractmethod
    def forward(self, exposure: Any, lambdas: ArrayLike | range) -> FloatArray:
        """lambda D_{lambda+1}(P || Q), [n, L]: record in."""

    def reverse(self, exposure: Any, lambdas: ArrayLike | range) -> FloatArray:
        """lambda D_{lambda+1}(Q || P), [n, L]: record out."""
        if not self.swaps:
            raise TypeError(f"{type(self).__name__} must define reverse")
        return self.forward(exposure, lambdas)

    def log_moment(self, exposure: Any, lambdas: ArrayLike | range) -> FloatArray:
        """The larger direction, [n, L]; n exposures, L orders."""
        if self.swaps:
            return self.forward(exposure, lambdas)
        return np.maximum(self.forward(exposure, lambdas), self.reverse(exposure, lambdas))


def exposures(values: Any) -> FloatArray:
    """Scalar exposures, [n]: numbers of at least 0; infinity is allowed and costs infinity."""
    return validation.non_negative_array("exposure", values, finite=False).ravel()
