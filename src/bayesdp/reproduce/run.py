"""One experiment or all of them: JSON and a picture for each, with versions and settings beside the figures."""

from __future__ import annotations

import importlib
import json
import platform
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, cast

from bayesdp import validation
from bayesdp.recipes.datasets import load
from bayesdp.reproduce.experiment import Experiment, Found, Options, Verdict
from bayesdp.validation import InvalidInputError, refuse
from bayesdp.version import __version__
from bayesdp.whole_file import made_folder, write_text, write_whole

__all__ = ["TARGETS", "Track", "Verdict", "chosen", "draw", "estimate", "experiment", "reproduce"]
TARGETS = ("composition", "sigma-epsilon", "lambda-epsilon", "motivation", "table1", "leakage")
_DATA = {"table1": ("mnist", "cifar10", "abalone", "adult"), "leakage": ("mnist", "cifar10")}
_TRAINING_SECONDS = 2900.0
"""Of the two image models, which those targets share."""
_WIDTH, _HEIGHT = 10.0, 4.5


class Track(Protocol):
    """A progress bar around items."""

    def __call__(self, items: Sequence[Any], what: str) -> Iterable[Any]:
        """The items, one after the other."""
        ...


def experiment(target: str) -> Experiment:
    """The module that does it."""
    if target not in TARGETS:
        raise refuse("target", target, f"one of {', '.join(TARGETS)}, all")
    try:
        return cast(Experiment, importlib.import_module(f"bayesdp.reproduce.{target.replace('-', '_')}"))
    except ModuleNotFoundError as error:
        raise InvalidInputError(f"{error.name}=missing: {target} needs pip install 'bayesdp[demo]'.") from None


def chosen(target: str) -> tuple[str, ...]:
    """The targets that a name stands for."""
    return TARGETS if target == "all" else (target,)


def estimate(targets: Sequence[str]) -> str:
    """About how long they take on two cores, in words."""
    seconds = sum(experiment(target).SECONDS for target in targets)
    if any(target in _DATA for target in targets):
        seconds += _TRAINING_SECONDS
    return f"about {max(1, round(seconds / 60))} minutes" if seconds >= 90 else f"about {seconds:.0f} seconds"


def reproduce(
    target: str,
    output: str | Path,
    *,
    seed: int = 0,
    small: bool = False,
    data: str | Path | None = None,
    track: Track = lambda items, what: items,
) -> dict[str, Found]:
    """Compute a target, or ``all``, and write TARGET.json and TARGET.png into the folder ``output``."""
    modules = {name: experiment(name) for name in chosen(target)}
    options = Options(
        seed=validation.count("seed", seed, minimum=0),
        small=small,
        data=None if data is None else Path(data),
        folder=Path(output),
    )
    _pyplot()  # refused before anything is computed
    for name in dict.fromkeys(name for target in modules for name in _DATA.get(target, ())):
        load(name, options.data)  # refused before anything is computed
    folder = made_folder("output", Path(output))
    results: dict[str, Found] = {}
    for number, (name, module) in enumerate(modules.items(), start=1):
        what = f"{name} ({number} of {len(modules)})" if len(modules) > 1 else name
        started = time.perf_counter()
        found = module.compute(replace(options, track=partial(track, what=what)))
        said = [asdict(verdict) for verdict in module.verdicts(found)]
        result = {"target": name, "small": small, **found, "verdicts": said, "versions": _versions()}
        result["seconds"] = round(time.perf_counter() - started, 1)
        try:
            write_text(folder / f"{name}.json", json.dumps(result, indent=1, allow_nan=False) + "\n")
            draw(name, result, folder / f"{name}.png")
        except OSError as error:
            raise refuse("output", str(folder), f"a folder that can be written to ({error.strerror})") from None
        results[name] = result
    return results


def draw(target: str, result: Found, path: Path) -> None:
    """The picture of a result."""
    plt = _pyplot()
    figure = plt.figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
    try:
        experiment(target).draw(result, figure)
        write_whole(path, lambda file: figure.savefig(file, format="png", dpi=110, metadata={"Software": None}))
    finally:
        plt.close(figure)


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise InvalidInputError("matplotlib=missing: pictures need pip install 'bayesdp[figures]'.") from None
    matplotlib.use("Agg")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import matplotlib.pyplot as plt
    return plt


def _versions() -> dict[str, str]:
    libraries = {name: metadata.version(name) for name in ("numpy", "scipy", "torch", "scikit-learn") if _has(name)}
    return {"bayesdp": __version__, "python": platform.python_version(), **libraries}


def _has(library: str) -> bool:
    try:
        metadata.version(library)
    except metadata.PackageNotFoundError:
        return False
    return True
