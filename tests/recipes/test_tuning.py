"""`bayesdp train --tune`: what it keeps and says, what it refuses, and what is left when it is interrupted."""

import json
import math
import os
import re
import sys
from datetime import datetime
from time import sleep

import numpy as np
import pytest

from bayesdp import Ledger
from bayesdp.claims.selected import NOT_CHOSEN
from bayesdp.cli import main
from bayesdp.guarantees.selection import Selection
from bayesdp.randomness import Seeded, gaussian
from bayesdp.recipes import RECIPES, load, train, training, tuning
from bayesdp.recipes.recipe_run import RecipeRun
from bayesdp.recipes.stages import stages
from bayesdp.recipes.trained import SeedRuns
from bayesdp.recipes.tuning import Trials
from bayesdp.report.summary import summary
from recipe_data import write_adult

TARGET = 1.0


@pytest.fixture
def data(tmp_path):
    write_adult(tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def command(monkeypatch, capsys):
    """Call what the program calls, in this process: exit code and what it says on stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["bayesdp", "train", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, capsys.readouterr().err

    return run


@pytest.fixture
def three_trials(monkeypatch):
    """Three trials, whatever is drawn; returns their settings and scores as they end."""
    ended = []
    real = tuning._train

    def watched(trial, run, number, track):
        score, fitted = real(trial, run, number, track)
        ended.append((trial.choice, score))
        return score, fitted

    monkeypatch.setattr(Selection, "trials", lambda self, uniform: 3)
    monkeypatch.setattr(tuning, "_train", watched)
    return ended


def test_the_trial_with_the_best_score_is_kept_and_nothing_of_the_others(tmp_path, data, three_trials):
    folder = tmp_path / "out"
    trained = train("adult", data=data, target_epsilon=TARGET, tune=4, seed=3, reproducible=True, output=folder)
    choice, _ = max(three_trials, key=lambda ended: ended[1])
    assert len({ended[0] for ended in three_trials}) > 1
    assert {key: trained.settings[key] for key in ("steps", "clip", "learning_rate")} == {
        "steps": choice.steps,
        "clip": choice.clip,
        "learning_rate": choice.learning_rate,
    }
    names = {path.name for path in folder.iterdir()}
    assert names == {"run.ledger", "model.safetensors", "statement.txt", "report.html", "run.json"}
    with Ledger.open(folder / "run.ledger", write=False) as ledger:
        assert ledger.selection.mean == 4
        assert ledger.steps == choice.steps + 1  # the score is the last release
        claims = ledger.claims(delta=1e-5)
        assert claims.statement() == trained.claims.statement()
        assert 0.99 * TARGET < claims.everyone.epsilon <= TARGET
    assert b".ledger" not in (folder / "run.ledger").read_bytes()  # nor the number of the trial, by its old name
    kept = json.loads((folder / "run.json").read_text())
    assert kept["selection"]["mean"] == 4
    assert kept["selection"]["trial_epsilon"] < kept["selection"]["epsilon"] == kept["worst_case"]["epsilon"]
    assert kept["settings"]["tuning"]["covered"] is True
    statement = (folder / "statement.txt").read_text()
    assert "Tuning: covered. This is the best of a random number of private runs, 4 on average" in statement
    assert "choosing settings" not in statement
    assert "the guarantee for everyone includes it" in (folder / "report.html").read_text()


@pytest.mark.parametrize("best", [0, 2])
def test_no_file_tells_which_trial_was_the_best_by_its_time(tmp_path, data, monkeypatch, best):
    """A first trial that takes longer, and then waits, leaves the same times as the last one."""
    folder, real = tmp_path / "out", tuning._train

    def ranked(trial, run, number, track):
        _, fitted = real(trial, run, number, track)
        sleep(1.1)
        return float(number == best), fitted

    monkeypatch.setattr(Selection, "trials", lambda self, uniform: 3)
    monkeypatch.setattr(tuning, "_train", ranked)
    trained = train("adult", data=data, target_epsilon=TARGET, tune=4, output=folder)
    kept = json.loads((folder / "run.json").read_text())
    assert trained.seconds is kept["seconds"] is None
    assert "must stay secret" in kept["seconds_reason"]
    changed = {path.stat().st_mtime for path in (folder, *folder.iterdir())}
    with Ledger.open(folder / "run.ledger", write=False) as ledger:
        began = ledger.selection.began
        assert ledger.created == began
        times = {stored.step.time for stored in ledger.stored_steps()}
        assert times == changed == {datetime.fromisoformat(began).timestamp()}
        shown = summary(ledger)
        assert shown["created"] == began
        assert shown["first_step"] is shown["last_step"] is None
    years = rf"{began[:4]}-\d\d-\d\d.\d\d:\d\d:\d\d"
    for name in ("run.json", "statement.txt", "report.html"):
        written = (folder / name).read_text()
        assert {time.replace("T", " ") for time in re.findall(years, written)} <= {began[:19].replace("T", " ")}


def test_files_of_others_keep_their_times(tmp_path, data, three_trials):
    folder = tmp_path / "out"
    (folder / "notes").mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    for name in ("notes", "notes.txt"):
        os.utime(folder / name, (1e9, 1e9))
    train("adult", data=data, target_epsilon=TARGET, tune=4, output=folder)
    assert {(folder / name).stat().st_mtime for name in ("notes", "notes.txt")} == {1e9}


@pytest.mark.parametrize("begun", ["run.ledger", "trials"])
def test_a_run_that_began_meanwhile_is_left_alone(tmp_path, data, monkeypatch, begun):
    """Features may take half an hour, in which somebody begins another run in the same folder."""
    folder, real = tmp_path / "out", training.extract

    def slow(*arguments):
        (folder / begun).mkdir(parents=True)
        return real(*arguments)

    monkeypatch.setattr(training, "extract", slow)
    with pytest.raises(ValueError, match="began in this one"):
        train("adult", data=data, target_epsilon=TARGET, tune=3, output=folder)
    assert [path.name for path in folder.iterdir()] == [begun]


def test_trials_are_independent_and_a_seed_repeats_all_of_them(data, three_trials):
    first, again = (
        train("adult", data=data, target_epsilon=TARGET, tune=2, seed=1, reproducible=True) for _ in range(2)
    )
    assert three_trials[:3] == three_trials[3:]
    assert len({score for _, score in three_trials}) == 3
    assert first.accuracy == again.accuracy


@pytest.mark.parametrize("name", [name for name, recipe in RECIPES.items() if recipe.candidates])
def test_no_trial_reveals_more_than_is_declared(name):
    """Every candidate's plan, with its score, is within the exposure of the selection, at targets small and large."""
    for target in (0.1, 3.0):
        trials = Trials.of(RECIPES[name], 5, target, 1e-5, 50_000)
        for choice in trials.candidates:
            planned = stages(choice, trials.training_epsilon, 1e-5)
            squares = [stage.steps / stage.noise_multiplier**2 for stage in planned]
            assert math.sqrt(math.fsum([*squares, trials.score_noise**-2])) <= trials.selection.exposure


def test_the_score_is_a_release_of_the_trial(data):
    """The number of rows that are right, with the noise in the ledger; audit rows add 1 if they are right, or 0."""
    trials = Trials.of(RECIPES["adult"], 3, TARGET, 1e-5, 300)
    for number, choice in enumerate(trials.candidates[:2]):
        ledger = Ledger(keep_norms=True)
        run = RecipeRun(
            dataset=load("adult", data),
            features="table",
            target_epsilon=TARGET,
            delta=1e-5,
            ledger=ledger,
            randomness=Seeded(4),
        )
        trial = tuning.Trial(choice=choice, trials=trials)
        score, fitted = tuning._train(trial, run, number, lambda items, what: items)
        trained_on, audit = fitted.hits()
        noise = gaussian(tuning._of_trial(Seeded(4), number), (1,), trials.score_noise, step=choice.steps)
        assert score == pytest.approx(np.count_nonzero(trained_on) + noise[0])
        released = ledger.history.stretches[-1]
        assert (released.noise_std, released.clip, released.sample_rate) == (trials.score_noise, 1.0, 1.0)
        assert ledger.private_norms(choice.steps + 1)[0].tolist() == audit.astype(float).tolist()
        assert 0 < np.count_nonzero(audit) < len(audit)


def test_tuned_runs_are_not_composed(data, three_trials):
    """The steps of the chosen run alone do not include the choice."""
    trained = train("adult", data=data, target_epsilon=TARGET, tune=2, seed=1, reproducible=True)
    assert trained.repeated_steps is None
    with pytest.raises(ValueError, match="choices among runs are not composed"):
        SeedRuns([trained, trained])


def test_no_figure_of_a_trial_is_shown(data, three_trials):
    shown = []

    def track(items, what):
        shown.append(what)
        return items

    train("adult", data=data, target_epsilon=TARGET, tune=2, seed=1, reproducible=True, track=track)
    assert {what for what in shown if what not in ("Public features", "Claims and report")} == {tuning.BAR}


@pytest.mark.parametrize("tune", ["0", "1", "-3", "nan", "inf", "1001"])
def test_no_number_of_trials(command, tmp_path, tune):
    code, said = command("adult", "--tune", tune, "-o", tmp_path / "out")
    assert code == 2
    assert said.startswith("bayesdp: tune=")
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--aim", "typical"], "one of --tune and --aim typical"),
        (["--seeds", "2"], "choices among runs are not composed"),
        (["--resume"], "begins anew"),
        (["--aim", "nobody"], "aim='nobody'"),
    ],
)
def test_what_does_not_go_with_it(command, tmp_path, more, said):
    code, printed = command("adult", "--tune", "3", "-o", tmp_path / "out", *more)
    assert code == 2
    assert said in printed
    assert not (tmp_path / "out").exists()


