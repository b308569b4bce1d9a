"""`bayesdp train`: from files to the statement, what it keeps, and what it refuses."""

import contextlib
import gzip
import hashlib
import io
import json
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from bayesdp import Ledger
from bayesdp.cli import main
from bayesdp.recipes import RECIPES, catalogue, load, train, whitening
from bayesdp.recipes.datasets.scaled_tables import ADULT
from bayesdp.recipes.features import EXTRACTORS
from recipe_data import write_abalone, write_adult, write_images
from warm_programs import COMMAND, Program, run_warm

# The worst case of a run that need not be accurate: small, as its privacy loss distributions are computed faster.
EPSILON = 1


SMALL = """
import dataclasses
import numpy as np
from bayesdp.recipes import catalogue, features

def small():
    "Twelve features in place of 3,969."
    blocks = lambda rows: rows[:, 2:26, 2:26].reshape(len(rows), 12, 2, 24).mean((2, 3)).astype(np.float32) / 255
    unit = lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)
    features.EXTRACTORS["blocks"] = features.Extractor("blocks", 1, 4096, lambda: lambda rows: unit(blocks(rows)))
    choice = catalogue.ProbeChoice(target_epsilon=60, steps=40, clip=0.5, learning_rate=20.0, shape=0.1)
    return catalogue.Recipe(name="mnist", features="blocks", choices=(choice,))

catalogue.RECIPES["mnist"] = small()
"""


@pytest.fixture
def small(monkeypatch):
    """Replace the recipe of MNIST by one with few features and steps, and return its settings."""
    monkeypatch.setitem(catalogue.RECIPES, "mnist", catalogue.RECIPES["mnist"])
    monkeypatch.setitem(EXTRACTORS, "blocks", None)
    exec(SMALL, {})
    return catalogue.RECIPES["mnist"].choices[0]


