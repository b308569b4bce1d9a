"""The interface of every mechanism: the log-moments from which all costs are added up.

P is the law of one release with the record, Q the law without it. For an order lambda > 0 (the Rényi order is
alpha = lambda + 1)

    forward(e, lambda) = lambda D_{lambda+1}(P || Q) = log E_P[(P/Q)^lambda]    (record in)
    reverse(e, lambda) = lambda D_{lambda+1}(Q || P) = log E_Q[(Q/P)^lambda]    (record out)

and ``log_moment`` is the larger of the two, so that it covers both directions of add/remove. The exposure e says how
far one record moves P from Q; each mechanism says in which unit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from bayesdp import validation
from bayesdp.validation import FloatArray

ROUND_UP = 1.0 + 2.0**-40
"""The factor on every result. It is more than the rounding on the way can lose: results are never below exact."""


class Mechanism(ABC):
    """One noisy release. A subclass defines ``forward``, and ``reverse`` where that can be the larger direction.

    Formal guarantees, checked for every registered mechanism by tests/contracts/test_mechanism_contract.py. Log-moments

    - are 0 at exposure 0, never negative and never NaN;
    - increase in the exposure and in lambda;
    - are infinite where the divergence is, or where it exceeds float64;
    - are upper bounds: rounding and approximations never leave them below the exact value.

    n exposures and L orders give an array [n, L]. Orders outside (0, 1e6] and exposures that are negative or NaN raise
    ``InvalidInputError``.
    """

    forward_is_larger: ClassVar[bool] = False
    """True if ``forward`` is never below the exact reverse direction, for this release and for its Poisson-subsampled
    form alike. ``log_moment`` is then ``forward`` alone; False is always safe, since the larger of both is taken.

    It is true where an involution of the outcomes swaps P and Q: both directions are then equal, and after subsampling
    the forward one is the larger (Mironov, Talwar & Zhang 2019, "Rényi differential privacy of the sampled Gaussian
    mechanism", Theorem 5). It is also true for the subsampled Gaussian itself, by the same theorem, although no
    involution swaps its two laws."""

    @abstractmethod
    def forward(self, exposure: Any, lambdas: ArrayLike | range) -> FloatArray:
        """Return lambda D_{lambda+1}(P || Q), [n, L]: the direction of the record in."""

    def reverse(self, exposure: Any, lambdas: ArrayLike | range) -> FloatArray:
        """Return an upper bound of lambda D_{lambda+1}(Q || P), [n, L]: the direction of the record out.

        Unless a subclass defines it, this is ``forward``; TypeError if that may be the smaller direction.
        """
        if not self.forward_is_larger:
            raise TypeError(f"{type(self).__name__} must define reverse")
        return self.forward(exposure, lambdas)

    def log_moment(self, exposure: Any, lambdas: ArrayLike | range) -> FloatArray:
        """Return the larger of both directions, [n, L], for n exposures and L orders: what a step costs a record."""
        if self.forward_is_larger:
            return self.forward(exposure, lambdas)
        return np.maximum(self.forward(exposure, lambdas), self.reverse(exposure, lambdas))


def checked_exposures(values: Any) -> FloatArray:
    """Return scalar exposures as an array [n] of numbers of at least 0, of which infinity is one.

    Raises InvalidInputError, which names the first exposure that is negative or NaN.
    """
    return validation.non_negative_array("exposure", values, finite=False).ravel()
