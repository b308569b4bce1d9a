"""Settings chosen privately: train a random number of times, and keep the run with the best private score.

A trial draws settings at random from the range of its recipe, trains with them, and releases its score: how many of the
rows it was trained on the model classifies correctly, with Gaussian noise. One person changes that number by at most 1,
so the score is one more release of the trial, in its ledger and in its plan. What the best trial reveals, with the
choice, is in ``bayesdp.guarantees.selection``; each trial gets as much noise as keeps that within the target.

Who is protected by what: the people trained on, whose rows the scores are computed from, by all of it. The audit people
decide nothing here, so figures that rest on them stay what they are; as always, they are not protected.

The number of trials is drawn beforehand and must stay secret, and so must the trials that were not chosen: their
ledgers are deleted, and no file names their number, or has a time that depends on which trial was chosen.
"""

from __future__ import annotations

import importlib
import math
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from bayesdp import validation
from bayesdp.claims.plan import Plan
from bayesdp.guarantees.calibration import calibrate
from bayesdp.guarantees.selection import GaussianTrial, Selection, trial_epsilon
from bayesdp.progress import NamedProgress
from bayesdp.randomness import Randomness, Seeded, uniform
from bayesdp.recipes.catalogue import Recipe
from bayesdp.recipes.choices import Choice, NetworkChoice
from bayesdp.recipes.recipe_run import Fitted, RecipeRun
from bayesdp.recipes.release import NoisySums
from bayesdp.recipes.stages import stages
from bayesdp.run_ledger import Ledger
from bayesdp.validation import InvalidInputError, refuse
from bayesdp.whole_file import made_folder, write_bytes

LEDGER = "run.ledger"
"""The file of the ledger in the folder of a run."""
TRIALS = "trials"
"""The folder, in that of a run, that has the ledgers of trials until the best is chosen."""
BAR = "A private trial, of a secret number"
"""The text beside the bar of a trial. No line of figures stays: it would tell of trials that were not chosen."""
SCORE_NOISE = 0.002
"""The noise that a score should have, as a share of the rows it counts: settings that matter differ by more."""
SCORE_PARTS = 0.02, 0.3
"""The least and the largest part of the budget of a trial that its score takes."""


