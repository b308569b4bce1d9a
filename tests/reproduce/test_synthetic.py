"""The paper's synthetic experiments against reference figures: small ones computed here, full ones as committed."""

import json
import math
from functools import cache
from pathlib import Path

import pytest

from bayesdp.experiment_files import for_json
from bayesdp.guarantees.worst_case import epsilon as worst_case
from bayesdp.guarantees.worst_case import rdp_epsilon
from bayesdp.reproduce import TARGETS, lambda_epsilon, reproduce
from bayesdp.reproduce.document import read
from bayesdp.reproduce.experiment import ExperimentOptions
from bayesdp.reproduce.published import weibull
from bayesdp.reproduce.published.weibull import classic
from bayesdp.reproduce.targets import Reproduction, experiment
from command_line import run
from oracle_files import rows
from warm_programs import run_warm

_kept_worst_case = cache(worst_case)
RESULTS = Path(__file__).parents[2] / "results" / "reproduction"


def committed(target):
    return json.loads((RESULTS / f"{target}.json").read_text())


@cache
def computed(target, seed=0):
    return experiment(target).compute(ExperimentOptions(small=True, seed=seed))


@pytest.fixture(autouse=True)
def _fast_classic_dp(monkeypatch):
    """Let trials have Rényi divergences in place of privacy loss distributions, which take a second each.

    The real ones are compared with the committed results by a test of their own.
    """

    def by_rdp(exposure, steps):
        epsilon = rdp_epsilon([(1 / exposure, weibull.RATE, steps)], delta=weibull.DELTA)
        return epsilon, epsilon

    monkeypatch.setattr(weibull, "classic", by_rdp)
    monkeypatch.setattr(lambda_epsilon, "worst_case", _kept_worst_case)


def test_classic_dp_is_what_was_committed():
    panel = committed("composition")["panels"][0]
    place = panel["classic_steps"].index(2)
    rdp, pld = classic(1.0, 2)
    assert rdp == pytest.approx(panel["dp_rdp"][place], rel=1e-6)
    assert pld == pytest.approx(panel["dp_pld"][place], rel=1e-6)
    result = committed("sigma-epsilon")
    _, pld = classic(1 / result["sigmas"][-1], 1)
    assert pld == pytest.approx(result["panels"][0]["dp_pld"][-1], rel=1e-6)


@pytest.mark.parametrize("whole", [False, True])
def test_composition_as_published(whole):
    result = committed("composition") if whole else computed("composition")
    oracle = {(float(row["quant"]), int(row["step"])): row for row in rows("composition_seed0.csv")}
    assert len(result["steps"]) == (100 if whole else 4)
    for panel in result["panels"]:
        for name, column in (("dp_published", "ma_eps_1e-5"), ("bdp_published", "ba_eps_1e-5")):
            expected = [float(oracle[panel["quantile"], step][column]) for step in result["steps"]]
            assert panel[name] == pytest.approx(expected, rel=1e-3)


def test_composition_at_the_best_order():
    for panel in committed("composition")["panels"]:
        assert panel["dp_published"][-1] == pytest.approx(116.8, abs=0.05)
        assert panel["dp_moments"][-1] == pytest.approx(0.913, abs=5e-4)
        assert panel["dp_rdp"][-1] == pytest.approx(0.636, abs=5e-4)
        assert panel["dp_pld"][-1] == pytest.approx(0.055, abs=5e-4)
        assert panel["bdp_best"][-1] <= panel["bdp_published"][-1]


@pytest.mark.parametrize("whole", [False, True])
def test_sigma_epsilon_as_published(whole):
    result = committed("sigma-epsilon") if whole else computed("sigma-epsilon")
    oracle = {
        (row["mode"], float(row["quant"]), round(float(row["sigma"]), 6)): row
        for row in rows("sigma_epsilon_seed0.csv")
    }
    assert len(result["sigmas"]) == (17 if whole else 3)
    for panel in result["panels"]:
        for place, sigma in enumerate(result["sigmas"]):
            row = oracle[panel["mode"], panel["quantile"], round(sigma, 6)]
            assert panel["dp_published"][place] == pytest.approx(float(row["ma_eps_1e-5"]), rel=1e-3)
            assert panel["bdp_published"][place] == pytest.approx(float(row["ba_eps_1e-5"]), rel=1e-3)


def test_lambda_epsilon():
    result = computed("lambda-epsilon")
    for line, kept in zip(result["lines"], committed("lambda-epsilon")["lines"], strict=True):
        for name, value in kept.items():
            assert line[name] == pytest.approx(value, rel=1e-6), name
    oracle = {(float(row["C"]), int(row["lambda"])): float(row["eps_1e-5"]) for row in rows("lambda_epsilon.csv")}
    for line in result["lines"]:
        assert line["published"] == pytest.approx(
            [oracle[line["clip"], order] for order in result["lambdas"]], rel=1e-3
        )
        assert line["pld"] <= line["best_improved"] <= line["best"]
    minima = {line["clip"]: (line["best_lambda"], line["best"]) for line in result["lines"]}
    assert minima[0.7] == (26, pytest.approx(0.54315, abs=5e-6))
    assert minima[1.0] == (12, pytest.approx(1.10647, abs=5e-6))


