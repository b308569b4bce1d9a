"""One experiment or all of them: JSON and a picture for each, with versions and settings beside the figures."""

from __future__ import annotations

import importlib
import json
import platform
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from bayesdp import validation
from bayesdp.optional import needs
from bayesdp.progress import NamedProgress, silent
from bayesdp.recipes.datasets import load
from bayesdp.reproduce.experiment import Experiment, Found, Options, for_json
from bayesdp.validation import refuse
from bayesdp.version import __version__
from bayesdp.whole_file import made_folder, write_text, write_whole

TARGETS = ("composition", "sigma-epsilon", "lambda-epsilon", "motivation", "table1", "leakage")
_DATA = {"table1": ("mnist", "cifar10", "abalone", "adult"), "leakage": ("mnist", "cifar10")}
_WIDTH, _HEIGHT = 10.0, 4.5


def experiment(target: str) -> Experiment:
    """The module that does it."""
    if target not in TARGETS:
        raise refuse("target", target, f"one of {', '.join(TARGETS)}, all")
    with needs("demo", target):
        return cast(Experiment, importlib.import_module(f"bayesdp.reproduce.{target.replace('-', '_')}"))


@dataclass(frozen=True)
class Reproduction:
    """One experiment or more, asked for and ready to start: iterating computes them, one after the other."""

    modules: Mapping[str, Experiment]
    options: Options
    track: NamedProgress

    def estimate(self) -> str:
        """About how long it takes on two cores, in words."""
        seconds = sum(module.SECONDS for module in self.modules.values())
        if any(target in _DATA for target in self.modules):
            from bayesdp.reproduce.published.images import seconds_to_train

            seconds += seconds_to_train(self.options)
        return f"about {max(1, round(seconds / 60))} minutes" if seconds >= 90 else f"about {seconds:.0f} seconds"

    def __iter__(self) -> Iterator[tuple[str, Found]]:
        """Name and figures of each, when its TARGET.json and TARGET.png have been written."""
        for number, (name, module) in enumerate(self.modules.items(), start=1):
            what = f"{name} ({number} of {len(self.modules)})" if len(self.modules) > 1 else name
            started = time.perf_counter()
            found = module.compute(replace(self.options, track=lambda items, what=what: self.track(items, what)))
            result: Found = for_json(
                {
                    "target": name,
                    "small": self.options.small,
                    **found,
                    # a few steps say nothing about the paper
                    "verdicts": [] if self.options.small else [asdict(one) for one in module.verdicts(found)],
                    "versions": _versions(),
                    "seconds": round(time.perf_counter() - started, 1),
                }
            )
            self._write(name, result)
            yield name, result

    def path(self, name: str, kind: str) -> Path:
        """Of a file: those of a trial have names of their own, and leave whole results alone."""
        return self.options.folder / f"{name}{'-small' * self.options.small}.{kind}"

    def _write(self, name: str, result: Found) -> None:
        folder = made_folder("output", self.options.folder)
        try:
            write_text(self.path(name, "json"), json.dumps(result, indent=1, allow_nan=False) + "\n")
            draw(name, result, self.path(name, "png"))
        except OSError as error:
            raise refuse("output", str(folder), f"a folder that can be written to ({error.strerror})") from None


def prepare(
    target: str,
    output: str | Path,
    *,
    seed: int = 0,
    small: bool = False,
    data: str | Path | None = None,
    track: NamedProgress = silent,
) -> Reproduction:
    """A target, or ``all``, into the folder ``output``; what is wrong is refused before anything is computed."""
    modules = {name: experiment(name) for name in (TARGETS if target == "all" else (target,))}
    options = Options(
        seed=validation.count("seed", seed, minimum=0),
        small=small,
        data=None if data is None else Path(data),
        folder=Path(output),
    )
    _pyplot()
    for name in dict.fromkeys(name for target in modules for name in _DATA.get(target, ())):
        load(name, options.data)
    made_folder("output", options.folder)
    return Reproduction(modules, options, track)


def reproduce(target: str, output: str | Path, **options: Any) -> dict[str, Found]:
    """Compute a target, or ``all``, and write TARGET.json and TARGET.png into the folder; options as of `prepare`."""
    return dict(prepare(target, output, **options))


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
    with needs("figures", "drawing"):
        import matplotlib
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
