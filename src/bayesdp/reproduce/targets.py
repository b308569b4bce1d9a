"""One experiment or all of them: JSON and a picture for each, with versions and settings beside the figures."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from bayesdp import validation
from bayesdp.experiment_files import for_json, pyplot, versions, write_files, write_png
from bayesdp.optional import needs
from bayesdp.progress import NamedProgress, silent
from bayesdp.recipes.datasets import load
from bayesdp.reproduce.experiment import Experiment, ExperimentOptions, Result
from bayesdp.validation import refuse
from bayesdp.whole_file import made_folder

TARGETS = ("composition", "sigma-epsilon", "lambda-epsilon", "motivation", "table1", "recipes", "leakage")
_DATA = {
    "table1": ("mnist", "cifar10", "abalone", "adult"),
    "recipes": ("mnist", "cifar10", "abalone", "adult"),
    "leakage": ("mnist", "cifar10"),
}
_NETWORKS = ("table1", "leakage")
"""Targets that need the networks as published."""


def experiment(target: str) -> Experiment:
    """Return the module of a target.

    Raises InvalidInputError for an unknown target, MissingLibraryError if a library is missing that the module needs.
    """
    if target not in TARGETS:
        raise refuse("target", target, f"one of {', '.join(TARGETS)}, all")
    with needs("demo", target):
        return cast(Experiment, importlib.import_module(f"bayesdp.reproduce.{target.replace('-', '_')}"))


@dataclass(frozen=True)
class Reproduction:
    """Experiments that were asked for and checked; nothing is computed before someone iterates."""

    modules: Mapping[str, Experiment]
    options: ExperimentOptions
    track: NamedProgress

    def estimate(self) -> str:
        """Return in words about how long it takes on two cores, including models that must be trained first."""
        seconds = sum(module.SECONDS for module in self.modules.values())
        needs_features = any(target in _DATA for target in self.modules)
        if any(target in _NETWORKS for target in self.modules):
            from bayesdp.reproduce.published.images import seconds_to_train

            seconds += seconds_to_train(self.options)
        about = f"about {max(1, round(seconds / 60))} minutes" if seconds >= 90 else f"about {seconds:.0f} seconds"
        return f"{about} (and longer if features of images are not in the cache yet)" if needs_features else about

    def __iter__(self) -> Iterator[tuple[str, Result]]:
        """Compute one experiment after the other; yield its name and result once both its files are written.

        A trial (``small``) has no verdicts: a few steps say nothing about the paper. Raises InvalidInputError if the
        folder cannot be written to.
        """
        for number, (name, module) in enumerate(self.modules.items(), start=1):
            what = f"{name} ({number} of {len(self.modules)})" if len(self.modules) > 1 else name
            started = time.perf_counter()
            computed = module.compute(replace(self.options, track=lambda items, what=what: self.track(items, what)))
            result: Result = for_json(
                {
                    "target": name,
                    "small": self.options.small,
                    **computed,
                    "verdicts": []
                    if self.options.small
                    else [asdict(verdict) for verdict in module.verdicts(computed)],
                    "versions": versions(),
                    "seconds": round(time.perf_counter() - started, 1),
                }
            )
            write_files(self.path(name, "json"), result, partial(module.draw, result))
            yield name, result

    def path(self, name: str, kind: str) -> Path:
        """Return where the ``json`` or ``png`` file of an experiment goes; a trial never replaces a full result."""
        return self.options.folder / f"{name}{'-small' * self.options.small}.{kind}"


def prepare(
    target: str,
    output: str | Path,
    *,
    seed: int = 0,
    small: bool = False,
    data: str | Path | None = None,
    track: NamedProgress = silent,
) -> Reproduction:
    """Check what an experiment, or ``all`` of them, needs, and return it ready to start.

    Everything that can be wrong is refused here, before hours of computing: InvalidInputError for an unknown target, a
    negative seed, missing data or an ``output`` that cannot be a folder; MissingLibraryError for a missing library.

    Args:
        target: one of ``TARGETS``, or ``all``.
        output: the folder for TARGET.json and TARGET.png; it is created.
        seed: of synthetic data, initial weights and noise.
        small: a trial with few steps and little data, into files of its own.
        data: the folder with the data sets; without it BAYESDP_DATA or OpenML.
        track: a progress bar, called with the items and the name of the experiment.
    """
    modules = {name: experiment(name) for name in (TARGETS if target == "all" else (target,))}
    options = ExperimentOptions(
        seed=validation.count("seed", seed, minimum=0),
        small=small,
        data=None if data is None else Path(data),
        folder=Path(output),
    )
    pyplot()
    for name in dict.fromkeys(name for target in modules for name in _DATA.get(target, ())):
        load(name, options.data)
    made_folder("output", options.folder)
    return Reproduction(modules, options, track)


def reproduce(target: str, output: str | Path, **options: Any) -> dict[str, Result]:
    """Compute an experiment, or ``all`` of them, and return the results by name.

    TARGET.json and TARGET.png are written into the folder ``output``. Takes the options of `prepare` and raises what it
    raises.
    """
    return dict(prepare(target, output, **options))


def draw(target: str, result: Result, path: Path) -> None:
    """Write the picture of a result as PNG; equal results give equal files. Raises OSError if that fails."""
    write_png(path, partial(experiment(target).draw, result))
