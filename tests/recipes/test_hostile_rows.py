"""One hostile row among those trained on: no error, warning or line of output, and no other step, gives it away."""

import contextlib
import io
import logging
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import recipe_data
from bayesdp import InvalidInputError, Ledger
from bayesdp.randomness import Seeded
from bayesdp.recipes import BayesianLogisticRegression, ProbeRows, SgdSettings, fit_model, fit_probe, train
from bayesdp.recipes.release import LARGEST_WEIGHT, check_weights
from recipe_data import write_abalone

ROW = 7
HOSTILE = [3e37, -1e29, 1e31, 1e308, float("inf"), float("nan"), 5e-324, float(2**63)]
SETTINGS = SgdSettings(steps=6, sample_rate=0.5, clip=0.5, noise_multiplier=2.0, learning_rate=0.5)


@contextlib.contextmanager
def everything_said():
    """Collect what a run prints, logs and warns of."""
    said, out, errors = [], io.StringIO(), io.StringIO()
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger().addHandler(handler)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
                yield said
        finally:
            logging.getLogger().removeHandler(handler)
            said += [out.getvalue(), errors.getvalue(), *(str(warning.message) for warning in warned)]


def rows_with(value, n=60, d=5, row=ROW):
    """Rows of which one holds ``value`` and the rest of it is ordinary; None leaves a row of zeros."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((n, d)), rng.integers(0, 2, n)
    if value is None:
        x[row] = 0.0
    else:
        x[row, :2] = value, -value
    return x, y


def probe(value):
    x, y = rows_with(value)
    ledger = Ledger()
    with everything_said() as said:
        weights = fit_probe(ProbeRows(x, y, 2), SETTINGS, ledger=ledger, randomness=Seeded(0))
    return weights, ledger.steps, said


def regression(value):
    x, y = rows_with(value)
    with everything_said() as said:
        model = BayesianLogisticRegression(steps=6, fit_intercept=False, random_state=0).fit(x, y)
    return model.posterior_mean_, model.ledger_.steps, said


def network(value):
    x, y = rows_with(value)
    torch.manual_seed(0)
    model, ledger = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)), Ledger()
    with everything_said() as said:
        inputs, targets = torch.from_numpy(x).float(), torch.from_numpy(y)
        fit_model(model, nn.CrossEntropyLoss(), inputs, targets, SETTINGS, ledger=ledger, randomness=Seeded(0))
    return torch.cat([part.detach().flatten() for part in model.parameters()]).numpy(), ledger.steps, said


CASES = [
    (fit, value)
    for fit in (probe, regression, network)
    for value in HOSTILE
    if fit is not regression or np.isfinite(value)  # scikit-learn's conventions: see below
]


@pytest.mark.parametrize(("fit", "value"), CASES)
def test_runs_say_and_do_the_same_with_and_without_it(fit, value):
    weights, steps, said = fit(value)
    without, steps_without, said_without = fit(None)
    assert said == said_without == ["", ""]
    assert steps == steps_without == 6
    assert np.isfinite(weights).all()
    if fit is not network and not abs(value) <= 1e30:
        np.testing.assert_array_equal(weights, without)  # it contributed nothing at all


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_the_estimator_refuses_what_scikit_learn_refuses_before_there_is_a_ledger(tmp_path, value):
    with pytest.raises(ValueError, match="Input X contains"):
        BayesianLogisticRegression(ledger=tmp_path / "run.ledger").fit(*rows_with(value))
    assert not list(tmp_path.iterdir())


def measured(**changes):
    """A line of abalone.data with some values replaced, by their place."""
    line = list(recipe_data.ABALONE[ROW])
    for place, value in changes.items():
        line[int(place[1:])] = value
    return line


def person(**changes):
    """A line of adult.data with some columns replaced, by their place."""
    line = recipe_data.ADULT[ROW].split(", ")
    for place, value in changes.items():
        line[int(place[1:])] = value
    return ", ".join(line)


@pytest.mark.parametrize("length", ["3e37", "1e300", "-1.7e308", "5e-324", str(10**200)])
def test_the_table_of_abalone(tmp_path, length):
    said = {}
    for name, line in (("with", measured(_1=length, _4="5e-324", _5=length)), ("without", measured())):
        rows = [*recipe_data.ABALONE[:ROW], line, *recipe_data.ABALONE[ROW + 1 :]]
        write_abalone(tmp_path / name, rows)
        with everything_said() as said[name]:
            trained = train("abalone", data=tmp_path / name, target_epsilon=1)
        assert np.isfinite(trained.model.arrays["mean"]).all()
    assert said["with"] == said["without"] == ["", ""]


@pytest.mark.parametrize("changes", [{"_0": "1e300"}, {"_10": "-5"}, {"_11": "-1"}, {"_12": "1.7e308"}])
def test_the_table_of_adult(tmp_path, changes):
    recipe_data.write_adult(tmp_path)
    path = tmp_path / "adult" / "adult.data"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:ROW], person(**changes), *lines[ROW + 1 :]]) + "\n")
    with everything_said() as said:
        trained = train("adult", data=tmp_path, target_epsilon=1)
    assert said == ["", ""]
    assert np.isfinite(trained.model.arrays["mean"]).all()


# What the caller gets wrong


def test_a_class_that_the_model_does_not_have_is_refused_before_the_first_step():
    """Whether and when the row would have been drawn does not matter."""
    x, y = rows_with(None)
    y[ROW] = 2
    for seed in range(4):
        model, ledger = nn.Linear(5, 2), Ledger()
        rare = SgdSettings(steps=3, sample_rate=0.01, clip=0.5, noise_multiplier=2.0, learning_rate=0.5)
        arguments = (nn.CrossEntropyLoss(), torch.from_numpy(x).float(), torch.from_numpy(y), rare)
        with pytest.raises(InvalidInputError, match=r"inputs, targets=.*Target 2 is out of bounds"):
            fit_model(model, *arguments, ledger=ledger, randomness=Seeded(seed))
        assert ledger.steps == 0
    with pytest.raises(InvalidInputError, match="y=2: expected classes from 0 to 1"):
        ProbeRows(x, y, 2)


def test_looking_at_the_rows_beforehand_changes_nothing():
    x, y = rows_with(None)
    model = nn.Sequential(nn.Linear(5, 2), nn.Dropout(0.5)).eval()
    before = torch.random.get_rng_state()
    arguments = (nn.CrossEntropyLoss(), torch.from_numpy(x).float(), torch.from_numpy(y + 5), SETTINGS)
    with pytest.raises(InvalidInputError, match="inputs, targets="):
        fit_model(model, *arguments, ledger=Ledger(), randomness=Seeded(0))
    assert not model.training
    assert torch.equal(torch.random.get_rng_state(), before)


def test_weights_that_left_every_range_stop_a_run_whoever_is_in_the_data():
    check_weights(np.array([LARGEST_WEIGHT, -1.0]))
    for weights in (np.array([2 * LARGEST_WEIGHT]), np.array([0.0, np.nan])):
        with pytest.raises(InvalidInputError, match="the weights have left every range"):
            check_weights(weights)
    for value in (None, 1e29):
        model, rows = BayesianLogisticRegression(steps=9, learning_rate=1e60, random_state=0), rows_with(value)
        with pytest.raises(InvalidInputError, match="the weights have left every range"), everything_said() as said:
            model.fit(*rows)
        assert said == ["", ""]
