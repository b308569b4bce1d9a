"""What tests make several processes go through; every function here runs on each of them, in rank_runs.py."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from rank_runs import AUDIT, contents, data, private, same_draws

MODES = {"hooks": "opacus", "ghost": "opacus", "ghost_fsdp": "fsdp"}


def rank() -> int:
    return distributed.get_rank()


def refused(call: Callable[[], Any]) -> str | None:
    """Return the class and text of the error that a call raises."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def scenario(name: str) -> Callable[..., Any]:
    """Return the scenario of this name: of this file, or of those beside it."""
    import rank_ends
    import rank_gradients

    places = (vars(rank_ends), vars(rank_gradients), globals())
    return next(place[name] for place in places if name in place)


def several(folder: Path, scenarios: dict[str, list[Any]]) -> dict[str, Any]:
    """Run several scenarios in turn: name -> [function, options]."""
    answers: dict[str, Any] = {}
    for name, (function, options) in scenarios.items():
        own = folder / name
        own.mkdir(exist_ok=True)
        before = torch.rand
        answers[name] = scenario(function)(own, **options)
        torch.rand = before
    return answers


def count_for_count(
    folder: Path, mode: str, wrap: str, watched: bool = True, parts: int = 0, epochs: int = 2, **options: Any
) -> Any:
    """Train on draws that do not depend on the number of ranks; return parameters, and the ledger's counts."""
    from opacus.utils.batch_memory_manager import BatchMemoryManager

    run = private(mode, wrap, **options)
    same_draws(run)
    sizes: list[int] = []
    loader = run.loader
    if parts:
        manager = BatchMemoryManager(data_loader=loader, max_physical_batch_size=parts, optimizer=run.optimizer)
        loader = manager.__enter__()

    def train() -> None:
        for _ in range(epochs):
            for x, y in loader:
                sizes.append(len(x))
                run.step(x, y)

    counted = None
    if watched:
        with run.watch(folder / "run.ledger", audit=data(AUDIT, 3), loss=run.loss) as watch:
            train()
            counted = contents(watch.ledger) if rank() == 0 else None
    else:
        train()
    return {"parameters": run.parameters, "counted": counted, "sizes": sizes}


def equal_seeds(folder: Path, mode: str, seeds: list[int], **options: Any) -> list[list[Any]]:
    """Train with the same seed on every rank; return the refusals, steps in the ledger, and whether nothing changed."""
    found: list[list[Any]] = []
    for seed in seeds:
        run = private(mode, MODES[mode], seed=seed, **options)
        before = run.parameters
        with run.watch(folder / f"{seed}.ledger") as watch:
            error = refused(lambda run=run: run.train(most=3))
            steps = watch.ledger.steps if rank() == 0 else 0
        found.append([error, steps, run.parameters == before])
    return found


def equal_positions(folder: Path) -> Any:
    """Let ranks draw the same positions from generators with other seeds; batches are small, so it takes a while."""
    run = private(records=20, batch=2)
    numbers, sampler, original = torch.Generator().manual_seed(5), run.loader.batch_sampler, torch.rand
    sampler.generator = torch.Generator().manual_seed(rank())

    def rand(*size: Any, generator: Any = None, **options: Any) -> torch.Tensor:
        if generator is not sampler.generator:
            return original(*size, generator=generator, **options)
        original(1, generator=generator)  # it is in another state at each draw
        return original(*size, generator=numbers, **options)

    torch.rand = rand
    with run.watch(folder / "run.ledger", audit=data(AUDIT, 3), loss=run.loss) as watch:
        error = refused(lambda: run.train(10))
        if rank() > 0:
            return [error]
        everyone = watch.claims().everyone
        return [error, watch.ledger.steps, watch.ledger.history.caveats, everyone.kind]


def own_seeds(folder: Path, mode: str, seeds: list[int], **options: Any) -> list[list[Any]]:
    """Train with seeds that differ by rank; return refusals and steps in the ledger."""
    found: list[list[Any]] = []
    for seed in seeds:
        run = private(mode, MODES[mode], seed=seed + rank(), **options)
        with run.watch(folder / f"{seed}.ledger") as watch:
            error = refused(lambda run=run: run.train(most=3))
            found.append([error, watch.ledger.steps if rank() == 0 else 0])
    return found


def other_deals(folder: Path) -> Any:
    """Set the epoch on one rank only."""
    run = private()
    run.loader.batch_sampler.set_epoch(rank())
    with run.watch(folder / "run.ledger"):
        return refused(lambda: run.train(most=1))


