"""Norms that become known after a step was recorded, and what steps rest on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bayesdp import Gate, InvalidInputError, Ledger, LedgerError
from bayesdp.ledger import head
from bayesdp.ledger.file import LedgerFile

STEP: dict[str, Any] = {"noise_std": 2.0, "sample_rate": 1.0, "clip": 1.0}
NORMS = np.array([0.1, 0.5, 3.0])
LAMBDAS = range(1, 33)


def test_until_norms_are_given_the_clip_bound_is_charged(tmp_path: Path) -> None:
    plain = Ledger()
    plain.step(**STEP, audit=NORMS / 2)
    plain.step(**STEP, audit=NORMS, batch=[0.3, 0.4])
    with Ledger.create(tmp_path / "run.ledger") as ledger:
        ledger.step(**STEP, audit=NORMS / 2)
        ledger.step(**STEP)
        assert (ledger.costs(LAMBDAS) >= plain.costs(LAMBDAS)).all()
        ledger.amend(2, audit=NORMS, batch=[0.3, 0.4])
        assert ledger.steps == 2
        assert np.array_equal(ledger.costs(LAMBDAS), plain.costs(LAMBDAS))
        assert ledger.worst_case() == plain.worst_case()
        assert ledger.history.audited_steps == 2
        assert ledger.history.audit_clipped == plain.history.audit_clipped
    with Ledger.open(tmp_path / "run.ledger") as read:
        assert np.array_equal(read.costs(LAMBDAS), plain.costs(LAMBDAS))
        batch = read.private_batch(2)
        assert batch is not None
        assert batch.drawn == 2


def test_amended_twice_and_then_continued(tmp_path: Path) -> None:
    plain = Ledger()
    with Ledger.create(tmp_path / "run.ledger", keep_norms=True) as ledger:
        for number in range(70):  # past a round of folding
            ledger.step(**STEP)
            ledger.amend(number + 1, audit=NORMS)
            ledger.amend(number + 1, audit=NORMS * (1 + number % 3))
            plain.step(**STEP, audit=NORMS * (1 + number % 3))
        kept = ledger.private_norms(70)[0]
        assert kept is not None
        assert np.array_equal(kept, NORMS)
    with Ledger.open(tmp_path / "run.ledger", write=False) as read:
        assert np.array_equal(read.costs(LAMBDAS), plain.costs(LAMBDAS))


def test_refused_amendments_change_nothing(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "run.ledger") as ledger:
        with pytest.raises(InvalidInputError, match="step=1: expected a step from 1 to 0"):
            ledger.amend(1, audit=NORMS)
        ledger.step(**STEP, audit=NORMS)
        ledger.step(**STEP, audit=NORMS)
        before = ledger.seal
        with pytest.raises(InvalidInputError, match=r"len\(audit\)=2"):
            ledger.amend(2, audit=[1, 2])
        with pytest.raises(InvalidInputError, match=r"audit\[1\]=nan"):
            ledger.amend(2, audit=[1, np.nan, 2])
        with pytest.raises(LedgerError, match="step 1 is not its last"):
            ledger.amend(1, audit=NORMS)
        assert ledger.seal == before
    with Ledger.open(tmp_path / "run.ledger") as ledger, pytest.raises(LedgerError, match="or it was closed"):
        ledger.amend(2, audit=NORMS)  # closed: its counts are final


def test_killed_while_amending(tmp_path: Path) -> None:
    """Whenever the writer dies, the ledger opens, with the old record of its last step or with the new one."""
    program = textwrap.dedent("""
        import sys, bayesdp
        ledger = bayesdp.Ledger.create(sys.argv[1])
        ledger.step(noise_std=2, sample_rate=1, clip=1, audit=[0.1, 0.5, 3.0])
        print(flush=True)
        while True:
            ledger.amend(ledger.step(noise_std=2, sample_rate=1, clip=1), audit=[0.1, 0.5, 3.0])
    """)
    for run in range(6):
        path = tmp_path / f"{run}.ledger"
        writer = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(0.02 + 0.013 * run)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        with Ledger.open(path) as ledger:
            assert ledger.steps >= 1
            assert ledger.history.audited_steps >= ledger.steps - 1
            ledger.step(**STEP, audit=NORMS)


def test_caveats_are_said_in_every_claim(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "run.ledger") as ledger:
        for _ in range(3):
            ledger.step(**STEP, audit=np.linspace(0.1, 1, 500), caveats=("zero-out",))
    with Ledger.open(tmp_path / "run.ledger", write=False) as read:
        assert read.history.caveats == ["zero-out"]
        claims = read.claims(shares=[0.5])
    assert [claim.kind for claim in claims[:3]] == ["proved", "ex-post", "estimate"]
    for claim in claims:
        assert sum("contributes nothing" in text for text in claim.assumptions) == 1


@pytest.mark.parametrize(
    ("caveat", "kinds"),
    [("earlier-norms", ["proved", "estimate", "estimate"]), ("sampling-mismatch", ["estimate"] * 3)],
)
def test_caveats_make_estimates_of_bounds(caveat: str, kinds: list[str]) -> None:
    ledger = Ledger()
    ledger.step(**STEP, audit=np.linspace(0.1, 1, 500))
    ledger.step(**STEP, audit=np.linspace(0.1, 1, 500), caveats=[caveat])
    claims = ledger.claims(shares=[0.5])
    assert [claim.kind for claim in claims[:3]] == kinds
    worst_case = claims[1].worst_case
    assert worst_case is not None
    assert worst_case.kind == kinds[0]
    with pytest.raises(InvalidInputError, match="caveats='unheard-of'"):
        ledger.step(**STEP, caveats=["unheard-of"])
    assert ledger.steps == 2


def test_caveats_that_are_known_later(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "run.ledger") as ledger:
        for _ in range(3):
            ledger.step(**STEP, audit=NORMS, caveats=("zero-out",))
        ledger.amend(3, audit=NORMS, caveats=("earlier-norms",))
        assert [(one.steps, one.caveats) for one in ledger.history.stretches] == [
            (2, "zero-out"),
            (1, "earlier-norms,zero-out"),
        ]
    with Ledger.open(tmp_path / "run.ledger", write=False) as read:
        assert read.history.caveats == ["earlier-norms", "zero-out"]


def test_reading_while_a_step_is_amended(tmp_path: Path) -> None:
    """The head was read before, the steps after: what was recorded again in between is no damage."""
    ledger = Ledger.create(tmp_path / "run.ledger")
    for _ in range(3):
        ledger.step(**STEP, audit=NORMS)
    reader = LedgerFile(tmp_path / "run.ledger", write=False)
    read = head.read

    def read_and_wait(path: Path) -> Any:
        said = read(path)
        head.read = read
        ledger.amend(3, audit=NORMS / 2)
        return said

    head.read = read_and_wait
    try:
        assert Ledger.from_file(reader).steps == 3
    finally:
        head.read = read
    ledger.close()


def test_claims_of_ledgers_without_steps() -> None:
    gate = Gate(epsilon=3.0, delta=1e-5, share=0.5, gamma=0.01, records=20)
    for ledger in (Ledger(audit_ids=["a", "b", "c"]), Ledger(gate=gate), Ledger()):
        assert ledger.claims()[0].epsilon == 0
