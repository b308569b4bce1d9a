"""bayesdp: how private a model is for typical people, not only in the worst case.

Public names are listed in ``__init__.pyi``, once, and imported when first used, so that ``bayesdp --help`` starts at
once. No framework is imported here: ``import bayesdp.opacus`` needs Opacus, ``bayesdp.jax_privacy`` JAX Privacy,
``bayesdp.flower`` Flower, and ``bayesdp.recipes`` parts of Opacus.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from bayesdp.version import __version__ as __version__

_LISTED = re.findall(
    r"^from (\S+) import (\w+) as \2$", Path(__file__).with_suffix(".pyi").read_text("utf-8"), flags=re.MULTILINE
)
_HOME: dict[str, str] = {name: module for module, name in _LISTED}
"""The module from which each public name comes."""
_ADAPTERS = ("opacus", "lightning", "transformers", "jax_privacy", "flower")
"""Submodules that need a framework: attributes only where it is installed, and never imported by ``*``."""

__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _ADAPTERS:
        from bayesdp.optional import MissingLibraryError

        try:
            return importlib.import_module(f"bayesdp.{name}")
        except MissingLibraryError as error:  # so that hasattr(bayesdp, "opacus") is False, and nothing else
            raise AttributeError(str(error)) from error
    if name not in _HOME:
        raise AttributeError(f"module 'bayesdp' has no attribute {name!r}")
    if _HOME[name] == "bayesdp":
        return importlib.import_module(f"bayesdp.{name}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, *_ADAPTERS]
