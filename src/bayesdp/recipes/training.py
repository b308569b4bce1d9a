"""``bayesdp train``: from the name of a recipe to a trained model, its ledger, and what may be claimed about it."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bayesdp import validation
from bayesdp.claims import ClaimRequest, compute_claims
from bayesdp.ledger import check_not_written
from bayesdp.optional import needs
from bayesdp.progress import NamedProgress, showing, silent
from bayesdp.randomness import source
from bayesdp.recipes.catalogue import AIMS, Typical, find_recipe
from bayesdp.recipes.checkpoint import CHECKPOINT, WHITENING, array_bytes
from bayesdp.recipes.datasets import load
from bayesdp.recipes.features import extract, find_extractor
from bayesdp.recipes.recipe_run import Fitted, RecipeRun
from bayesdp.recipes.stages import stages
from bayesdp.recipes.trained import SeedRuns, Trained
from bayesdp.recipes.tuning import LEDGER, TRIALS, BestTrial, Trials, hide_times, keep_best, run_trials
from bayesdp.report import ReleasedFile, check_libraries, write_report
from bayesdp.report.live import LiveView
from bayesdp.run_ledger import Ledger
from bayesdp.validation import InvalidInputError, refuse
from bayesdp.whole_file import made_folder, write_bytes, write_text

MODEL, STATEMENT, REPORT, RESULT = "model.safetensors", "statement.txt", "report.html", "run.json"
FILES = (LEDGER, MODEL, STATEMENT, REPORT, RESULT)
"""The files that a finished run leaves in its folder."""
_WITHOUT_STATEMENT = f"bayesdp claims {LEDGER} and bayesdp report {LEDGER} there give what may be claimed"


def train(
    name: str,
    *,
    data: str | Path | None = None,
    model: str | Path | None = None,
    target_epsilon: float | None = None,
    delta: float = 1e-5,
    aim: str = "everyone",
    tune: float | None = None,
    seed: int = 0,
    reproducible: bool = False,
    baseline: bool | None = None,
    output: str | Path | None = None,
    resume: bool = False,
    track: NamedProgress = silent,
) -> Trained:
    """Train the model of a recipe, and return it with everything that may be claimed about it.

    Formal guarantee: the model is (``target_epsilon``, ``delta``)-differentially private for everyone, under the
    assumptions that its claims name. Without a target the recipe's own is taken; for another target, noise is
    calibrated to it and the other settings are those of the nearest target that was tuned. How the settings of the
    recipe were chosen is not part of the guarantee, unless it is tuned.

    ``aim`` "typical" takes settings with which half of the people lose least at the same worst case, for less accuracy;
    the statement says how much. ``tune`` chooses settings privately: it trains a random number of times, ``tune`` times
    on average, each time with settings drawn from the range of the recipe, and returns the run with the best private
    score. The guarantee then covers all of it (``bayesdp.recipes.tuning``).

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
    if aim not in AIMS:
        raise refuse("aim", aim, "everyone or typical")
    typical = recipe.aimed(target_epsilon) if aim == "typical" else None
    choice = recipe.choice(target_epsilon) if typical is None else typical.choice
    target = choice.target_epsilon if target_epsilon is None else float(target_epsilon)
    request = ClaimRequest(delta=delta)
    seed = validation.count("seed", seed, minimum=0)
    if tune is not None:
        Trials.check(recipe, tune)
    if tune is not None and typical is not None:
        raise refuse("tune", tune, "one of --tune and --aim typical")
    if resume and output is None:
        raise refuse("output", None, "with --resume the folder of the run that was interrupted")
    if resume and tune is not None:
        raise refuse("resume", True, "a run without --tune: a choice among runs begins anew, in a new folder")
    folder = None if output is None else _checked_folder(Path(output), resume)
    extractor = find_extractor(recipe.features, model)
    # Libraries come before the data: what is missing is said at once, not after a download or a training.
    extractor.check_libraries()
    if folder is not None:
        check_libraries()
    with needs("demo", f"the recipe {name}"):
        module = importlib.import_module(f"bayesdp.recipes.{choice.module}")
    rows = load(recipe.data_name, data, seed=seed).with_audit_rows(recipe.audit_rows)
    dataset = extract(rows, extractor, lambda items: track(items, "Public features"))
    common = {
        **({} if extractor.model is None else {"model_sha256": extractor.model}),
        "trained_on": f"{len(dataset.development)} rows, those for validation among them",
        "audited_on": f"{len(dataset.audit)} rows",
        **({} if dataset.test is None else {"tested_on": f"{len(dataset.test)} rows"}),
        "data": dataset.source,
    }

    def about(settings: dict[str, Any]) -> dict[str, Any]:
        asked = {"target_epsilon": target, "delta": request.delta}
        chosen = {key: value for key, value in settings.items() if key != "target_epsilon"}
        return {"recipe": name, "seed": seed, "reproducible": reproducible, "settings": asked | chosen | common}

    declared = {
        "data": recipe.data_name,
        "audit_used_for": recipe.audit_used_for,
        "training_records": len(dataset.development),
    }
    run = RecipeRun(
        dataset=dataset,
        features=recipe.features,
        target_epsilon=target,
        delta=request.delta,
        ledger=Ledger(),
        randomness=source(seed, reproducible=reproducible),
        folder=folder,
    )
    best: BestTrial | None = None
    if tune is None:
        noted = about(recipe.to_dict(choice, typical))
        plan = [stage.plan() for stage in stages(choice, target, request.delta)]
        with _ledger(folder, resume, noted, plan=plan, **declared) as ledger:
            fitted = _fitted(replace(run, ledger=ledger), lambda run: module.fit_recipe(run, choice), track)
    else:
        trials = Trials.of(recipe, tune, target, request.delta, len(dataset.development))
        best = run_trials(trials, run, lambda trial: about(trial.to_dict(recipe)), declared, track)
        ledger, fitted, noted = best.ledger, best.fitted, best.about
    content = b"" if folder is None else array_bytes(fitted.arrays, {**noted, "classify": fitted.classify})
    if best is not None and folder is not None:
        ledger = keep_best(best, folder, folder / MODEL, content)
    # The ledger is closed: the seal on the report is that of the file, and covers everything in it.
    with showing(lambda items: track(items, "Claims and report"), range(2)) as phases:
        bar = iter(phases)
        next(bar)
        claims = compute_claims(ledger, request)
        next(bar)
        baseline_accuracy = fitted.baseline() if (reproducible if baseline is None else baseline) else None
        if folder is not None:
            title, file = f"Privacy of the {name} model", ReleasedFile.of_content(MODEL, content)
            write_report(ledger, folder / REPORT, title=title, claims=claims, model=file)
        next(bar, None)
    trained = Trained(
        recipe=name,
        accuracy=fitted.accuracy,
        baseline_accuracy=baseline_accuracy,
        claims=claims,
        settings=noted["settings"],
        seed=seed,
        reproducible=reproducible,
        seconds=time.perf_counter() - started if tune is None else None,
        model=fitted,
        repeated_steps=ledger.history.repeated_steps() if tune is None else None,
        judged_on="audit rows" if dataset.test is None else "test rows",
        aim=None if typical is None else _aim(typical, target),
    )
    if folder is not None:
        _keep(folder, trained, content)
        if best is not None:
            hide_times(folder, FILES)
    return trained


