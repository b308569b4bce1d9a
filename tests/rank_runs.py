"""Private training on several processes, as a user of Opacus writes it.

``run_ranks`` starts the processes (warm, see warm_programs.py); each calls the function of rank_scenarios.py with the
given name, and what it returns comes back as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

SECONDS = 60
RECORDS, AUDIT, BATCH = 240, 37, 48


@dataclass
class Answer:
    """How a rank ended: exit code, what its function returned, and what it printed as errors."""

    code: int
    value: Any
    errors: str


class RunningRanks:
    """Processes that run a function of rank_scenarios.py, by its name."""

    def __init__(self, function: str, size: int, folder: Path, **options: Any) -> None:
        from warm_programs import Program

        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import rank_runs; rank_runs.main()"
        given = [function, str(size), str(folder), json.dumps(options)]
        environment = dict(os.environ) | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        self.programs = [Program(rank, *given, code=code, env=environment) for rank in range(size)]

    def answers(self) -> list[Answer]:
        """Wait for all of them to end."""
        codes = [program.wait() for program in self.programs]
        files = [self._folder / f"answer{rank}.json" for rank in range(len(codes))]
        values = [json.loads(file.read_text()) if file.exists() else None for file in files]
        return [
            Answer(code, value, program.printed[1])
            for code, value, program in zip(codes, values, self.programs, strict=True)
        ]


def run_ranks(function: str, size: int, folder: Path, **options: Any) -> list[Answer]:
    """Run a function on several ranks to the end."""
    return RunningRanks(function, size, folder, **options).answers()


def values(function: str, size: int, folder: Path, **options: Any) -> list[Any]:
    """Return what a function returned on each rank; fails if it failed on some."""
    answers = run_ranks(function, size, folder, **options)
    assert [answer.code for answer in answers] == [0] * size, [answer.errors[-2000:] for answer in answers]
    return [answer.value for answer in answers]


def main() -> None:
    """Be one rank."""
    import rank_scenarios

    rank, function, size, folder, options = sys.argv[1:]
    settings = json.loads(options)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Secure RNG turned off|Full backward hook|.*barrier|.*device_id")
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=int(rank),
        world_size=int(size),
        timeout=timedelta(seconds=settings.pop("seconds", SECONDS)),
    )
    try:
        value = rank_scenarios.scenario(function)(Path(folder), **settings)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # the others must not wait for an orderly end
    (Path(folder) / f"answer{rank}.json").write_text(json.dumps(value))
    distributed.barrier()
    distributed.destroy_process_group()


# A private run


def data(records: int, seed: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(records, 12, generator=generator, dtype=dtype)
    return x, torch.randint(0, 4, (records,), generator=generator)


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4)).to(dtype)


@dataclass
class Private:
    """What ``make_private`` returned."""

    engine: Any
    model: Any
    optimizer: Any
    loader: Any
    loss: Any

    def watch(self, ledger: Any, **options: Any) -> Any:
        import bayesdp.opacus

        return bayesdp.opacus.watch(self.model, self.optimizer, self.loader, ledger=ledger, **options)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.loss(self.model(x), y).backward()
        self.optimizer.step()

    def train(self, epochs: int = 1, loader: Any = None, most: int | None = None, after: Any = None) -> int:
        steps = 0
        for _ in range(epochs):
            for number, (x, y) in enumerate(self.loader if loader is None else loader):
                if number == most:
                    break
                self.step(x, y)
                steps += 1
                if after is not None:
                    after()
        return steps

    @property
    def parameters(self) -> list[float]:
        whole = [getattr(p, "full_tensor", lambda p=p: p)() for p in self.optimizer.params]
        return torch.cat([parameter.detach().reshape(-1) for parameter in whole]).double().tolist()


def private(
    mode: str = "hooks",
    wrap: str = "opacus",
    seed: int | None = None,
    records: int = RECORDS,
    batch: int = BATCH,
    model: nn.Module | None = None,
    accountant: str = "prv",
    dtype: torch.dtype = torch.float64,
    **options: Any,
) -> Private:
    """Return a private run on all ranks; ``seed`` is what ``torch.manual_seed`` gets after the model was made."""
    from opacus import PrivacyEngine
    from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
    from opacus.utils.fsdp_utils import FSDP2Wrapper
    from torch.utils.data import DataLoader, TensorDataset

    inner = network(dtype) if model is None else model
    wrapped: Any = {
        "opacus": DifferentiallyPrivateDistributedDataParallel,
        "torch": nn.parallel.DistributedDataParallel,
        "fsdp": FSDP2Wrapper,
    }[wrap](inner)
    torch.manual_seed(1000 + distributed.get_rank() if seed is None else seed)
    engine = PrivacyEngine(accountant=accountant)
    made = engine.make_private(
        module=wrapped,
        optimizer=torch.optim.SGD(wrapped.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(*data(records, 1, dtype)), batch_size=batch),
        criterion=nn.CrossEntropyLoss(),
        grad_sample_mode=mode,
        noise_generator=torch.Generator().manual_seed(2),
        **({"noise_multiplier": 1.0, "max_grad_norm": 1.0} | options),
    )
    if mode == "hooks":
        return Private(engine, *made, nn.CrossEntropyLoss())
    module, optimizer, loss, loader = made
    return Private(engine, module, optimizer, loader, loss)


def same_draws(run: Private) -> None:
    """Make the ranks draw, together, the same records whatever their number: each record has numbers of its own."""
    sampler = run.loader.batch_sampler
    sampler.generator = torch.Generator().manual_seed(77 + sampler.rank)
    numbers = torch.Generator().manual_seed(5)
    original = torch.rand

    def rand(*size: Any, generator: Any = None, **options: Any) -> torch.Tensor:
        if generator is not sampler.generator:
            return original(*size, generator=generator, **options)
        original(1, generator=generator)  # it is in another state at each draw
        order = torch.Generator().manual_seed(sampler.shuffle_seed + sampler.epoch)
        dealt = torch.randperm(sampler.total_size, generator=order)[sampler.rank :: sampler.num_replicas]
        return original(sampler.total_size, generator=numbers)[dealt]

    torch.rand = rand


def contents(ledger: Any) -> dict[str, Any]:
    """Return everything that a ledger has counted, and where noise came from; draws come from each rank's own."""
    from bayesdp.ledger import StepSource

    steps = [stored.step for stored in ledger.stored_steps()]
    batches = [ledger.private_batch(number) for number in range(1, ledger.steps + 1)]
    audit: list[Any] = []
    counts = ledger.step_counts()
    for _, kinds, counted in counts.slices():
        audit += [counts.exposures[kinds].repeat(of_record).tolist() for of_record in counted.T]
    return {
        "settings": [
            [
                step.noise_std,
                step.sample_rate,
                step.clip,
                step.audited,
                step.caveats,
                StepSource.read(step.source).noise,
            ]
            for step in steps
        ],
        "batches": [[batch.bins.tolist(), batch.counts.tolist()] for batch in batches],
        "audit": audit,
    }
