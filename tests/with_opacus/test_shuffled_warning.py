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
