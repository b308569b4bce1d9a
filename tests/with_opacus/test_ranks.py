"""Several processes: real ones, which train one model together by DDP or FSDP2."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bayesdp import Ledger
from bayesdp.ledger import StepSource
from rank_runs import AUDIT, run_ranks, values

HOOKS: dict[str, Any] = {"mode": "hooks", "wrap": "opacus"}
SHARDED: dict[str, Any] = {"mode": "ghost_fsdp", "wrap": "fsdp"}
EMPTY: dict[str, Any] = {"batch": 4, "epochs": 1}
COUNTED: dict[str, tuple[str, dict[str, Any]]] = {
    "hooks": ("count_for_count", HOOKS),
    "ghost_fsdp": ("count_for_count", SHARDED),
}
SCENARIOS: dict[int, dict[str, tuple[str, dict[str, Any]]]] = {
    1: {
        "hooks": ("count_for_count", HOOKS),
        "empty": ("count_for_count", HOOKS | EMPTY),
        "budget": ("budget", {"noise_multiplier": 3.0}),
    },
    2: COUNTED
    | {
        "ghost": ("count_for_count", {"mode": "ghost", "wrap": "opacus"}),
        "torch": ("count_for_count", {"mode": "hooks", "wrap": "torch"}),
        "hooks alone": ("count_for_count", HOOKS | {"watched": False}),
        "ghost_fsdp alone": ("count_for_count", SHARDED | {"watched": False}),
        "parts": ("count_for_count", HOOKS | {"parts": 9}),
        "empty": ("count_for_count", HOOKS | EMPTY),
        "empty ghost_fsdp": ("count_for_count", SHARDED | EMPTY),
        "equal seeds": ("equal_seeds", {"mode": "hooks", "seeds": [1, 2]}),
        "equal seeds ghost_fsdp": ("equal_seeds", {"mode": "ghost_fsdp", "seeds": [3]}),
        "equal positions": ("equal_positions", {}),
        "own seeds": ("own_seeds", {"mode": "hooks", "seeds": [1, 7]}),
        "seed at each epoch": ("seed_at_each_epoch", {"mode": "hooks"}),
        "seed at each epoch ghost_fsdp": ("seed_at_each_epoch", {"mode": "ghost_fsdp"}),
        "other deals": ("other_deals", {}),
        "other data": ("other_data", {}),
        "budget": ("budget", {"noise_multiplier": 3.0}),
        "refusals": ("refusals", {}),
        "failures": ("failures", {}),
        "user": ("what_a_user_sees", {}),
        "noise": ("noise", {"mode": "hooks"}),
        "noise shifted": ("noise", {"mode": "ghost_fsdp", "generator": "shifted"}),
        "noise same": ("noise", {"mode": "ghost_fsdp", "generator": "same"}),
        "noise own": ("noise", {"mode": "ghost_fsdp", "generator": "own"}),
        "hostile": ("hostile", {"mode": "hooks"}),
        "hostile ghost": ("hostile", {"mode": "ghost"}),
        "hostile ghost_fsdp": ("hostile", {"mode": "ghost_fsdp"}),
        "changed": ("changed_gradients", {}),
        "own audit": ("own_audit", {"mode": "ghost_fsdp"}),
        "few": ("few_audit_records", {"mode": "ghost_fsdp"}),
    },
    4: COUNTED,
}


Answer = Callable[..., Any]


@pytest.fixture
def answer(tmp_path_factory: pytest.TempPathFactory) -> Answer:
    """What a rank of several answered in a scenario: (ranks, scenario, rank).

    All scenarios for a number of ranks run in processes that are started once, whichever worker of pytest is first.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def ask(ranks: int, scenario: str, rank: int = 0) -> Any:
        return _answers(shared, ranks)[rank][scenario]

    return ask


