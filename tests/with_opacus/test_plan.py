"""``watch(steps=)``: the plan of a run, declared with the settings that Opacus has when it begins."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import bayesdp.opacus
from bayesdp import InvalidInputError, Ledger, Plan, worst_case_of
from opacus_runs import RATE, private_run

MODES: dict[str, dict[str, Any]] = {
    "flat": {},
    "ghost": {"mode": "ghost"},
    "per layer": {"clipping": "per_layer", "max_grad_norm": [1.0] * 4},
    "shuffled": {"poisson_sampling": False, "shuffle": True},
}


def watched_run(tmp_path: Any, steps: int | None, **options: Any) -> Any:
    run = private_run(noise_multiplier=4.0, **options)
    path = tmp_path / "run.ledger"
    watched = bayesdp.opacus.watch(run.model, run.optimizer, run.loader, ledger=path, loss=run.loss, steps=steps)
    return run, watched


@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_stops_early_has_the_epsilon_of_its_plan(tmp_path: Any, mode: str) -> None:
    run, watched = watched_run(tmp_path, 20, **MODES[mode])
    run.train(most=7)
    claims = watched.claims()
    assert claims.everyone.condition is None
    assert claims.anytime is None
    planned = [(4.0, 1.0, 2)] if mode == "shuffled" else [(4.0, 0.1, 20)]
    assert claims.everyone.epsilon == pytest.approx(worst_case_of(planned, delta=1e-5).epsilon, rel=1e-6)
    watched.close()


def test_a_run_beyond_its_plan_says_so(tmp_path: Any) -> None:
    run, watched = watched_run(tmp_path, 5)
    run.train(most=7)
    assert "The run left its plan: 7 steps were taken, 5 were planned." in watched.statement()
    watched.close()


def test_noise_that_falls_leaves_the_plan(tmp_path: Any) -> None:
    run, watched = watched_run(tmp_path, 20)
    run.train(most=3)
    run.optimizer.noise_multiplier = 3.0
    run.train(most=2)
    assert "The run left its plan: step 4 had less noise" in watched.statement()
    watched.close()


def test_without_steps_there_is_no_plan(tmp_path: Any) -> None:
    run, watched = watched_run(tmp_path, None)
    run.train(most=2)
    assert watched.ledger.plan is None
    assert watched.claims().everyone.condition is not None
    watched.close()


@pytest.mark.parametrize("steps", [0, -1, 2.5, "ten"])
def test_bad_steps_are_refused_and_leave_nothing(tmp_path: Any, steps: Any) -> None:
    with pytest.raises(InvalidInputError, match="steps="):
        watched_run(tmp_path, steps)
    assert list(tmp_path.iterdir()) == []


def test_a_ledger_that_exists_has_its_own_plan() -> None:
    run = private_run()
    with pytest.raises(InvalidInputError, match=r"steps=20: expected .*Ledger\.create\(plan="):
        bayesdp.opacus.watch(run.model, run.optimizer, run.loader, ledger=Ledger(), steps=20)


def test_a_plan_that_the_first_step_would_leave_is_refused_at_once() -> None:
    """Opacus draws at 0.1 rounded up to a multiple of 2^-24: its own sample_rate is too small for a plan."""
    run = private_run(noise_multiplier=4.0)
    for rate, noise, name in ((0.1, 4.0, "plan.sample_rate"), (0.2, 4.1, "plan.noise_std / plan.clip")):
        ledger = Ledger(plan=Plan(steps=20, noise_std=noise, sample_rate=rate, clip=1.0))
        with pytest.raises(InvalidInputError) as refused:
            bayesdp.opacus.watch(run.model, run.optimizer, run.loader, ledger=ledger)
        assert str(refused.value).startswith(f"{name}=")
        assert not ledger.steps
    allowed = float(str(refused.value).split("at most ")[1].split(",")[0])
    ledger = Ledger(plan=Plan(steps=20, noise_std=allowed, sample_rate=0.2, clip=1.0))
    bayesdp.opacus.watch(run.model, run.optimizer, run.loader, ledger=ledger)
    run.train(most=3)
    assert ledger.claims().everyone.condition is None


def test_whatever_a_ledger_declares_can_be_declared_with_watch(tmp_path: Any) -> None:
    run = private_run(noise_multiplier=4.0)
    path = tmp_path / "run.ledger"
    declared = {"unit": "person", "data": "survey", "metadata": {"network": "small"}}
    watched = bayesdp.opacus.watch(run.model, run.optimizer, run.loader, ledger=path, steps=20, **declared)
    run.train(most=2)
    claims = watched.claims()
    watched.close()
    assert (watched.ledger.unit, watched.ledger.data, watched.ledger.metadata) == (
        "person",
        "survey",
        declared["metadata"],
    )
    assert claims.everyone.condition is None
    assert "Each record is one person." in claims.statement()


def test_what_cannot_be_declared_is_refused_and_leaves_nothing(tmp_path: Any) -> None:
    run = private_run()
    path = tmp_path / "run.ledger"
    with pytest.raises(TypeError, match="unexpected keyword argument 'units'"):
        bayesdp.opacus.watch(run.model, run.optimizer, run.loader, ledger=path, units="person")
    with pytest.raises(InvalidInputError, match="unit='people': expected"):
        bayesdp.opacus.watch(run.model, run.optimizer, run.loader, ledger=path, unit="people")
    with pytest.raises(InvalidInputError, match=r"unit='person': expected .*Ledger\.create\(unit="):
        bayesdp.opacus.watch(run.model, run.optimizer, run.loader, ledger=Ledger(), unit="person")
    assert list(tmp_path.iterdir()) == []


def test_a_plan_for_updates_that_add_up_batches_of_a_shuffled_loader(tmp_path: Any) -> None:
    """``steps`` counts batches: an epoch costs the same however its batches are added up."""
    run, watched = watched_run(tmp_path, 2 * 10, poisson_sampling=False, shuffle=True)
    for number, (x, y) in enumerate(itertools.chain(run.loader, run.loader)):
        run.loss(run.model(x), y).backward()
        if number % 5 == 4:
            run.optimizer.step()
            run.optimizer.zero_grad()
    assert watched.claims().everyone.condition is None
    assert watched.ledger.steps == 2
    watched.close()


def test_a_plan_for_updates_that_add_up_draws() -> None:
    """Each draw is a step with noise smaller by the square root of their number."""
    run = private_run(noise_multiplier=4.0)
    ledger = Ledger(plan=Plan(steps=20, noise_std=4.0 / 2, sample_rate=RATE, clip=1.0))
    watched = bayesdp.opacus.watch(run.model, run.optimizer, run.loader, ledger=ledger)
    for number, (x, y) in enumerate(itertools.chain(run.loader, run.loader)):
        run.optimizer.signal_skip_step(number % 4 != 3)
        run.step(x, y)
    assert ledger.steps == 20
    assert watched.claims().everyone.condition is None
    watched.close()
