"""The short way: people set aside in one call, statement and report at the end of a ``with`` block."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from bayesdp import InvalidInputError, Ledger
from bayesdp.opacus import split_audit
from opacus_runs import private_run, random_data


def test_people_are_set_aside_without_touching_random_numbers() -> None:
    data = TensorDataset(torch.arange(1000))
    states = torch.get_rng_state(), np.random.get_state(legacy=False), random.getstate()  # noqa: NPY002
    training, audit = split_audit(data)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state(legacy=False)["state"]["pos"] == states[1]["state"]["pos"]  # noqa: NPY002
    assert random.getstate() == states[2]
    assert (len(training), len(audit)) == (541, 459)
    assert sorted([*training.indices, *audit.indices]) == list(range(1000))


def test_as_many_as_the_shares_need() -> None:
    data = TensorDataset(torch.arange(1000))
    assert len(split_audit(data, shares=(0.5, 0.9))[1]) == 44
    assert len(split_audit(data, records=300)[1]) == 300
    again = [split_audit(data, records=50, seed=seed)[1].indices for seed in (3, 3, 4)]
    assert again[0] == again[1] != again[2]
    assert split_audit(data, records=50)[1].indices != split_audit(data, records=50)[1].indices


def test_each_record_is_set_aside_equally_often() -> None:
    data = TensorDataset(torch.arange(20))
    counts = np.zeros(20)
    for seed in range(2000):
        counts[split_audit(data, records=5, seed=seed)[1].indices] += 1
    assert abs(counts - 500).max() < 6 * np.sqrt(2000 * 0.25 * 0.75)


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        (range(459), {}, r"len\(dataset\)=459: expected more than the 459 records"),
        (iter([]), {}, "dataset='list_iterator': expected a data set with a length"),
        (range(1000), {"records": 0}, "records=0"),
        (range(1000), {"gamma": 0.0}, "gamma=0"),
        (range(1000), {"shares": (1.0,)}, "shares=1"),
        (range(1000), {"seed": -1}, "seed=-1"),
    ],
)
def test_bad_splits_are_refused(dataset: Any, options: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        split_audit(dataset, **options)


def test_statement_and_report_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = private_run(noise_multiplier=4.0)
    path, page = tmp_path / "run.ledger", tmp_path / "report.html"
    with run.watch(path, audit=random_data(60, seed=9), loss=run.loss, steps=10, report=page, delta=1e-4) as watched:
        run.train()
        assert not page.exists()
    printed = capsys.readouterr().out
    with Ledger.open(path, write=False) as ledger:
        assert printed == f"{ledger.claims(1e-4).statement()}\nReport: {page}\n"
        ledger.report(tmp_path / "again.html", delta=1e-4)
    assert page.read_text() == (tmp_path / "again.html").read_text()
    watched.close()
    assert capsys.readouterr().out == ""


def test_neither_after_an_exception(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, page = private_run(), tmp_path / "report.html"

    def interrupted() -> None:
        with run.watch(tmp_path / "run.ledger", report=page):
            run.train(most=2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert capsys.readouterr().out == ""
    assert not page.exists()
    with Ledger.open(tmp_path / "run.ledger", write=False) as ledger:
        assert ledger.steps == 2
