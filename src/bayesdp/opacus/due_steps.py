"""The steps at which an audit computes norms."""

from __future__ import annotations

from bayesdp.validation import count


class DueSteps:
    """An audit whose norms are due at the first step and at every ``every``-th after it.

    Raises InvalidInputError unless ``every`` is a whole number of at least 1.
    """

    def __init__(self, every: int) -> None:
        self._every = count("every", every, minimum=1)
        self._asked = 0

    def due(self) -> bool:
        """Return whether norms are to be computed at this step; called once before each step."""
        self._asked += 1
        return (self._asked - 1) % self._every == 0
