"""The settings of a run: what is said at its creation is what the ledger says later, closed and opened again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bayesdp import Gate, InvalidInputError, Ledger
from bayesdp.ledger import new_settings
from bayesdp.ledger.settings import RunDescription, audit_size, checked_path

GATE = Gate(epsilon=3.0, delta=1e-5, share=0.5, gamma=0.01, records=20)


class Described(RunDescription):
    """Settings alone, without a ledger."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings


def test_everything_that_was_given_is_described() -> None:
    groups = ["old"] * 10 + ["young"] * 10
    settings = new_settings(
        audit_ids=[*range(19), "last"],
        audit_groups=groups,
        data="survey",
        metadata={"model": {"layers": 3}, "seeds": [1, 2]},
        gate=GATE.to_json(),
    )
    assert all(isinstance(text, str) for item in settings.items() for text in item)
    run = Described(settings)
    assert run.audit_ids == [*range(19), "last"]
    assert run.audit_groups == groups
    assert (run.data, run.metadata) == ("survey", {"model": {"layers": 3}, "seeds": [1, 2]})
    assert run.declared_gate == GATE.to_json()
    assert (run.composed_of, run.notes) == ([], [])
    assert len(run.run) == 32
    assert run.created.endswith("+00:00")
    assert audit_size(settings) == 20


def test_what_was_not_given_is_none_or_empty() -> None:
    settings = new_settings()
    run = Described(settings)
    assert (run.data, run.audit_ids, run.audit_groups, run.declared_gate) == (None, None, None, None)
    assert (run.metadata, run.composed_of, run.notes) == ({}, [], [])
    assert audit_size(settings) is None
    assert run.run != Described(new_settings()).run


def test_a_composed_ledger_describes_its_runs() -> None:
    first, second = Ledger(data="survey", metadata={"part": 1}), Ledger()
    both = first.then(second)
    assert [(part["run"], part["metadata"]) for part in both.composed_of] == [
        (first.run, {"part": 1}),
        (second.run, {}),
    ]
    assert both.data == "survey"
    assert both.notes[0].startswith("Worst case only: ")
    assert both.run not in (first.run, second.run)


@pytest.mark.parametrize(
    "given",
    [{"audit_ids": range(20)}, {"audit_groups": ["a"] * 20}, {"gate": GATE.to_json()}],
    ids=lambda x: next(iter(x)),
)
def test_ids_groups_or_a_gate_say_how_many_audit_records_there_are(given: dict[str, Any]) -> None:
    assert audit_size(new_settings(**given)) == 20


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"audit_ids": range(3), "audit_groups": ["a"]}, "len(audit_groups)=1: "),
        ({"audit_groups": []}, "audit_groups=[]: "),
        ({"audit_groups": ["a", ""]}, "audit_groups=['a', '']: "),
        ({"audit_groups": "ab"}, "audit_groups='ab': "),
        ({"audit_ids": range(3), "gate": GATE.to_json()}, "gate.records=20: "),
        ({"audit_groups": ["a"] * 3, "gate": GATE.to_json()}, "gate.records=20: "),
    ],
)
def test_settings_that_do_not_fit_together(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        new_settings(**given)
    assert str(error.value).startswith(message)


def test_settings_survive_closing(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "run.ledger", audit_ids=["a"], data="survey", metadata={"x": 1}) as ledger:
        run, created = ledger.run, ledger.created
    with Ledger.open(tmp_path / "run.ledger", write=False) as read:
        assert (read.run, read.created, read.audit_ids, read.data) == (run, created, ["a"], "survey")
        assert json.dumps(read.metadata) == '{"x": 1}'


def test_paths() -> None:
    assert checked_path("a/b.ledger") == Path("a/b.ledger")
    assert checked_path(Path("b.ledger")) == Path("b.ledger")
