"""``watch(steps=)``: the plan of a run, declared with the settings that Opacus has when it begins."""

from __future__ import annotations

from typing import Any

import pytest

import bayesdp.opacus
from bayesdp import InvalidInputError, Ledger, worst_case_of
from opacus_runs import private_run

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