def _aim(typical: Typical, target: float) -> str:
    """Return in words what was given up; at another worst case than that of the settings, nobody has measured it."""
    tuned = typical.choice.target_epsilon
    other = "" if target == tuned else f" This run has a target of {target:g}, for which that was not measured."
    return typical.statement() + other


def _fitted(run: RecipeRun, fit: Callable[[RecipeRun], Fitted], track: NamedProgress) -> Fitted:
    """Train, with a live view; if nothing was released before bad input was found, leave no trace of the run."""
    view = LiveView(run.ledger, delta=run.delta)
    try:
        return fit(replace(run, track=lambda items: track(items, view)))
    except InvalidInputError:
        if run.folder is not None and not run.ledger.steps:
            run.ledger.close()
            for file in (LEDGER, CHECKPOINT):
                (run.folder / file).unlink(missing_ok=True)
        raise


def written_files(folder: Path) -> dict[str, str]:
    """Return what a finished run has written: the folder and the files in it, by name."""
    files = {"folder": folder, "statement": folder / STATEMENT, "ledger": folder / LEDGER, "model": folder / MODEL}
    return {name: str(path.resolve()) for name, path in {**files, "report": folder / REPORT}.items()}


def after_interruption(folder: Path, resume: bool) -> str:
    """Return in words how a run that was interrupted can go on: only what is true of the files in its folder."""
    if (folder / TRIALS).exists():
        return "Interrupted. A choice among runs begins anew, in a new folder; nothing in this one may be released."
    if not (folder / LEDGER).exists():
        return "Interrupted before training began. Public features so far are kept; start the same command again."
    if (folder / MODEL).exists() and not (folder / RESULT).exists():
        return f"Interrupted after the choice: the chosen model and its ledger are in {folder}; {_WITHOUT_STATEMENT}."
    if (folder / MODEL).exists():
        return f"Interrupted after the end of the run: its files are in {folder}."
    return f"Interrupted. The same command{'' if resume else ' with --resume'} continues the run in {folder}."


def train_several(name: str, *, seeds: int, output: str | Path | None = None, **options: Any) -> SeedRuns:
    """Call ``train`` with the seeds 0 to ``seeds - 1``, each with a folder of its own inside ``output``.

    Raises InvalidInputError before the first run if one of the folders has a run already, and with ``tune``.
    """
    if options.get("tune") is not None:
        raise refuse("tune", options["tune"], "one run, without --seeds: choices among runs are not composed")
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
    if (folder / TRIALS).exists():
        raise refuse("output", str(folder), "a new folder: a choice among runs was interrupted in this one")
    if (folder / MODEL).exists():
        left = "" if (folder / RESULT).exists() else f", but was interrupted before its statement; {_WITHOUT_STATEMENT}"
        raise refuse("output", str(folder), f"a new folder: the run in this one is finished{left}")
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
