"""Caveats: what steps rest on is kept with them, and every claim states it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bayesdp import InvalidInputError, Ledger

STEP: dict[str, Any] = {"noise_std": 2.0, "sample_rate": 1.0, "clip": 1.0}
NORMS = np.array([0.1, 0.5, 3.0])


def test_caveats_are_said_in_every_claim(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "run.ledger") as ledger:
        for _ in range(3):
            ledger.step(**STEP, audit=np.linspace(0.1, 1, 500), caveats=("zero-out",))
    with Ledger.open(tmp_path / "run.ledger", write=False) as read:
        assert read.history.caveats == ["zero-out"]
        claims = read.claims(shares=[0.5])
    named = (claims.everyone, claims.share(0.5).ex_post, claims.share(0.5).estimate)
    assert [claim.kind for claim in named] == ["proved", "ex-post", "estimate"]
    for claim in claims:
        assert sum("contribution becomes zero" in text for text in claim.assumptions) == 1


@pytest.mark.parametrize(
    ("caveat", "kinds"),
    [("earlier-norms", ["proved", "estimate", "estimate"]), ("sampling-mismatch", ["estimate"] * 3)],
)
def test_caveats_make_estimates_of_bounds(caveat: str, kinds: list[str]) -> None:
    ledger = Ledger()
    ledger.step(**STEP, audit=np.linspace(0.1, 1, 500))
    ledger.step(**STEP, audit=np.linspace(0.1, 1, 500), caveats=[caveat])
    claims = ledger.claims(shares=[0.5])
    named = (claims.everyone, claims.share(0.5).ex_post, claims.share(0.5).estimate)
    assert [claim.kind for claim in named] == kinds
    assert claims.anytime is not None
    assert claims.anytime.kind == ("ex-post" if kinds[0] == "proved" else "estimate")
    worst_case = claims.share(0.5).ex_post.worst_case
    assert worst_case is not None
    assert worst_case.kind == kinds[0]
    said = ledger.worst_case().statement()
    assert f", {kinds[0]} if the number of steps" in said
    assert ("Assumes" in said) == (kinds[0] == "estimate")  # what weakens shares only is not said of everyone
    with pytest.raises(InvalidInputError, match="caveats='unheard-of'"):
        ledger.step(**STEP, caveats=["unheard-of"])
    assert ledger.steps == 2


def test_caveats_that_are_known_later(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "run.ledger") as ledger:
        for _ in range(3):
            ledger.step(**STEP, audit=NORMS, caveats=("zero-out",))
        ledger.amend(3, audit=NORMS, caveats=("earlier-norms",))
        assert [(stretch.steps, stretch.caveats) for stretch in ledger.history.stretches] == [
            (2, "zero-out"),
            (1, "earlier-norms,zero-out"),
        ]
    with Ledger.open(tmp_path / "run.ledger", write=False) as read:
        assert read.history.caveats == ["earlier-norms", "zero-out"]
