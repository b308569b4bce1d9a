"""Opacus' epsilon assumes Poisson sampling: whoever only shuffles is told so, once, with both figures."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

from bayesdp import Ledger
from bayesdp.formatting import round_up
from bayesdp.opacus import SamplingWarning
from opacus_runs import private_run

PAGES = Path(__file__).parents[2] / "docs"
IMDB = {"as published": {"records": 25_000, "epochs": 10}, "in small": {"records": 3000, "epochs": 2}}
"""Runs of Opacus' examples/imdb.py, which only shuffles: batches of 64, noise multiplier 0.56, delta 1e-5."""


def told(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(warning.message) for warning in caught if str(warning.message).startswith("Opacus' epsilon")]


def test_both_figures_are_those_that_will_be_reported(tmp_path: Path) -> None:
    """Opacus' own figure after training, and the claim for everyone of the ledger."""
    run = private_run(noise_multiplier=2.0, poisson_sampling=False, shuffle=True)
    updates = 3 * len(run.loader)
    with pytest.warns(SamplingWarning, match="assumes Poisson sampling, not this data loader") as caught:
        watched = run.watch(tmp_path / "run.ledger", steps=updates)
    assert "opacus_runs" in caught[0].filename  # where watch was called
    for _ in range(3):
        run.train()
    [said] = told(list(caught))
    opacus, own = re.findall(r"epsilon after \d+ steps, (\S+) at delta=1e-05, .*: it is (\S+)\. bayesdp", said)[0]
    assert opacus == round_up(run.engine.get_epsilon(1e-5))
    assert own == round_up(watched.claims().everyone.epsilon)
    assert float(opacus) < float(own)
    watched.close()


def test_without_a_plan_there_are_words(ledger: Ledger) -> None:
    run = private_run(poisson_sampling=False)
    with pytest.warns(SamplingWarning, match=r"in order or shuffled: it is too small\. bayesdp accounts what is drawn"):
        run.watch(ledger)


def test_it_is_said_once(ledger: Ledger) -> None:
    """Not at every step, epoch or claim, and not again when the same engine is watched again."""
    run = private_run(poisson_sampling=False, shuffle=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        watched = run.watch(ledger)
        for _ in range(2):
            run.train()
            watched.claims()
        watched.close()
        run.watch(ledger).close()
    assert len(told(caught)) == 1


@pytest.mark.parametrize("options", [{}, {"accountant": "bayesdp"}])
def test_it_is_not_said_where_it_does_not_hold(ledger: Ledger, options: dict[str, str]) -> None:
    """With Poisson sampling, and with the accountant "bayesdp", which reports what the ledger says."""
    run = private_run(poisson_sampling=not options, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.watch(ledger).close()
    assert told(caught) == []


@pytest.mark.parametrize("settings", IMDB.values(), ids=IMDB)
def test_the_settings_of_the_imdb_example(tmp_path: Path, settings: dict[str, int]) -> None:
    """Both figures of the warning are on the pages about it, and the claim has the larger one."""
    run = private_run(
        noise_multiplier=0.56, records=settings["records"], batch=64, poisson_sampling=False, shuffle=True
    )
    with pytest.warns(SamplingWarning) as caught:
        watched = run.watch(tmp_path / "run.ledger", steps=settings["epochs"] * len(run.loader))
    [said] = told(list(caught))
    opacus, own = re.findall(r", (\S+) at delta=1e-05, .*: it is (\S+)\. bayesdp", said)[0]
    assert own == round_up(watched.claims().everyone.epsilon)
    watched.close()
    records = format(settings["records"], ",")
    for page in (PAGES / "sharp-edges.md", PAGES / "scripts.md"):
        assert f"{opacus} where it is {own} ({settings['epochs']} epochs of {records} rows)" in page.read_text()


def test_what_the_imdb_example_prints_in_small() -> None:
    """3,000 rows, and 2 epochs: Opacus' own figure, with the two digits that the script prints."""
    run = private_run(noise_multiplier=0.56, records=3000, batch=64, poisson_sampling=False, shuffle=True)
    run.train(2)
    assert f"{run.engine.get_epsilon(1e-5):.2f}" == "7.25"


def test_the_imdb_example_with_poisson_sampling(tmp_path: Path) -> None:
    """Then Opacus' figure is right: the claim is that of the same steps, and nothing is said."""
    run = private_run(noise_multiplier=0.56, records=3000, batch=64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        watched = run.watch(tmp_path / "run.ledger", steps=2 * len(run.loader))
    assert told(caught) == []
    run.train(2)
    claim = watched.claims().everyone
    assert claim.condition is None
    assert claim.epsilon == pytest.approx(run.engine.get_epsilon(1e-5), rel=0.005)
    watched.close()
