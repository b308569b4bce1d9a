"""From the name of a recipe to a trained model, its ledger, and what may be claimed about it: ``bayesdp train``."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bayesdp import validation
from bayesdp.claims import ClaimRequest, RunClaims, run_claims
from bayesdp.formatting import finite_or_none, percent
from bayesdp.guarantees.worst_case import WorstCase, worst_case_of
from bayesdp.mechanisms.gaussian import RepeatedStep
from bayesdp.optional import needs
from bayesdp.progress import NamedProgress, silent
from bayesdp.randomness import source
from bayesdp.recipes.catalogue import recipe
from bayesdp.recipes.checkpoint import CHECKPOINT, WHITENING, write_arrays
from bayesdp.recipes.datasets import load
from bayesdp.recipes.recipe_run import Fitted, RecipeRun
from bayesdp.report import check_libraries, write_report
from bayesdp.report.live import LiveView
from bayesdp.run_ledger import Ledger
from bayesdp.validation import InvalidInputError, refuse
from bayesdp.whole_file import made_folder, write_text

LEDGER, MODEL, STATEMENT, REPORT, RESULT = "run.ledger", "model.safetensors", "statement.txt", "report.html", "run.json"
FILES = (LEDGER, MODEL, STATEMENT, REPORT, RESULT)
NOT_FOR_RELEASE = "NOT FOR RELEASE: an experiment with seeded noise, which whoever knows the seed can remove."


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A private model and what is claimed about it."""

    recipe: str
    accuracy: float
    baseline_accuracy: float | None
    claims: RunClaims
    settings: dict[str, Any]
    seed: int
    reproducible: bool
    seconds: float
    model: Fitted
    repeated_steps: list[RepeatedStep]
    "Noise multiplier, sampling rate and number of its steps."

    def statement(self) -> str:
        """Accuracy and claims in words."""
        lines = [NOT_FOR_RELEASE] if self.reproducible else []
        lines.append(f"{self.recipe}: {100 * self.accuracy:.2f} % of the audit rows classified rightly.")
        if self.baseline_accuracy is not None:
            lines.append(f"Without privacy (not for release): {100 * self.baseline_accuracy:.2f} %.")
        return "\n".join([*lines, self.claims.statement()])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        without = "not computed: it is not private, and asked for by name (--baseline, or --reproducible)"
        return {
            "recipe": self.recipe,
            "accuracy": self.accuracy,
            "baseline_accuracy": self.baseline_accuracy,
            **({"baseline_reason": without} if self.baseline_accuracy is None else {}),
            **self.claims.to_dict(),
            "seconds": self.seconds,
            "seed": self.seed,
            "for_release": not self.reproducible and self.baseline_accuracy is None,
            "settings": self.settings,
        }


def train(
    name: str,
    *,
    data: str | Path | None = None,
    target_epsilon: float | None = None,
    delta: float = 1e-5,
    seed: int = 0,
    reproducible: bool = False,
    baseline: bool | None = None,
    output: str | Path | None = None,
    resume: bool = False,
    track: NamedProgress = silent,
) -> Trained:
    """Train a recipe's model within a worst-case epsilon, with the ledger of its run.

    ``seed`` decides how rows are split. Noise comes from a cryptographic generator, unless ``reproducible``: then from
    the seed as well, and the run is an experiment and not for release. ``baseline`` also trains without noise, which is
    not private; by default only in experiments. ``output``: a new folder for ledger, model, statement and report;
    with ``resume`` the folder of a run that was interrupted.
    """
    started = time.perf_counter()
    chosen = recipe(name)
    choice = chosen.choice(target_epsilon)
    target = choice.target_epsilon if target_epsilon is None else float(target_epsilon)
    request = ClaimRequest(delta=delta)
    seed = validation.count("seed", seed, minimum=0)
    if resume and output is None:
        raise refuse("output", None, "with --resume the folder of the run that was interrupted")
    folder = None if output is None else _checked_folder(Path(output), resume)
    rows = load(name, data, seed=seed)
    with needs("demo", f"the recipe {name}"):  # heavy, so that bad input is refused before it
        from bayesdp.recipes.features import EXTRACTORS, extract

        model_recipe = importlib.import_module(f"bayesdp.recipes.{choice.module}")
    if folder is not None:
        check_libraries()  # not only after training
    dataset = extract(rows, EXTRACTORS[chosen.features], lambda items: track(items, "Public features"))
    settings = {
        "target_epsilon": target,
        "delta": request.delta,
        **{key: value for key, value in chosen.to_dict(choice).items() if key != "target_epsilon"},
        "trained_on": f"{len(dataset.development)} rows, those for validation among them",
        "audited_on": f"{len(dataset.audit)} rows",
        "data": dataset.source,
    }
    about = {"recipe": name, "seed": seed, "reproducible": reproducible, "settings": settings}
    with _ledger(folder, resume, name, about) as ledger:
        run = RecipeRun(
            dataset=dataset,
            features=chosen.features,
            target_epsilon=target,
            delta=request.delta,
            ledger=ledger,
            randomness=source(seed, reproducible=reproducible),
            folder=folder,
            track=lambda items: track(items, LiveView(ledger, delta=request.delta).line),
        )
        try:
            fitted: Fitted = model_recipe.fit(run, choice)
        except InvalidInputError:
            if folder is not None and not ledger.steps:  # nothing was released: as if it had not been begun
                ledger.close()
                for file in (LEDGER, CHECKPOINT):
                    (folder / file).unlink(missing_ok=True)
            raise
        claims = run_claims(ledger, request)
        repeated_steps = ledger.history.repeated_steps()
        if folder is not None:
            title = f"Privacy of the {name} model"
            write_report(ledger, folder / REPORT, delta=request.delta, title=title, claims=claims)
    trained = Trained(
        recipe=name,
        accuracy=fitted.accuracy,
        baseline_accuracy=fitted.baseline() if (reproducible if baseline is None else baseline) else None,
        claims=claims,
        settings=settings,
        seed=seed,
        reproducible=reproducible,
        seconds=time.perf_counter() - started,
        model=fitted,
        repeated_steps=repeated_steps,
    )
    if folder is not None:
        _keep(folder, trained, about)
    return trained