def other_data(folder: Path) -> Any:
    """Give each rank another choice of records, and then other people for the audit."""
    from torch.utils.data import Subset, TensorDataset

    import bayesdp.opacus

    run = private()
    chosen = Subset(TensorDataset(*data(300, 1)), [(number + rank()) % 300 for number in range(240)])
    object.__setattr__(run.loader, "dataset", chosen)
    training = refused(lambda: run.watch(folder / "run.ledger"))
    audit = refused(lambda: private().watch(folder / "run.ledger", audit=data(9, rank()), loss=run.loss))
    _, aside = bayesdp.opacus.split_audit(TensorDataset(*data(300, 1)), records=20)
    return [training, audit, list(aside.indices), (folder / "run.ledger").exists()]


def budget(folder: Path, **options: Any) -> Any:
    """Train until a budget is reached; return steps taken on this rank, and whether it stopped and warned."""
    from bayesdp import Budget

    run = private(**options)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with run.watch(folder / "run.ledger", budget=Budget(epsilon=3.0), steps=1000) as watch:
            steps = run.train(40)
            recorded = watch.ledger.steps if rank() == 0 else None
            stopped = watch.stopped
        beyond = sum("budget allows no further step" in str(warning.message) for warning in seen)
    return {"steps": steps, "stopped": stopped, "warned": beyond, "recorded": recorded}


def refusals(folder: Path) -> dict[str, Any]:
    """Call ``watch`` with what is not accounted, or wrong on one rank."""
    from bayesdp import Ledger

    shuffled = private(poisson_sampling=False)
    layers = private(clipping="per_layer", max_grad_norm=[1.0] * 4)
    run = private()
    path = folder / "run.ledger"
    answers = {
        "shuffled": refused(lambda: shuffled.watch(path)),
        "per layer": refused(lambda: layers.watch(path)),
        "one rank": refused(lambda: run.watch(path, between="clip" if rank() == 0 else "other")),
        "no ledger": refused(lambda: run.watch(None)),
    }
    answers["file"] = path.exists()
    if rank() == 0:
        Ledger.create(folder / "taken.ledger").close()
    answers["taken"] = refused(lambda: run.watch(folder / "taken.ledger"))
    with run.watch(path) as watch:  # nothing was left behind by the refusals
        run.train(most=2)
        answers["steps"] = watch.ledger.steps if rank() == 0 else None
    return answers


def failures(folder: Path) -> dict[str, Any]:
    """Let a step fail on one rank, and another when it is recorded; training goes on in between."""
    run, answers = private(), {}
    with run.watch(folder / "run.ledger") as watch:
        run.train(most=1)
        before = run.parameters
        x, y = data(300, 9)

        def other_batch() -> None:
            if rank() == 1:
                run.step(x, y)  # not from the loader
            else:
                run.step(*next(iter(run.loader)))

        answers["batch from elsewhere"] = refused(other_batch)
        answers["unchanged"] = run.parameters == before
        run.train(most=1)
        changed = run.parameters
        if rank() == 0:
            answers["steps"] = watch.ledger.steps
            watch.ledger.close()
        answers["not recorded"] = refused(lambda: run.train(most=1))
        answers["still unchanged"] = run.parameters == changed
    return answers


def what_a_user_sees(folder: Path) -> dict[str, Any]:
    """Use everything a script uses, on all ranks."""
    import io
    from contextlib import redirect_stdout

    printed = io.StringIO()
    run = private(accountant="bayesdp")
    options = {"audit": data(AUDIT, 3), "loss": run.loss, "every": 2, "steps": 50, "report": folder / "report.html"}
    with redirect_stdout(printed), run.watch(folder / "run.ledger", **options) as watch:
        run.train(1)
        state = watch.state_dict()
        asked = {name: refused(getattr(watch, name)) for name in ("claims", "statement")}
        ledger = refused(lambda: watch.ledger.steps)
        epsilon = refused(lambda: run.engine.get_epsilon(1e-5))
    files = sorted(path.name for path in folder.iterdir())
    return {
        "printed": printed.getvalue(),
        "asked": asked,
        "ledger": ledger,
        "state": bool(state),
        "epsilon": epsilon,
        "files": files,
    }


