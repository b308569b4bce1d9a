"""What may be told about a run while it is training: the live line, and curves on a dashboard."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class View(Protocol):
    """Something that shows a run as it goes on."""

    def show(self) -> None:
        """Show the run after one more step; called at every step, so it must be cheap."""
        ...

    def end(self) -> None:
        """Show the last step, if it was not shown; called when the run ends, perhaps more than once."""
        ...


class Views:
    """Several views as one."""

    def __init__(self, views: Iterable[View]) -> None:
        self._views = list(views)

    def show(self) -> None:
        """Show all of them."""
        for view in self._views:
            view.show()

    def end(self) -> None:
        """End all of them."""
        for view in self._views:
            view.end()