@cache
def _answers(folder: Path, ranks: int) -> list[dict[str, Any]]:
    kept = folder / f"{ranks}-ranks.json"
    with (folder / f"{ranks}-ranks.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            kept.write_text(json.dumps(values("several", ranks, folder / f"{ranks}-ranks", scenarios=SCENARIOS[ranks])))
    return json.loads(kept.read_text())


@pytest.mark.parametrize(
    ("ranks", "mode"),
    [(2, "hooks"), (2, "ghost"), (2, "torch"), (2, "ghost_fsdp"), (2, "parts"), (4, "hooks"), (4, "ghost_fsdp")],
)
def test_ledgers_are_equal_count_for_count(answer: Answer, ranks: int, mode: str) -> None:
    """The same draws, dealt out to one, two or four ranks: one step each, with noise charged once."""
    counted, expected = answer(ranks, mode)["counted"], answer(1, "hooks")["counted"]
    assert len(expected["settings"]) == 10
    assert expected["settings"][0][:4] == [1.0, np.ceil(0.2 * 2**24) / 2**24, 1.0, AUDIT]
    assert counted == expected


@pytest.mark.parametrize("mode", ["hooks", "ghost_fsdp"])
def test_parameters_are_those_of_a_run_that_is_not_watched(answer: Answer, mode: str) -> None:
    for rank in range(2):
        assert answer(2, mode, rank)["parameters"] == answer(2, f"{mode} alone", rank)["parameters"]


def test_ranks_may_need_different_numbers_of_physical_batches(answer: Answer) -> None:
    assert len(answer(2, "parts", 0)["sizes"]) != len(answer(2, "parts", 1)["sizes"])


@pytest.mark.parametrize("mode", ["empty", "empty ghost_fsdp"])
def test_a_rank_that_draws_nobody(answer: Answer, mode: str) -> None:
    """Opacus' sampler would leave the draw out, and the other rank would wait for it at the end of the epoch."""
    sizes = [answer(2, mode, rank)["sizes"] for rank in range(2)]
    assert all(0 in drawn for drawn in sizes)
    assert len(sizes[0]) == len(sizes[1]) == 60
    assert answer(2, mode)["counted"] == answer(1, "empty")["counted"]


@pytest.mark.parametrize("mode", ["equal seeds", "equal seeds ghost_fsdp"])
def test_equal_seeds_are_refused_before_anything_is_released(answer: Answer, mode: str) -> None:
    for rank in range(2):
        for error, steps, unchanged in answer(2, mode, rank):
            assert error.startswith("InvalidInputError: seed='the same on several ranks': expected ")
            assert "torch.manual_seed(seed + rank)" in error
            assert steps == 0
            assert unchanged


def test_equal_draws_that_show_late_make_every_claim_an_estimate(answer: Answer) -> None:
    """Without equal seeds, small draws must coincide several times before it is certain."""
    error, steps, caveats, kind = answer(2, "equal positions")
    assert error.startswith("InvalidInputError: seed='the same on several ranks'")
    assert answer(2, "equal positions", 1) == [error]
    assert 10 < steps < 30
    assert caveats == ["drawn-together"]
    assert kind == "estimate"


def test_seeds_of_their_own_are_not_refused(answer: Answer) -> None:
    assert answer(2, "own seeds") == [[None, 3]] * 2


def test_records_that_are_dealt_out_differently_are_refused(answer: Answer) -> None:
    for rank in range(2):
        assert answer(2, "other deals", rank).startswith("InvalidInputError: sampler='other deals on other ranks'")


def test_other_data_on_other_ranks_are_refused(answer: Answer) -> None:
    (training, audit, aside, file), (*_, other, _) = answer(2, "other data", 0), answer(2, "other data", 1)
    assert training.startswith("InvalidInputError: data_loader.dataset='another on every rank'")
    assert audit.startswith("InvalidInputError: audit='another on every rank'")
    assert not file
    assert aside == other  # split_audit sets the same people aside


def test_a_budget_ends_training_on_all_ranks_at_the_same_step(answer: Answer) -> None:
    alone, first, second = answer(1, "budget"), answer(2, "budget", 0), answer(2, "budget", 1)
    assert first["steps"] == second["steps"] == first["recorded"] == alone["recorded"] > 50
    assert first["stopped"] and second["stopped"]  # noqa: PT018
    assert (first["warned"], second["warned"]) == (1, 0)


def test_what_cannot_be_accounted_is_refused_on_all_ranks(answer: Answer) -> None:
    first, second = answer(2, "refusals", 0), answer(2, "refusals", 1)
    for refusal in (first, second):
        assert "expected DistributedUniformWithReplacementSampler" in refusal["shuffled"]
        assert "clipping='per_layer': expected flat or ghost clipping" in refusal["per layer"]
        assert not refusal["file"]
    assert second["one rank"] == "InvalidInputError: between='other': expected 'clip' or 'last'."
    assert first["one rank"].startswith("RanksError: rank=1 has refused to go on")
    assert "exists already" in first["taken"]
    assert second["taken"] == second["no ledger"] == first["one rank"].replace("rank=1", "rank=0")
    assert first["steps"] == 2


def test_a_step_that_fails_on_one_rank_is_released_by_none(answer: Answer) -> None:
    first, second = answer(2, "failures", 0), answer(2, "failures", 1)
    assert second["batch from elsewhere"].startswith("InvalidInputError: len(batch)='too many'")
    assert first["batch from elsewhere"].startswith("RanksError: rank=1 has refused the step")
    assert first["steps"] == 2
    assert "is closed" in first["not recorded"]
    assert second["not recorded"].startswith("RanksError: rank=0 could not record the step")
    for seen in (first, second):
        assert seen["unchanged"] and seen["still unchanged"]  # noqa: PT018


def test_rank_0_has_ledger_and_claims_and_the_others_say_so(answer: Answer) -> None:
    first, second = answer(2, "user", 0), answer(2, "user", 1)
    assert "Trained: 5 steps on 240 rows" in first["printed"]
    assert first["files"] == ["report.html", "run.ledger"]
    assert first["state"]
    assert first["asked"] == {"claims": None, "statement": None}
    assert second["printed"] == ""
    for said in (*second["asked"].values(), second["ledger"], second["epsilon"]):
        assert said.startswith("InvalidInputError: rank=1: expected rank 0, which has the ledger")


@pytest.mark.parametrize("mode", ["noise", "noise same", "noise own"])
def test_the_noise_on_the_sum_over_ranks_is_that_of_the_ledger(answer: Answer, mode: str) -> None:
    """Also each shard has its own, whether the ranks draw the same tensor or different ones."""
    seen = answer(2, mode)
    noise = np.array(seen["noise"])
    assert seen["error"] is None
    assert seen["stated"] == 1.0
    assert noise.shape == (3, 512 * 12)
    assert abs(noise.std() - 1.0) < 5 / np.sqrt(2 * noise.size)
    for one, other in [(noise[:, :3072], noise[:, 3072:]), (noise[0], noise[1]), (noise[1], noise[2])]:
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 5 / np.sqrt(one.size)
    assert answer(2, mode, 1)["noise"] == seen["noise"]


def test_noise_that_may_repeat_itself_is_refused(answer: Answer) -> None:
    for rank in range(2):
        assert answer(2, "noise shifted", rank)["error"].startswith(
            "InvalidInputError: noise_generator='one seed, at different places'"
        )


def test_a_sharded_gradient_that_is_changed_before_the_step_is_refused(answer: Answer) -> None:
    """On all ranks, or on one; it is clipped already, and the noise would not be for its length."""
    changed = "InvalidInputError: p.grad='changed': expected the gradient as the backward pass left it"
    elsewhere = "RanksError: Another rank has refused the step"
    for rank in range(2):
        answers = answer(2, "changed", rank)
        assert len(answers) == 6
        for number, (error, unchanged, *steps) in enumerate(answers):
            assert error.startswith(elsewhere if number % 2 and rank == 0 else changed)
            assert unchanged
            assert steps == [2, 2]


@pytest.mark.parametrize("mode", ["hostile", "hostile ghost", "hostile ghost_fsdp"])
def test_a_record_that_breaks_its_gradient_contributes_nothing(answer: Answer, mode: str) -> None:
    (parameters, norms), (others, _) = answer(2, mode, 0), answer(2, mode, 1)
    assert np.isfinite(parameters).all()
    assert parameters == others
    assert norms.count(0.0) == 1


def test_audit_norms_of_the_users_own(answer: Answer) -> None:
    assert answer(2, "own audit", 0) == [2, pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])]
    assert answer(2, "own audit", 1) == [2, None]  # asked too, as it may need all ranks