def test_a_choice_that_was_interrupted_is_not_continued(command, tmp_path, data, monkeypatch):
    folder, real = tmp_path / "out", tuning._train
    monkeypatch.setattr(Selection, "trials", lambda self, uniform: 3)

    def interrupted(trial, run, number, track):
        if number == 1:
            raise KeyboardInterrupt
        return real(trial, run, number, track)

    untuned = ["adult", "--data", data, "--target-epsilon", "1", "-o", folder]
    monkeypatch.setattr(tuning, "_train", interrupted)
    code, said = command(*untuned, "--tune", "3")
    assert code == 130
    assert "nothing in this one may be released" in said
    assert not (folder / "run.ledger").exists()
    left = sorted((folder / "trials").glob("*.ledger"))
    assert left
    for path in left:  # the choice never finished, so what is left proves nothing
        with Ledger.open(path, write=False) as ledger:
            assert ledger.claims().everyone.reason == NOT_CHOSEN
    monkeypatch.setattr(tuning, "_train", real)
    for more in (["--tune", "3"], ["--resume"], []):
        code, said = command(*untuned, *more)
        assert code == 2
        assert "a choice among runs was interrupted in this one" in said


@pytest.mark.parametrize("what", ["compute_claims", "write_report", "_keep"])
def test_a_choice_that_ended_keeps_its_model(command, tmp_path, data, monkeypatch, what):
    """Ctrl-C while claims or report are made: the choice is paid for, and its model is there."""

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    folder = tmp_path / "out"
    monkeypatch.setattr(training, what, interrupted)
    options = ["adult", "--data", data, "--target-epsilon", "1", "-o", folder]
    code, said = command(*options, "--tune", "2")
    assert code == 130
    assert "Interrupted after the choice: the chosen model and its ledger are in" in said
    assert "--resume" not in said
    assert {"run.ledger", "model.safetensors"} <= {path.name for path in folder.iterdir()}
    assert not (folder / "trials").exists()
    with Ledger.open(folder / "run.ledger", write=False) as ledger:
        assert ledger.claims().everyone.epsilon <= TARGET
        began = datetime.fromisoformat(ledger.selection.began).timestamp()
    assert {(folder / name).stat().st_mtime for name in ("run.ledger", "model.safetensors")} == {began}
    code, said = command(*options, "--tune", "2")
    assert code == 2
    assert "the run in this one is finished" in said
    assert ("bayesdp claims run.ledger" in said) is (not (folder / "run.json").exists())


@pytest.mark.parametrize(("target", "delta"), [("0.05", "0.01"), ("0.1", "0.02"), ("1e-9", "1e-5")])
def test_a_target_that_no_trial_can_have_is_refused_before_anything_is_written(command, tmp_path, data, target, delta):
    options = ["--tune", "5", "--target-epsilon", target, "--delta", delta]
    code, said = command("adult", "--data", data, *options, "-o", tmp_path / "out")
    assert code == 2
    assert f"bayesdp: target_epsilon={float(target)!r}: expected" in said
    assert not (tmp_path / "out").exists()


def test_rows_that_cannot_be_trained_on_leave_no_trace(tmp_path, data, monkeypatch):
    folder = tmp_path / "out"

    def refused(trial, run, number, track):
        raise tuning.refuse("rows", 0, "more")

    monkeypatch.setattr(tuning, "_train", refused)
    with pytest.raises(ValueError, match="rows="):
        train("adult", data=data, target_epsilon=TARGET, tune=3, output=folder)
    assert not (folder / "trials").exists()
