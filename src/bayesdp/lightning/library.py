"""Lightning under either of its names: ``lightning.pytorch``, or ``pytorch_lightning`` where that is all there is."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:
    _name = "lightning.pytorch" if importlib.util.find_spec("lightning") else "pytorch_lightning"
    Callback = importlib.import_module(_name).Callback

__all__ = ["Callback"]