@pytest.fixture
def data(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    write_adult(folder)
    write_images(folder, "mnist", 300, 500)
    monkeypatch.setenv("BAYESDP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("BAYESDP_DATA", raising=False)
    return folder


@pytest.fixture
def command(monkeypatch):
    """Call what the program calls, in this process: exit code, standard output and errors."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["bayesdp", "train", *map(str, arguments)])
        out, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors), pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, out.getvalue(), errors.getvalue()

    return run


def test_the_program_prints_what_the_design_says(data, tmp_path):
    result = run_warm("train", "adult", "--data", data, "--target-epsilon", EPSILON, "--json", "-o", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    printed = json.loads(result.stdout)
    expected = {"recipe", "accuracy", "baseline_accuracy", "worst_case", "shares", "bayesian", "seconds", "seed"}
    assert expected | {"settings"} <= set(printed)
    assert printed["recipe"] == "adult"
    assert 0 < printed["worst_case"]["epsilon"] <= EPSILON
    assert printed["worst_case"]["delta"] == 1e-5
    assert [share["share"] for share in printed["shares"]] == [0.5, 0.9, 0.99]
    assert printed["baseline_accuracy"] is None
    assert "not private" in printed["baseline_reason"]
    assert printed["for_release"] is True
    assert printed["settings"]["tuning"]["data"] == "validation rows of adult"
    assert printed["settings"]["target_epsilon"] == EPSILON
    written = {"model.safetensors", "report.html", "run.ledger", "statement.txt"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*written, "run.json"}
    files = [Path(path) for path in printed.pop("files").values()]
    assert json.loads((tmp_path / "out" / "run.json").read_text()) == printed
    assert set(files) == {tmp_path / "out", *(tmp_path / "out" / name for name in written)}
    with Ledger.open(tmp_path / "out" / "run.ledger", write=False) as ledger:
        assert ledger.worst_case(1e-5).epsilon == printed["worst_case"]["epsilon"]
        assert ledger.metadata["recipe"] == "adult"
        assert ledger.history.caveats == ["records-public", "zero-out"]
        assert ledger.audit_used_for == RECIPES["adult"].audit_used_for
    own = {share["kind"] for share in printed["shares"] if share["reason"] != "no better than for everyone"}
    assert own == {"estimate"}
    assert "the number of training records is public" in (tmp_path / "out" / "statement.txt").read_text()
    assert "NOT FOR RELEASE" not in (tmp_path / "out" / "statement.txt").read_text()
    model = tmp_path / "out" / "model.safetensors"
    assert load_file(model)["mean"].shape == (len(ADULT) + 1,)  # and the intercept
    assert hashlib.sha256(model.read_bytes()).hexdigest() in (tmp_path / "out" / "report.html").read_text()


def test_experiments_are_stamped_everywhere(data, tmp_path):
    arguments = {"data": data, "target_epsilon": EPSILON}
    runs = [train("adult", **arguments, reproducible=True, output=tmp_path / name) for name in ("0", "1")]
    for file in ("statement.txt", "report.html"):
        assert "NOT FOR RELEASE" in (tmp_path / "0" / file).read_text()
    assert runs[0].to_dict()["for_release"] is False
    assert runs[0].baseline_accuracy > 0.6
    with Ledger.open(tmp_path / "0" / "run.ledger", write=False) as ledger:
        assert all("NOT FOR RELEASE" in str(claim) for claim in ledger.claims() if not claim.reason)
    assert np.array_equal(runs[0].model.arrays["mean"], runs[1].model.arrays["mean"])
    fresh = train("adult", **arguments)
    assert not np.isclose(fresh.model.arrays["mean"], runs[0].model.arrays["mean"], rtol=1e-6).any()


def test_a_linear_probe_from_images_to_a_model_that_classifies(data, tmp_path, small):
    trained = train("mnist", data=data, target_epsilon=60, reproducible=True, output=tmp_path / "out")
    assert trained.accuracy > 0.8
    assert trained.claims.worst_case.epsilon <= 60
    model = load_file(tmp_path / "out" / "model.safetensors")
    audit = load("mnist", data).audit
    features = EXTRACTORS["blocks"](audit.x)
    classes = ((features - model["centre"]) @ model["weights"].T).argmax(axis=1)
    assert (classes == audit.y).mean() == pytest.approx(trained.accuracy, abs=0.011)
    assert Ledger.open(tmp_path / "out" / "run.ledger", write=False).steps == small.steps + 2


@pytest.mark.parametrize("name", ["mnist", "adult"])
def test_an_interrupted_run_goes_on_and_ends_as_it_would_have(data, tmp_path, name, small):
    def interrupt(at):
        def track(items, what):
            for number, item in enumerate(items):
                if what != "Public features" and number == at:
                    raise KeyboardInterrupt
                yield item

        return track

    arguments = {"data": data, "target_epsilon": EPSILON, "reproducible": True, "baseline": False}
    whole = train(name, **arguments, output=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(name, **arguments, output=tmp_path / "parts", track=interrupt(5))
    with pytest.raises(ValueError, match=r"output=.*expected a new folder, or --resume"):
        train(name, **arguments, output=tmp_path / "parts")
    with pytest.raises(ValueError, match=r"resume=.*expected the same recipe, target, seed and data"):
        train(name, **arguments | {"target_epsilon": 2}, output=tmp_path / "parts", resume=True)
    parts = train(name, **arguments, output=tmp_path / "parts", resume=True)
    for key, array in whole.model.arrays.items():
        assert np.array_equal(array, parts.model.arrays[key])
    assert parts.claims.worst_case == whole.claims.worst_case
    with pytest.raises(ValueError, match="the run in this one is finished"):
        train(name, **arguments, output=tmp_path / "parts", resume=True)


def test_a_killed_run_goes_on_with_exactly_the_steps_that_are_left(data, tmp_path, small):
    folder = tmp_path / "out"
    slowly = "lambda items, what: (time.sleep(0.05) or item for item in items)"
    call = f"train('mnist', data={str(data)!r}, target_epsilon={EPSILON}, output={str(folder)!r}, track={slowly})"
    code = f"{SMALL}\nimport time\nfrom bayesdp.recipes import train\n{call}"
    running = Program(code=code)
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and not ((folder / "run.ledger").exists() and _steps(folder) > 6):
        time.sleep(0.02)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert 6 < _steps(folder) < small.steps + 2
    train("mnist", data=data, target_epsilon=EPSILON, output=folder, resume=True)
    with Ledger.open(folder / "run.ledger", write=False) as ledger:
        assert ledger.steps == small.steps + 2
        assert ledger.worst_case(1e-5).epsilon <= EPSILON


def _steps(folder):
    with Ledger.open(folder / "run.ledger", write=False) as ledger:
        return ledger.steps


def test_several_seeds(data, tmp_path, command):
    code, out, errors = command(
        "adult", "--data", data, "--seeds", 2, "--reproducible", "--json", "-o", tmp_path / "out"
    )
    assert code == 0, errors
    printed = json.loads(out)
    assert [run["seed"] for run in printed["runs"]] == [0, 1]
    accuracies = [run["accuracy"] for run in printed["runs"]]
    assert printed["mean"]["accuracy"] == pytest.approx(np.mean(accuracies))
    assert printed["sd"]["accuracy"] == pytest.approx(np.std(accuracies))
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"seed-0", "seed-1"}
    assert 1.2 * printed["mean"]["epsilon"] < printed["together"]["epsilon"] < 2 * printed["mean"]["epsilon"]
    code, _, errors = command("adult", "--data", data, "--seeds", 3, "-o", tmp_path / "out")
    assert code == 2
    assert "the run in this one is finished" in errors
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"seed-0", "seed-1"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["imagenet"], "recipe='imagenet': expected one of mnist"),
        (["adult", "--data", "/nowhere"], "data='/nowhere': expected adult/adult.data and adult/adult.test in it;"),
        (["adult", "--target-epsilon", "0"], "target_epsilon=0.0: expected a finite number above 0"),
        (["adult", "--target-epsilon", "nan"], "target_epsilon=nan"),
        (["adult", "--delta", "1"], "delta=1.0"),
        (["adult", "--seed", "-1"], "seed=-1"),
        (["adult", "--seeds", "0"], "seeds=0"),
        (["adult", "--seeds", "2", "--resume"], "resume=True"),
        (["adult", "--resume"], "output=None: expected with --resume the folder"),
        (["adult", "--seed", "7", "--seeds", "2"], "seed=7: expected one of --seed and --seeds"),
        (["adult", "-o", "new", "--resume"], "output='new': expected the folder of a run to resume"),
        (["adult", "-o", "/proc/no"], "output='/proc/no'"),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(data, tmp_path, monkeypatch, command, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BAYESDP_DATA", str(data))
    before = sorted(tmp_path.rglob("*"))
    code, out, errors = command(*arguments)
    assert code == 2
    assert message in errors
    assert len(errors.splitlines()) == 1
    assert out == ""
    assert sorted(tmp_path.rglob("*")) == before


def test_without_data_nothing_is_written(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="data="):
        train("adult", data=tmp_path / "none", output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_aim_typical_says_what_it_gives_up(data, tmp_path, command):
    [typical] = RECIPES["adult"].typical
    for target, measured in ((0.1, True), (1.0, False)):
        folder = tmp_path / f"typical-{target:g}"
        code, said, _ = command("adult", "--data", data, "--aim", "typical", "--target-epsilon", target, "-o", folder)
        assert code == 0
        assert f"\nAim: {typical.statement()}" in said
        assert (f"This run has a target of {target:g}, for which that was not measured." in said) is not measured
        settings = json.loads((folder / "run.json").read_text())["settings"]
        assert settings["aim"] == "typical"
        assert settings["clip"] == typical.choice.clip
        assert settings["given_up"]["gives"]["accuracy"] == typical.gives.accuracy


def test_the_nearest_settings_are_taken_for_another_target():
    assert RECIPES["mnist"].choice(0.25).target_epsilon == 0.2
    assert RECIPES["mnist"].choice(5).target_epsilon == 0.65
    assert RECIPES["mnist"].choice(None) is RECIPES["mnist"].choices[0]


def test_a_small_audit_set_gives_reasons_instead_of_figures(tmp_path, monkeypatch):
    write_abalone(tmp_path)
    share = train("abalone", data=tmp_path, target_epsilon=EPSILON).to_dict()["shares"][2]
    assert share["epsilon"] is None
    assert "459" in share["reason"]


def test_digits_by_the_command(monkeypatch, command):
    choice = replace(RECIPES["digits"].choices[0], steps=12, learning_rate=0.5)
    monkeypatch.setitem(RECIPES, "digits", replace(RECIPES["digits"], choices=(choice,)))
    code, out, errors = command("digits", "--target-epsilon", "3", "--reproducible", "--json")
    assert (code, errors) == (0, "")
    printed = json.loads(out)
    assert printed["accuracy"] > 0.6
    assert 2.9 < printed["worst_case"]["epsilon"] <= 3
    assert all(share["kind"] != "estimate" for share in printed["shares"])  # chosen without audit rows


def test_a_baseline_is_not_for_release(data):
    assert train("adult", data=data, target_epsilon=EPSILON, baseline=True).to_dict()["for_release"] is False


@pytest.mark.parametrize("interrupted", [1, 2])
def test_whitening_is_not_released_again(data, tmp_path, small, interrupted, monkeypatch):
    """A release that is in the ledger and was not kept, as the process was killed, is lost and not repeated."""

    def lost(*_):
        raise KeyboardInterrupt

    arguments = {"data": data, "target_epsilon": EPSILON, "output": tmp_path / "out"}
    written = []
    write = whitening.write_arrays
    monkeypatch.setattr(
        whitening,
        "write_arrays",
        lambda *file: lost() if len(written) == interrupted - 1 else written.append(file) or write(*file),
    )
    with pytest.raises(KeyboardInterrupt):
        train("mnist", **arguments)
    monkeypatch.setattr(whitening, "write_arrays", write)
    train("mnist", **arguments, resume=True)
    with Ledger.open(tmp_path / "out" / "run.ledger", write=False) as ledger:
        assert ledger.steps == small.steps + 2
        assert [stretch.source for stretch in ledger.history.stretches] == ["centre", "shape", "linear probe"]
        assert ledger.worst_case(1e-5).epsilon <= EPSILON


def test_a_run_is_not_resumed_without_what_it_needs(data, tmp_path, small):
    def stop(items, what):
        for number, item in enumerate(items):
            if what != "Public features" and number == 3:
                raise KeyboardInterrupt
            yield item

    arguments = {"data": data, "target_epsilon": EPSILON, "output": tmp_path / "out"}
    with pytest.raises(KeyboardInterrupt) as held:  # as in a notebook: the exception keeps the frames it passed alive
        train("mnist", **arguments, track=stop)
    images, labels = (data / "mnist" / f"train-{what}-ubyte.gz" for what in ("images-idx3", "labels-idx1"))
    kept = labels.read_bytes()
    whole = gzip.decompress(kept)
    labels.write_bytes(gzip.compress(whole[:8] + whole[:7:-1]))
    with pytest.raises(ValueError, match=r"checkpoint=.*the same settings"):
        train("mnist", **arguments, resume=True)
    labels.write_bytes(kept)
    file = tmp_path / "out" / "whitening.safetensors"
    moved = file.rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="it is missing"):
        train("mnist", **arguments, resume=True)
    moved.rename(file)
    train("mnist", **arguments, resume=True)
    assert held.value is not None
    assert images.exists()


def test_a_run_that_was_refused_leaves_no_ledger(tmp_path, monkeypatch):
    write_abalone(tmp_path)
    with pytest.raises(ValueError, match="noise"):
        train("abalone", data=tmp_path, target_epsilon=1e-14, delta=1e-15, output=tmp_path / "out")
    train("abalone", data=tmp_path, target_epsilon=EPSILON, output=tmp_path / "out")


def test_a_full_disk_is_one_line(data, tmp_path):
    """Files of at most 20 kB, as with `ulimit -f`: the ledger does not fit."""
    limited = f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (20 << 10, 20 << 10))\n{COMMAND}"
    result = run_warm("train", "adult", "--data", data, "--target-epsilon", 3, "-o", tmp_path / "out", code=limited)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1, result.stderr
