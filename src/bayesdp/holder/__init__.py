"""The paper's composition at speed: Hölder's inequality with the Student-t estimate of every order in one pass.

``table`` is the entry and says why its result is a bound; ``sums`` adds up samples placed on a ``grid``, whose costs
``nodes`` remembers.
"""

from bayesdp.holder.table import ExcessTable

__all__ = ["ExcessTable"]