def test_fewer_audit_records_than_ranks(answer: Answer) -> None:
    assert [step[3] for step in answer(2, "few")] == [1, 1]


@pytest.mark.parametrize(("before", "now"), [(2, 1), (1, 2)])
def test_another_number_of_ranks_on_resume_must_be_meant(tmp_path: Path, before: int, now: int) -> None:
    """It is refused on all ranks, and nothing changes; if it is meant, it is accounted: the sample is the same law."""

    def resumed(**options: Any) -> list[Any]:
        (tmp_path / "meeting").unlink(missing_ok=True)
        return values("resumed", now, tmp_path, first=False, **options)

    values("resumed", before, tmp_path, first=True)
    first, *others = resumed()
    expected = f"{before}, as at the last step of the ledger; if another number is meant, new_world_size=True."
    assert first == f"InvalidInputError: world_size={now}: expected {expected}"
    assert all(error.startswith("RanksError: rank=0 has refused to go on") for error in others)
    with Ledger.open(tmp_path / "run.ledger", write=False) as ledger:
        assert ledger.steps == 5
    assert resumed(new_world_size=True)[0] == 10
    with Ledger.open(tmp_path / "run.ledger", write=False) as ledger:
        assert [StepSource.read(stored.step.source).ranks for stored in ledger.stored_steps()] == [before] * 5 + [
            now
        ] * 5
        assert ledger.claims().everyone.epsilon is not None


