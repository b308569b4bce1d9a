"""Ledgers that an earlier version wrote: they open, verify, and give the claims of that version or sharper ones.

The files in ``written_by_0_1_0/`` come from bayesdp 0.1.0: ``closed`` has changing settings, ids, groups, a gate,
batches and an amended step; ``full_batch`` was not sampled; ``killed`` was left open by a process that was killed, with
its log and head beside it. ``expected.json`` is what that version said about them.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bayesdp import Ledger

FOLDER = Path(__file__).parent / "written_by_0_1_0"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())


@pytest.fixture
def copied(tmp_path):
    """A copy: opening a ledger that was not closed writes beside it."""
    for file in FOLDER.glob("*.ledger*"):
        shutil.copy(file, tmp_path)
    return tmp_path


def figures(claim):
    """What a claim says in numbers, whatever its words are."""
    return {
        name: claim[name]
        for name in ("epsilon", "delta", "audience", "direction", "kind", "share", "group", "samples", "gamma", "order")
    }


def assert_same(values, before):
    """The same values; numbers up to what other versions of the numerical libraries round differently."""
    for name, value in before.items():
        assert values[name] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value), name


@pytest.mark.parametrize("name", EXPECTED)
def test_claims_are_those_of_the_version_that_wrote_it(copied, name):
    expected = EXPECTED[name]
    with Ledger.open(copied / f"{name}.ledger", write=False) as ledger:
        assert (ledger.steps, ledger.seal, ledger.run) == (expected["steps"], expected["seal"], expected["run"])
        assert_same(ledger.worst_case().to_dict(), expected["worst_case"])
        assert ledger.snapshots()[0] == expected["snapshot_points"]
        np.testing.assert_allclose(ledger.costs([1, 8, 64])[:5], expected["costs"], rtol=1e-12)
        found = ledger.claims(rows=2, private=True)
        new = (found.anytime, found.left_out, *found.members, *found.levels)  # which that version did not have
        claims = [claim.to_dict() for claim in found if claim not in new]
    assert len(claims) == len(expected["claims"])
    everyone = expected["worst_case"]["epsilon"]
    for claim, before in zip(claims, expected["claims"], strict=True):
        if before["kind"] == "ex-post":  # a sharper form since then, and never above the claim for everyone
            assert claim["epsilon"] is None or claim["epsilon"] < before["epsilon"]
            assert claim["epsilon"] is None or claim["epsilon"] >= 0.5 * min(before["epsilon"], everyone)
        elif before["kind"] == "proved" and before["audience"] == "average":  # of the gate, sharper too
            assert (claim["epsilon"], claim["direction"]) == (before["epsilon"], before["direction"])
            assert 0.01 < claim["delta"] < before["delta"]
        else:
            numbers = figures(before)
            if "2 rows of one person" in claim["method"]:  # which is sharper too
                assert 0.85 * numbers["epsilon"] < claim["epsilon"] <= numbers.pop("epsilon")
            assert_same(claim, numbers)


@pytest.mark.parametrize("name", EXPECTED)
def test_runs_go_on(copied, name):
    path = copied / f"{name}.ledger"
    with Ledger.open(path) as ledger:
        number = ledger.step(noise_std=2.0, sample_rate=1.0, clip=1.0)
    with Ledger.open(path, write=False) as ledger:
        assert ledger.steps == number == EXPECTED[name]["steps"] + 1