@dataclass(frozen=True, kw_only=True)
class Trials:
    """What is known of the trials before the first: how many on average, among which settings, and their noise.

    ``training_epsilon`` is the worst case of the training of one trial, without its score, and ``score_noise`` the
    standard deviation of the noise on the number of rows that are classified correctly.
    """

    selection: Selection
    candidates: tuple[Choice, ...]
    target_epsilon: float
    training_epsilon: float
    score_noise: float

    @staticmethod
    def of(recipe: Recipe, mean: float, target_epsilon: float, delta: float, rows: int) -> Trials:
        """Calibrate the noise of a trial on ``rows`` rows such that the choice of the best meets the target.

        A Gaussian release of exposure mu is worth as much as several whose squared exposures add up to mu^2: the score
        gets a part of it, as much as noise of ``SCORE_NOISE`` takes within ``SCORE_PARTS``. Raises InvalidInputError if
        ``Trials.check`` does, and for a target that some candidate cannot be calibrated to.
        """
        Trials.check(recipe, mean)
        selection = Selection(mean=mean)
        whole = trial_epsilon(selection, target_epsilon, delta)
        try:
            mu = 1 / calibrate(target_epsilon=whole, sample_rate=1.0, steps=1, delta=delta).noise_multiplier
            part = min(max((mu * SCORE_NOISE * rows) ** -2, SCORE_PARTS[0]), SCORE_PARTS[1])
            training_epsilon = float(GaussianTrial(mu * math.sqrt(1 - part)).epsilons([delta])[0])
            for choice in recipe.candidates:
                stages(choice, training_epsilon, delta)
        except InvalidInputError:  # which quotes what is left for a trial, and nobody gave that
            expected = f"a larger one, or a delta below {delta:g}: too little is left for each of {mean:g} trials"
            raise refuse("target_epsilon", target_epsilon, expected) from None
        return Trials(
            selection=replace(selection, exposure=mu, began=datetime.now(UTC).isoformat(timespec="seconds")),
            candidates=recipe.candidates,
            target_epsilon=target_epsilon,
            training_epsilon=training_epsilon,
            score_noise=1 / (mu * math.sqrt(part)),
        )

    @staticmethod
    def check(recipe: Recipe, mean: float) -> None:
        """Raise InvalidInputError for fewer than two trials on average, or more than 1,000, and where none can be made.

        That is a recipe without a range of settings, or one whose settings sample records.
        """
        if not 2 <= validation.positive("tune", mean) <= 1000:
            raise refuse("tune", mean, "the number of trials on average, from 2 to 1,000")
        sampled = any(isinstance(choice, NetworkChoice) and choice.sample_rate < 1 for choice in recipe.candidates)
        if not recipe.candidates or sampled:
            raise refuse("tune", mean, f"a recipe with a range of settings to choose from; {recipe.name} has none")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The settings that a trial drew, with what its ledger says about how settings are chosen."""

    choice: Choice
    trials: Trials

    def to_dict(self, recipe: Recipe) -> dict[str, Any]:
        """Return plain values for JSON, as ``Recipe.to_dict`` does for settings that were chosen beforehand."""
        tuning = {
            "covered": True,
            "trials_on_average": self.trials.selection.mean,
            "configurations": len(self.trials.candidates),
            "data": f"rows of {recipe.name} that are trained on",
            "private": True,
            "score": "rows trained on that are classified correctly, with noise",
            "score_noise": self.trials.score_noise,
            "audit_used_for": recipe.audit_used_for,
            "before": "the range is the same for all data of a kind; it was laid out by people who knew which settings "
            "work on published data sets",
        }
        return {"features": recipe.features, "aim": "everyone", **asdict(self.choice), "tuning": tuning}


@dataclass(frozen=True, kw_only=True)
class BestTrial:
    """The trial that was chosen: its closed ledger, what the ledger notes, and the model.

    Nothing tells how long it took: the first trial pays for what is loaded and compiled once, and whoever knows whether
    the first one was chosen knows more than the guarantee covers.
    """

    ledger: Ledger
    about: dict[str, Any]
    fitted: Fitted


def run_trials(
    trials: Trials,
    run: RecipeRun,
    about: Callable[[Trial], dict[str, Any]],
    declared: dict[str, Any],
    track: NamedProgress,
) -> BestTrial:
    """Train a random number of times, and return the trial with the highest score; the others leave no trace.

    Its ledger lies in the folder ``TRIALS`` of the run until ``keep_best`` is called. ``run`` has the data and the
    randomness, ``about`` says what the ledger of a trial notes, ``declared`` are further arguments of
    ``Ledger.create``. Raises InvalidInputError as training does.
    """
    best: tuple[float, BestTrial] | None = None
    folder = None if run.folder is None else _new_folder(run.folder)
    released = False
    with ExitStack() as held:  # the ledger of the best trial so far stays open: it may have to be marked as chosen
        for number in range(trials.selection.trials(uniform(run.randomness, step=0))):
            place = uniform(run.randomness, step=number, part=1)
            trial = Trial(choice=trials.candidates[int(place * len(trials.candidates))], trials=trials)
            path = None if folder is None else folder / f"{number}.ledger"
            noted = about(trial)
            try:
                with ExitStack() as opened:
                    ledger = lost = opened.enter_context(_ledger(path, trial, run.delta, noted, declared))
                    try:
                        score, fitted = _train(trial, replace(run, ledger=ledger, folder=None), number, track)
                    finally:
                        released = released or ledger.steps > 0
                    if best is None or score > best[0]:
                        held.close()
                        lost = None if best is None else best[1].ledger
                        best = score, BestTrial(ledger=ledger, about=noted, fitted=fitted)
                        held.enter_context(opened.pop_all())
            except InvalidInputError:
                if folder is not None and not released:
                    shutil.rmtree(folder)  # nothing was released: another run may have the folder
                raise
            if folder is not None and lost is not None:
                Path(lost.path).unlink()
        assert best is not None  # there is at least one trial
        best[1].ledger.mark_chosen()
    return best[1]


def keep_best(best: BestTrial, folder: Path, model: Path, content: bytes) -> Ledger:
    """Keep ledger and model of the best trial in the folder of its run, remove ``TRIALS``; return the closed ledger.

    The model is on disk before the folder of trials is gone, so nothing that interrupts the run loses it: a choice is
    paid for once. Raises OSError if a file cannot be written.
    """
    write_bytes(model, content)
    os.replace(best.ledger.path, folder / LEDGER)
    shutil.rmtree(folder / TRIALS)
    hide_times(folder, (LEDGER, model.name))
    with Ledger.open(folder / LEDGER, write=False) as ledger:
        return ledger


def hide_times(folder: Path, files: Iterable[str]) -> None:
    """Give the folder of a run and these files in it, which the run has written, the time at which the choice began.

    The time of the ledger's last change would tell how long the choice took. When a file was made stays where the file
    system keeps that.
    """
    with Ledger.open(folder / LEDGER, write=False) as ledger:
        began = datetime.fromisoformat(ledger.created).timestamp()
    for path in (*(folder / name for name in files), folder):
        os.utime(path, (began, began))


def _new_folder(folder: Path) -> Path:
    """Make the folder of trials in that of a run, and return it.

    Raises InvalidInputError if another run began in the folder since it was checked: computing features takes long.
    """
    trials = made_folder("output", folder) / TRIALS
    try:
        trials.mkdir()
    except FileExistsError:
        raise refuse("output", str(folder), "a new folder: another choice among runs began in this one") from None
    if (folder / LEDGER).exists():
        trials.rmdir()
        raise refuse("output", str(folder), "a new folder: another run began in this one")
    return trials


def _ledger(path: Path | None, trial: Trial, delta: float, noted: dict[str, Any], declared: dict[str, Any]) -> Ledger:
    trials = trial.trials
    plan = [stage.plan() for stage in stages(trial.choice, trials.training_epsilon, delta)]
    plan.append(Plan(steps=1, noise_std=trials.score_noise, sample_rate=1.0, clip=1.0))
    settings: dict[str, Any] = {"metadata": noted, "plan": plan, "selection": trials.selection, **declared}
    return Ledger(**settings) if path is None else Ledger.create(path, **settings)


def _train(trial: Trial, run: RecipeRun, number: int, track: NamedProgress) -> tuple[float, Fitted]:
    """Return the released score of a trial, and its model."""
    trials = trial.trials
    randomness = _of_trial(run.randomness, number)
    fit = importlib.import_module(f"bayesdp.recipes.{trial.choice.module}").fit_recipe
    run = replace(run, target_epsilon=trials.training_epsilon, randomness=randomness)
    fitted: Fitted = fit(replace(run, track=lambda items: track(items, BAR)), trial.choice)
    trained_on, audit = fitted.hits()
    sums = NoisySums(
        ledger=run.ledger,
        randomness=randomness,
        clip=1.0,
        noise_multiplier=trials.score_noise,
        sample_rate=1.0,
        source="score",
    )
    total = np.array([float(np.count_nonzero(trained_on))])
    [score] = sums.release(total, step=run.ledger.steps, audit=audit.astype(np.float64))
    return float(score), fitted


def _of_trial(randomness: Randomness, number: int) -> Randomness:
    """Return randomness that is independent from trial to trial: that of a seeded run repeats, so seeds differ."""
    if not isinstance(randomness, Seeded):
        return randomness
    return Seeded(int(np.random.SeedSequence([randomness.seed, number]).generate_state(1)[0]))
