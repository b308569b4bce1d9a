"""The two files of an experiment: JSON with the versions that computed it, and a picture."""

from __future__ import annotations

import json
import math
import platform
import warnings
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from bayesdp.optional import needs
from bayesdp.validation import refuse
from bayesdp.version import __version__
from bayesdp.whole_file import made_folder, write_text, write_whole

_LIBRARIES = ("numpy", "scipy", "torch", "scikit-learn", "opacus", "jax-privacy")


def for_json(value: Any) -> Any:
    """Return nested dicts, lists and tuples with None in place of infinities and NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {name: for_json(part) for name, part in cast(dict[str, Any], value).items()}
    if isinstance(value, list | tuple):
        return [for_json(part) for part in cast(Sequence[Any], value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def versions() -> dict[str, str]:
    """Return the versions of bayesdp, of Python and of the installed libraries that figures depend on."""
    return {
        "bayesdp": __version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in _LIBRARIES if _is_installed(name)},
    }


def write_files(json_path: Path, values: dict[str, Any], draw: Callable[[Any], None]) -> None:
    """Write ``values`` as JSON and, beside it with the suffix .png, the picture that ``draw`` makes of them.

    The folder is made if need be. Raises InvalidInputError that quotes output=FOLDER if it cannot be written.
    """
    folder = made_folder("output", json_path.parent)
    try:
        write_text(json_path, json.dumps(values, indent=1, allow_nan=False) + "\n")
        write_png(json_path.with_suffix(".png"), draw)
    except OSError as error:
        raise refuse("output", str(folder), f"a folder that can be written to ({error.strerror})") from None


def write_png(path: Path, draw: Callable[[Any], None], *, width: float = 10.0, height: float = 4.5) -> None:
    """Call ``draw`` with an empty matplotlib figure and write it as PNG; equal drawings give equal files.

    Width and height are in inches. Raises OSError if the file cannot be written, MissingLibraryError without
    matplotlib.
    """
    plt = pyplot()
    figure = plt.figure(figsize=(width, height), layout="constrained")
    try:
        draw(figure)
        write_whole(path, lambda file: figure.savefig(file, format="png", dpi=110, metadata={"Software": None}))
    finally:
        plt.close(figure)


def pyplot() -> Any:
    """Return matplotlib.pyplot, set to draw into files. Raises MissingLibraryError if matplotlib is missing."""
    with needs("figures", "drawing"):
        import matplotlib
    matplotlib.use("Agg")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import matplotlib.pyplot as plt
    return plt


def _is_installed(library: str) -> bool:
    try:
        metadata.version(library)
    except metadata.PackageNotFoundError:
        return False
    return True
