"""Notice training that a watch did not see: with another optimizer before its first step, or after it was closed.

The claims of such a run would be about a part of it only. Either shows in the parameters: PyTorch counts how often each
was changed in place. That alone may be anything (weights that are averaged or restored), so before the first step there
is a warning only. After ``close`` the accountant of Opacus tells: if it has counted steps since, and the ledger has not
grown, then parameters were trained by steps that are in no ledger, and claims are refused.
"""

from __future__ import annotations

import warnings
from typing import Any

from bayesdp.opacus.earlier_steps import EarlierSteps
from bayesdp.run_ledger import Ledger
from bayesdp.validation import refuse


class OutsideSteps:
    """Whether the parameters of a model were trained outside of the watch."""

    def __init__(self, model: Any, earlier: EarlierSteps, *, resumed: bool) -> None:
        self._model, self._earlier = model, earlier
        self._begun = None if resumed else self._versions()
        self._closed: tuple[list[int], int, int] | None = None
        "When the watch was closed: versions of the parameters, steps of the accountant, steps of the ledger."

    def close(self, ledger: Ledger) -> None:
        """Note where the run is as the watch ends."""
        self._closed = self._versions(), self._earlier.counted, ledger.steps

    def check(self, ledger: Ledger) -> None:
        """Warn, once, of changes before the first step; raise InvalidInputError if steps followed the end of the watch.

        Called by whatever was called by the user.
        """
        if not ledger.steps and self._begun not in (None, self._versions()):
            self._begun = None
            warnings.warn(
                "Parameters were changed, but no step was recorded. If that was training, it was not with the "
                "optimizer given to watch.",
                stacklevel=3,
            )
        if self._closed is None:
            return
        versions, counted, recorded = self._closed
        since = self._earlier.counted - counted
        if since > 0 and ledger.steps == recorded and self._versions() != versions:
            expected = (
                "it to be closed after the last step: claims would not be about the steps since then. Call watch again "
                "with Ledger.open of the ledger, which is charged with them"
            )
            raise refuse("watch", f"closed {since} steps ago", expected)

    def _versions(self) -> list[int]:
        return [parameter._version for parameter in self._model._module.parameters()]
