"""``bayesdp train``: from the name of a recipe to a trained model, its ledger, and what may be claimed about it."""

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
from bayesdp.claims import ClaimRequest, RunClaims, compute_claims
from bayesdp.formatting import finite_or_none, percent
from bayesdp.guarantees.clip_bound import worst_case_of_many
from bayesdp.guarantees.worst_case import WorstCase
from bayesdp.ledger import check_not_written
from bayesdp.mechanisms.gaussian import RepeatedStep
from bayesdp.optional import needs
from bayesdp.progress import NamedProgress, showing, silent
from bayesdp.randomness import source
from bayesdp.recipes.catalogue import find_recipe
from bayesdp.recipes.checkpoint import CHECKPOINT, WHITENING, array_bytes
from bayesdp.recipes.datasets import load
from bayesdp.recipes.features import extract, find_extractor
from bayesdp.recipes.recipe_run import Fitted, RecipeRun
from bayesdp.recipes.stages import stages
from bayesdp.report import ReleasedFile, check_libraries, write_report
from bayesdp.report.live import LiveView
from bayesdp.run_ledger import Ledger
from bayesdp.validation import InvalidInputError, refuse
from bayesdp.whole_file import made_folder, write_bytes, write_text

LEDGER, MODEL, STATEMENT, REPORT, RESULT = "run.ledger", "model.safetensors", "statement.txt", "report.html", "run.json"
FILES = (LEDGER, MODEL, STATEMENT, REPORT, RESULT)
"""The files that a finished run leaves in its folder."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A private model and what may be claimed about it.

    ``accuracy`` is the share of ``judged_on`` (audit or test rows) that are classified correctly; ``baseline_accuracy``
    the same without noise, which is not private, or None. ``seconds`` is the time that everything took, data and report
    included.
    """

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
    "Noise multiplier, sampling rate and number of its steps, for composition with other runs."
    judged_on: str = "audit rows"

    def statement(self) -> str:
        """Return accuracy and claims in about ten lines."""
        accuracy = f"{self.recipe}: {100 * self.accuracy:.2f} % of the {self.judged_on} classified correctly"
        if self.baseline_accuracy is not None:
            accuracy += f"; without privacy, which is not for release, {100 * self.baseline_accuracy:.2f} %"
        return f"{accuracy}.\n{self.claims.statement()}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; what cannot be claimed is None with a reason."""
        without = "not computed: it is not private, so it must be asked for (--baseline, or --reproducible)"
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
    model: str | Path | None = None,
    target_epsilon: float | None = None,
    delta: float = 1e-5,
    seed: int = 0,
    reproducible: bool = False,
    baseline: bool | None = None,
    output: str | Path | None = None,
    resume: bool = False,
    track: NamedProgress = silent,
) -> Trained:
    """Train the model of a recipe, and return it with everything that may be claimed about it.

    Formal guarantee: the model is (``target_epsilon``, ``delta``)-differentially private for everyone, under the
    assumptions that its claims name; choosing the settings of the recipe is not part of it. Without a target the
    recipe's own is taken; for another target, noise is calibrated to it and the other settings are those of the nearest
    target that was tuned.

    ``data`` is the folder with the data sets, see ``load``; ``model`` that of the transformer whose features the recipe
    ``sst2`` uses, by default the one that BAYESDP_MODEL names. Noise and batches come from a cryptographic generator;
    with ``reproducible`` they come from ``seed``, and the run is an experiment and not for release. Which rows are
    trained on, and which are for the audit, does not depend on the seed. ``baseline`` also trains without noise, which
    is not private; by default in experiments only. ``output`` is a new folder for ledger, model, statement, report and
    JSON. With ``resume`` it is the folder of an interrupted run, which goes on with the steps that are left. ``track``
    shows a progress bar.

    Raises InvalidInputError for bad input and MissingLibraryError for a library that is not installed, both before
    anything is computed or written, and OSError if a file cannot be written.
    """
    started = time.perf_counter()
    recipe = find_recipe(name)
    choice = recipe.choice(target_epsilon)
    target = choice.target_epsilon if target_epsilon is None else float(target_epsilon)
    request = ClaimRequest(delta=delta)
    seed = validation.count("seed", seed, minimum=0)
    if resume and output is None:
        raise refuse("output", None, "with --resume the folder of the run that was interrupted")
    folder = None if output is None else _checked_folder(Path(output), resume)
    extractor = find_extractor(recipe.features, model)
    # Libraries come before the data: what is missing is said at once, not after a download or a training.
    extractor.check_libraries()
    if folder is not None:
        check_libraries()
    with needs("demo", f"the recipe {name}"):
        model_module = importlib.import_module(f"bayesdp.recipes.{choice.module}")
    dataset = extract(load(name, data, seed=seed), extractor, lambda items: track(items, "Public features"))
    settings = {
        "target_epsilon": target,
        "delta": request.delta,
        **{key: value for key, value in recipe.to_dict(choice).items() if key != "target_epsilon"},
        **({} if extractor.model is None else {"model_sha256": extractor.model}),
        "trained_on": f"{len(dataset.development)} rows, those for validation among them",
        "audited_on": f"{len(dataset.audit)} rows",
        **({} if dataset.test is None else {"tested_on": f"{len(dataset.test)} rows"}),
        "data": dataset.source,
    }
    about = {"recipe": name, "seed": seed, "reproducible": reproducible, "settings": settings}
    plan = [stage.plan() for stage in stages(choice, target, request.delta)]
    declared = {
        "data": name,
        "plan": plan,
        "audit_used_for": recipe.audit_used_for(choice),
        "training_records": len(dataset.development),
    }
    with _ledger(folder, resume, about, **declared) as ledger:
        view = LiveView(ledger, delta=request.delta)
        run = RecipeRun(
            dataset=dataset,
            features=recipe.features,
            target_epsilon=target,
            delta=request.delta,
            ledger=ledger,
            randomness=source(seed, reproducible=reproducible),
            folder=folder,
            track=lambda items: track(items, view),
        )
        try:
            fitted: Fitted = model_module.fit_recipe(run, choice)
        except InvalidInputError:
            if folder is not None and not ledger.steps:  # nothing was released: leave no trace of the run
                ledger.close()
                for file in (LEDGER, CHECKPOINT):
                    (folder / file).unlink(missing_ok=True)
            raise
    # The ledger is closed: the seal on the report is that of the file, and covers everything in it.
    with showing(lambda items: track(items, "Claims and report"), range(2)) as phases:
        bar = iter(phases)
        next(bar)
        claims = compute_claims(ledger, request)
        next(bar)
        baseline_accuracy = fitted.baseline() if (reproducible if baseline is None else baseline) else None
        content = b""
        if folder is not None:
            content = array_bytes(fitted.arrays, {**about, "classify": fitted.classify})
            title, file = f"Privacy of the {name} model", ReleasedFile.of_content(MODEL, content)
            write_report(ledger, folder / REPORT, title=title, claims=claims, model=file)
        next(bar, None)
    trained = Trained(
        recipe=name,
        accuracy=fitted.accuracy,
        baseline_accuracy=baseline_accuracy,
        claims=claims,
        settings=settings,
        seed=seed,
        reproducible=reproducible,
        seconds=time.perf_counter() - started,
        model=fitted,
        repeated_steps=ledger.history.repeated_steps(),
        judged_on="audit rows" if dataset.test is None else "test rows",
    )
    if folder is not None:
        _keep(folder, trained, content)
    return trained