@dataclass(frozen=True)
class Several:
    """The same recipe with other seeds: what differs, and what all models together cost the people in them."""

    runs: Sequence[Trained]

    @property
    def together(self) -> WorstCase:
        """The worst case of whoever sees all of the models."""
        steps = [part for run in self.runs for part in run.repeated_steps]
        return worst_case_of(steps, delta=self.runs[0].claims.worst_case.delta)

    def statement(self) -> str:
        """All of them in words."""
        parts = [run.statement() for run in self.runs]
        parts.append(f"Whoever sees all {len(self.runs)} models. {self.together.statement()}")
        return "\n\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with mean and standard deviation."""
        figures: dict[str, list[float]] = {
            "accuracy": [run.accuracy for run in self.runs],
            "epsilon": [run.claims.worst_case.epsilon for run in self.runs],
        }
        for number, pair in enumerate(self.runs[0].claims.shares):
            name = f"epsilon for {percent(pair.ex_post.share or 0)}"
            figures[name] = [run.claims.shares[number].ex_post.epsilon for run in self.runs]
        mean = {name: finite_or_none(float(np.mean(values))) for name, values in figures.items()}
        with np.errstate(invalid="ignore"):
            spread = {name: finite_or_none(float(np.std(values))) for name, values in figures.items()}
        runs = [run.to_dict() for run in self.runs]
        return {"runs": runs, "mean": mean, "sd": spread, "together": self.together.to_dict()}


def train_several(name: str, *, seeds: int, output: str | Path | None = None, **options: Any) -> Several:
    """``train`` with seeds 0, 1, ...; each in a folder of its own below ``output``."""
    numbers = range(validation.count("seeds", seeds, minimum=1))
    folders = [None if output is None else Path(output) / f"seed-{seed}" for seed in numbers]
    for folder in folders:
        if folder is not None:
            _checked_folder(folder, resume=False)
    return Several(
        [train(name, seed=seed, output=folder, **options) for seed, folder in zip(numbers, folders, strict=True)]
    )


def _checked_folder(folder: Path, resume: bool) -> Path:
    """The folder for what is kept; refused if it has another run."""
    if (folder / MODEL).exists():
        raise refuse("output", str(folder), "a new folder: the run in this one is finished")
    if (folder / LEDGER).exists() != resume:
        what = "the folder of a run to resume" if resume else "a new folder, or --resume for the run in it"
        raise refuse("output", str(folder), what)
    return folder


def _ledger(folder: Path | None, resume: bool, name: str, about: dict[str, Any]) -> Ledger:
    if folder is None:
        return Ledger(data=name, metadata=about)
    if not resume:
        return Ledger.create(made_folder("output", folder) / LEDGER, data=name, metadata=about)
    ledger = Ledger.open(folder / LEDGER)
    if ledger.metadata != json.loads(json.dumps(about)):
        ledger.close()
        raise refuse("resume", str(folder), "the same recipe, target, seed and data as the run that was interrupted")
    return ledger


def _keep(folder: Path, trained: Trained, about: dict[str, Any]) -> None:
    write_text(folder / STATEMENT, trained.statement() + "\n")
    write_text(folder / RESULT, json.dumps(trained.to_dict(), indent=2, allow_nan=False) + "\n")
    write_arrays(folder / MODEL, trained.model.arrays, {**about, "classify": trained.model.classify})
    for name in (CHECKPOINT, WHITENING):
        (folder / name).unlink(missing_ok=True)