@pytest.mark.parametrize("whole", [False, True])
def test_the_attacker_is_right_as_often_as_theory_says(whole):
    result = committed("motivation") if whole else computed("motivation")
    trials = result["settings"]["trials"]
    for attack in result["attacks"]:
        assert attack["bound"] == pytest.approx(1 / (1 + math.exp(-attack["epsilon"])))
        assert attack["optimal"] == pytest.approx(attack["optimal_exact"], abs=5 * 0.5 / math.sqrt(trials))
        assert attack["when_sure"] == pytest.approx(attack["bound"], abs=5 * attack["when_sure_error"])


def test_another_seed_gives_other_figures_of_bdp_only():
    first, second = computed("sigma-epsilon"), computed("sigma-epsilon", seed=1)
    for panel, other in zip(first["panels"], second["panels"], strict=True):
        assert panel["bdp_published"] != other["bdp_published"]
        assert min(other["bdp_published"]) > 0
        assert panel["dp_published"] == other["dp_published"]


def test_every_target_writes_its_figures_and_its_picture(tmp_path):
    for target in ("lambda-epsilon", "motivation", "sigma-epsilon"):
        result = reproduce(target, tmp_path / "out", small=True)[target]
        assert json.loads((tmp_path / "out" / f"{target}-small.json").read_text()) == result
        assert (tmp_path / "out" / f"{target}-small.png").read_bytes().startswith(b"\x89PNG")
        assert result["versions"]["bayesdp"]


@pytest.mark.parametrize("options", [{"target": "figure 7"}, {"seed": -1}, {"output": "file"}])
def test_bad_input_is_refused_before_anything_is_written(tmp_path, options):
    (tmp_path / "file").write_text("")
    given = {"target": "lambda-epsilon", "output": "out", **options}
    with pytest.raises(ValueError, match=f"^{next(iter(options))}="):
        reproduce(given.pop("target"), tmp_path / given.pop("output"), small=True, **given)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_missing_data_is_noticed_before_anything_is_computed(tmp_path):
    with pytest.raises(ValueError, match="mnist"):
        reproduce("all", tmp_path / "out", data=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_trial_leaves_whole_results_alone_and_says_nothing_of_the_paper(tmp_path):
    whole = reproduce("lambda-epsilon", tmp_path)["lambda-epsilon"]
    trial = reproduce("lambda-epsilon", tmp_path, small=True)["lambda-epsilon"]
    assert read(tmp_path) == {"lambda-epsilon": whole}
    assert whole["verdicts"]
    assert not trial["verdicts"]
    assert {path.stem for path in tmp_path.iterdir()} == {"lambda-epsilon", "lambda-epsilon-small"}


def test_an_estimate_of_the_time_is_given(tmp_path):
    def seconds(*targets):
        modules = {target: experiment(target) for target in targets}
        return Reproduction(modules, ExperimentOptions(folder=tmp_path), lambda items, what: items).estimate()

    assert seconds("lambda-epsilon") == "about 5 seconds"
    assert "minutes" in seconds(*TARGETS)
    alone = experiment("leakage").SECONDS
    before = int(seconds("leakage").split()[1])
    assert before > alone / 60 + 20  # trains first
    for name in ("mnist", "cifar10"):
        (tmp_path / "models").mkdir(exist_ok=True)
        (tmp_path / "models" / f"{name}-seed-0.safetensors").touch()
    assert seconds("leakage").startswith(f"about {round(alone / 60)} minutes (and longer if features")


def test_what_is_not_finite_is_null_in_json():
    assert for_json({"a": [1.0, math.inf, (math.nan, 2)], "b": "x"}) == {"a": [1.0, None, [None, 2]], "b": "x"}


def test_the_command(tmp_path):
    done = run_warm("reproduce", "lambda-epsilon", "-o", "out", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.splitlines()[:2] == ["out/lambda-epsilon.json", "out/lambda-epsilon.png"]
    assert "holds as published" in done.stdout
    assert done.stderr == "This takes about 5 seconds on two cores.\n"
    as_json = json.loads(run("reproduce", "motivation", "-o", "out", "--json", cwd=tmp_path).stdout)
    assert as_json == {"motivation": json.loads((tmp_path / "out/motivation.json").read_text())}
    for arguments, words in ((["figure 7"], "target='figure 7'"), (["lambda-epsilon", "--seed", "-1"], "seed=-1")):
        wrong = run("reproduce", *arguments, cwd=tmp_path)
        assert wrong.returncode == 2
        assert words in wrong.stderr
        assert len(wrong.stderr.splitlines()) == 1