def written_files(folder: Path) -> dict[str, str]:
    """Return what a finished run has written: the folder and the files in it, by name."""
    files = {"folder": folder, "statement": folder / STATEMENT, "ledger": folder / LEDGER, "model": folder / MODEL}
    return {name: str(path.resolve()) for name, path in {**files, "report": folder / REPORT}.items()}


def after_interruption(folder: Path, resume: bool) -> str:
    """Return in words how a run that was interrupted can go on: only what is true of the files in its folder."""
    if not (folder / LEDGER).exists():
        return "Interrupted before training began. Public features so far are kept; start the same command again."
    if (folder / MODEL).exists():
        return f"Interrupted after the end of the run: its files are in {folder}."
    return f"Interrupted. The same command{'' if resume else ' with --resume'} continues the run in {folder}."


@dataclass(frozen=True)
class SeedRuns:
    """Runs of one recipe with different seeds, on the same rows and with the same audit rows."""

    runs: Sequence[Trained]

    @property
    def combined_worst_case(self) -> WorstCase:
        """The worst case against someone who sees all of the models."""
        steps = [part for run in self.runs for part in run.repeated_steps]
        return worst_case_of_many(steps, self.runs[0].claims.worst_case.delta)

    def statement(self) -> str:
        """Return the statement of each run, and then that of all of them together."""
        parts = [run.statement() for run in self.runs]
        parts.append(
            f"All {len(self.runs)} models together, also if only the best of them is published: "
            f"{self.combined_worst_case.statement()} To choose the best by audit rows is to use these: what rests on "
            "them is then an estimate for the model that was chosen."
        )
        return "\n\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: the runs, mean and standard deviation, the worst case of all together."""
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
        return {"runs": runs, "mean": mean, "sd": spread, "together": self.combined_worst_case.to_dict()}


def train_several(name: str, *, seeds: int, output: str | Path | None = None, **options: Any) -> SeedRuns:
    """Call ``train`` with the seeds 0 to ``seeds - 1``, each with a folder of its own inside ``output``.

    Raises InvalidInputError before the first run if one of the folders has a run already.
    """
    numbers = range(validation.count("seeds", seeds, minimum=1))
    folders = [None if output is None else Path(output) / f"seed-{seed}" for seed in numbers]
    for folder in folders:
        if folder is not None:
            _checked_folder(folder, resume=False)
    return SeedRuns(
        [train(name, seed=seed, output=folder, **options) for seed, folder in zip(numbers, folders, strict=True)]
    )


def _checked_folder(folder: Path, resume: bool) -> Path:
    """Return the folder of a run. Raises InvalidInputError if it has another run, or none to resume.

    Raises LedgerError if another process is training in it.
    """
    check_not_written(folder / LEDGER)
    if (folder / MODEL).exists():
        raise refuse("output", str(folder), "a new folder: the run in this one is finished")
    if (folder / LEDGER).exists() != resume:
        what = "the folder of a run to resume" if resume else "a new folder, or --resume for the run in it"
        raise refuse("output", str(folder), what)
    return folder


def _ledger(folder: Path | None, resume: bool, about: dict[str, Any], **declared: Any) -> Ledger:
    if folder is None:
        return Ledger(metadata=about, **declared)
    if not resume:
        return Ledger.create(made_folder("output", folder) / LEDGER, metadata=about, **declared)
    ledger = Ledger.open(folder / LEDGER)
    if ledger.metadata != json.loads(json.dumps(about)):
        ledger.close()
        raise refuse("resume", str(folder), "the same recipe, target, seed and data as the run that was interrupted")
    return ledger


def _keep(folder: Path, trained: Trained, content: bytes) -> None:
    write_text(folder / STATEMENT, trained.statement() + "\n")
    write_text(folder / RESULT, json.dumps(trained.to_dict(), indent=2, allow_nan=False) + "\n")
    write_bytes(folder / MODEL, content)
    for name in (CHECKPOINT, WHITENING):
        (folder / name).unlink(missing_ok=True)