def test_noise_that_repeats_itself_stops_all_ranks(tmp_path: Path) -> None:
    values("resumed", 2, tmp_path, first=True)
    (tmp_path / "meeting").unlink(missing_ok=True)
    first, second = values("resumed", 2, tmp_path, first=False, seed=2)
    assert first.startswith("InvalidInputError: noise_generator='in the state that it had at an earlier step'")
    assert second.startswith("RanksError: rank=0 has refused the step")
    with Ledger.open(tmp_path / "run.ledger", write=False) as ledger:
        assert ledger.steps == 5


@pytest.mark.parametrize("mode", ["", " ghost_fsdp"])
def test_a_seed_at_each_epoch_is_refused_on_all_ranks(answer: Answer, mode: str) -> None:
    for rank in (0, 1):
        error, steps, unchanged = answer(2, f"seed at each epoch{mode}", rank)
        assert error.startswith("InvalidInputError: batch_sampler.generator='in the state that it had at an earlier")
        assert steps == (5 if rank == 0 else None)
        assert unchanged


@pytest.mark.parametrize("draws", [999, 1000, 1001])
def test_draws_of_any_rank_that_come_again_stop_all_ranks(tmp_path: Path, draws: int) -> None:
    """Also if a rank draws what another has drawn: records at the same positions would be drawn together."""
    values("resumed", 2, tmp_path, first=True)
    (tmp_path / "meeting").unlink(missing_ok=True)
    for error in values("resumed", 2, tmp_path, first=False, draws=draws):
        assert error.startswith("InvalidInputError: batch_sampler.generator='in the state that it had at an earlier")
    with Ledger.open(tmp_path / "run.ledger", write=False) as ledger:
        assert ledger.steps == 5


def applied(folder: Path, ranks: int) -> list[int]:
    """Return how many updates each rank has applied."""
    return [(folder / f"updates{rank}").stat().st_size for rank in range(ranks)]


def test_a_rank_that_dies(tmp_path: Path) -> None:
    first, second = run_ranks("dies", 2, tmp_path)
    assert (first.code, second.code) == (1, 9)  # rank 0 cannot leave the process group in order
    assert first.value.startswith("RanksError: A rank of the run has ended")
    with Ledger.open(tmp_path / "run.ledger") as ledger:
        assert max(applied(tmp_path, 2)) <= ledger.steps <= 4


@pytest.mark.slow
def test_a_rank_that_hangs(tmp_path: Path) -> None:
    first, _ = run_ranks("hangs", 2, tmp_path, seconds=3)
    error, seconds = first.value
    assert error.startswith("RanksError: A rank of the run has ended, or does not answer")
    assert seconds < 8
    with Ledger.open(tmp_path / "run.ledger") as ledger:
        assert max(applied(tmp_path, 2)) <= ledger.steps <= 4
