"""What stands beside every measured figure: versions and the machine."""

from __future__ import annotations

import os
import platform
from typing import Any

import numpy
import scipy

import bayesdp


def description() -> dict[str, Any]:
    """Versions and processors; no host name, no paths."""
    return {
        "bayesdp": bayesdp.__version__,
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "scipy": scipy.__version__,
        "processors": os.cpu_count(),
        "machine": platform.machine(),
    }
