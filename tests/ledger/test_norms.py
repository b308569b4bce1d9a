"""Norms are checked once: what was checked passes through every later function as it is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from bayesdp import InvalidInputError, Ledger, validation
from bayesdp.ledger import CheckedNorms, checked_norms
from bayesdp.ledger.norms import checked_audit_norms

STEP: dict[str, Any] = {"noise_std": 1.0, "sample_rate": 0.1, "clip": 1.0}


@pytest.mark.parametrize("values", [[0.0, 2.5], (0, 2.5), np.array([0, 2.5], np.float32)])
def test_any_array_becomes_double_precision(values: Any) -> None:
    norms = checked_norms("audit", values)
    assert norms.values.dtype == np.float64
    assert norms.values.tolist() == [0.0, 2.5]
    assert len(norms) == 2


def test_a_negative_zero_costs_nothing() -> None:
    ledger = Ledger()
    ledger.step(**STEP, audit=[-0.0, 0.0])
    assert ledger.costs([2]).tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0.1, math.nan], "batch[1]=nan: "),
        ([math.inf], "batch[0]=inf: "),
        ([-1e-300], "batch[0]=-1e-300: "),
        ([[0.1]], "batch.shape=(1, 1): "),
        (0.5, "batch.shape=(): "),
        ("ab", "batch='ab': "),
    ],
)
def test_refused_norms(values: Any, message: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        checked_norms("batch", values)
    assert str(error.value).startswith(message)


def test_how_many_are_above_the_clip_bound() -> None:
    norms = checked_norms("audit", [0.5, 1.0, 1.5, 2.0])
    assert (norms.above(1.0), norms.above(3.0), norms.above(None)) == (2, 0, 0)


@pytest.mark.parametrize("records", [0, 2])
def test_audit_norms_are_as_many_as_audit_records(records: int) -> None:
    """0 stands for a number that is not known yet."""
    assert len(checked_audit_norms([0.1, 0.2], records)) == 2
    with pytest.raises(InvalidInputError, match=r"len\(audit\)=0: "):
        checked_audit_norms([], records)
    if records:
        with pytest.raises(
            InvalidInputError, match=r"len\(audit\)=1: expected one norm for each of the 2 audit records"
        ):
            checked_audit_norms([0.1], records)


def test_norms_are_looked_at_once_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the ledger if they come as arrays; not at all if an adapter has checked them before."""
    looked_at: list[str] = []
    check = validation.non_negative_array

    def counted(name: str, values: Any, **options: Any) -> Any:
        looked_at.append(name)
        return check(name, values, **options)

    monkeypatch.setattr(validation, "non_negative_array", counted)
    arrays, checked = Ledger(), Ledger()
    arrays.step(**STEP, audit=[0.5, 2.0], batch=[0.1])
    assert looked_at == ["audit", "batch"]
    audit, batch = checked_norms("audit", [0.5, 2.0]), checked_norms("batch", [0.1])
    assert checked_norms("audit", audit) is audit
    looked_at.clear()
    checked.step(**STEP, audit=audit, batch=batch)
    checked.amend(1, audit=audit, batch=batch)
    assert looked_at == []
    assert np.array_equal(arrays.costs([1, 8]), checked.costs([1, 8]))
    with pytest.raises(InvalidInputError, match=r"len\(audit\)=1: "):  # their number still is
        checked.step(**STEP, audit=CheckedNorms(np.array([0.5])))