def seed_at_each_epoch(folder: Path, mode: str) -> list[Any]:
    """Seed ranks apart from each other, but alike in two epochs; return the refusal and how many steps there are."""
    run = private(mode, MODES[mode])
    with run.watch(folder / "run.ledger") as watch:
        torch.manual_seed(40 + rank())
        run.train(1)
        torch.manual_seed(40 + rank())
        before = run.parameters
        error = refused(lambda: run.train(1))
        return [error, watch.ledger.steps if rank() == 0 else None, run.parameters == before]


def resumed(folder: Path, first: bool, seed: int = 5, draws: int = 3000, **options: Any) -> Any:
    """Train an epoch and save a checkpoint, or load it and train another epoch; perhaps with more ranks.

    Returns the number of steps on rank 0, or the refusal. ``options`` are those of ``watch`` after loading.

    ``seed`` is that of the noise after loading; the first epoch has 2. That of the draws is ``draws`` on rank 0, and
    one more on rank 1; the first epoch has 1000 and 1001.
    """
    from bayesdp import Ledger

    run = private(accountant="bayesdp")
    path, checkpoint = folder / "run.ledger", folder / "checkpoint"
    if first:
        with run.watch(path) as watch:
            run.train(1)
            if rank() == 0:
                run.engine.save_checkpoint(
                    path=checkpoint, module=run.model, optimizer=run.optimizer, checkpoint_dict=watch.state_dict()
                )
        return None
    run.engine.load_checkpoint(path=checkpoint, module=run.model, optimizer=run.optimizer)
    run.optimizer.generator.manual_seed(seed)
    torch.manual_seed(draws + rank())
    ledger = Ledger.open(path) if rank() == 0 else None
    try:
        with run.watch(ledger, **options):
            run.train(1)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ledger.steps if ledger is not None else None


def noise(folder: Path, mode: str, generator: str = "same", **options: Any) -> Any:
    """Return the noise that Opacus really adds to the sum over all ranks, for a wide layer, over a few steps.

    ``generator`` is that of the noise on each rank: all in the same state, each its own, or one seed at other places.
    """
    torch.manual_seed(0)
    wide = torch.nn.Sequential(torch.nn.Linear(12, 512), torch.nn.Tanh(), torch.nn.Linear(512, 4)).double()
    run = private(mode, MODES[mode], model=wide, **options)
    run.optimizer.generator = torch.Generator().manual_seed(2 + (rank() if generator == "own" else 0))
    if generator == "shifted":
        torch.rand(10 * rank(), generator=run.optimizer.generator)
    size, noises = distributed.get_world_size(), []
    with run.watch(folder / "run.ledger") as watch:
        hook = run.optimizer.step_hook

        def look(optimizer: Any) -> None:
            hook(optimizer)
            weight = optimizer.params[0]
            if mode == "ghost_fsdp":
                total = optimizer.grad_state[weight]["summed_grad"].full_tensor() * size
                noisy = weight.grad.full_tensor() * size * optimizer.expected_batch_size
            else:
                total, noisy = weight.summed_grad.clone(), weight.grad * optimizer.expected_batch_size
                distributed.all_reduce(total)
                noisy = noisy.clone()
                distributed.all_reduce(noisy)
            noises.append((noisy - total).flatten())

        run.optimizer.step_hook = look
        error = refused(lambda: run.train(most=3))
        stated = watch.ledger.history.stretches[0].noise_std if rank() == 0 and not error else None
    return {"error": error, "stated": stated, "noise": [noise.tolist() for noise in noises]}


def own_audit(folder: Path, mode: str) -> Any:
    """Give an AuditNorms, which is asked on every rank; those of rank 0 count."""

    class Own:
        records = 5
        asked = 0

        def due(self) -> bool:
            return True

        def norms(self) -> torch.Tensor:
            self.asked += 1
            return torch.arange(5.0) / 10

    run, own = private(mode, MODES[mode]), Own()
    with run.watch(folder / "run.ledger", audit=own, keep_norms=True) as watch:
        run.train(most=2)
        kept = watch.ledger.private_norms(2)[0].tolist() if rank() == 0 else None
    return [own.asked, kept]


def few_audit_records(folder: Path, mode: str) -> Any:
    """Audit fewer records than there are ranks."""
    run = private(mode, MODES[mode])
    with run.watch(folder / "run.ledger", audit=data(1, 3), loss=run.loss) as watch:
        run.train(most=2)
        return contents(watch.ledger)["settings"] if rank() == 0 else None
