"""What the ledger holds is what a hand-written DP-SGD loop would have counted."""

from __future__ import annotations

import math

import numpy as np
import torch
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch import nn

import bayesdp.opacus
from bayesdp import Ledger
from opacus_runs import private_run, small_model, some_data

RECORDS, BATCH, EPOCHS = 200, 20, 3
NOISE, CLIP, RATE = 1.3, 0.7, BATCH / RECORDS


def by_hand(audit: tuple[torch.Tensor, torch.Tensor]) -> tuple[Ledger, np.ndarray]:
    """DP-SGD from its definition; random numbers in the order in which Opacus draws them."""
    model = small_model().double()
    x, y = some_data(RECORDS, dtype=torch.float64)
    draws, noise = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    parameters = list(model.parameters())
    ledger = Ledger()

    def gradient(one_x: torch.Tensor, one_y: torch.Tensor) -> list[torch.Tensor]:
        loss = nn.functional.cross_entropy(model(one_x[None]), one_y[None])
        return list(torch.autograd.grad(loss, parameters))

    def norm(grads: list[torch.Tensor]) -> float:
        return math.sqrt(sum(float((grad**2).sum()) for grad in grads))

    for _ in range(EPOCHS):
        torch.empty((), dtype=torch.int64).random_(generator=draws)  # the seed of loader workers
        sampler = UniformWithReplacementSampler(num_samples=RECORDS, sample_rate=RATE, generator=draws)
        for drawn in sampler:
            total = [torch.zeros_like(one) for one in parameters]
            norms = []
            for index in drawn:
                grads = gradient(x[index], y[index])
                norms.append(norm(grads))
                factor = min(1.0, CLIP / (norms[-1] + 1e-6))
                total = [a + factor * b for a, b in zip(total, grads, strict=True)]
            held_out = [norm(gradient(*one)) for one in zip(*audit, strict=True)]
            ledger.step(noise_std=NOISE * CLIP, sample_rate=RATE, clip=CLIP, audit=held_out, batch=norms)
            with torch.no_grad():
                for one, summed in zip(parameters, total, strict=True):
                    added = torch.normal(0, NOISE * CLIP, summed.shape, generator=noise, dtype=torch.float64)
                    one -= 0.1 * (summed + added) / BATCH
    return ledger, torch.cat([one.detach().reshape(-1) for one in parameters]).numpy()


def test_counts_equal_those_of_a_hand_written_loop() -> None:
    audit = some_data(30, seed=9, dtype=torch.float64)
    expected, parameters = by_hand(audit)
    run = private_run(dtype=torch.float64, noise_multiplier=NOISE, max_grad_norm=CLIP)
    ledger = Ledger()
    with bayesdp.opacus.watch(run.model, run.optimizer, run.loader, ledger=ledger, audit=audit, loss=run.loss):
        run.train(EPOCHS)
    assert np.allclose(run.parameters, parameters, rtol=1e-9, atol=1e-12)  # it is the same run
    assert ledger.steps == expected.steps == EPOCHS * RECORDS // BATCH
    for step in range(1, ledger.steps + 1):
        ours, theirs = ledger.private_batch(step), expected.private_batch(step)
        assert ours is not None
        assert theirs is not None
        assert (ours.drawn, ours.clipped) == (theirs.drawn, theirs.clipped)
        assert np.array_equal(ours.bins, theirs.bins)
        assert np.array_equal(ours.counts, theirs.counts)
    assert np.array_equal(ledger.costs(range(1, 65)), expected.costs(range(1, 65)))
    assert ledger.worst_case() == expected.worst_case()


def test_ghost_counts_are_within_one_bucket() -> None:
    """Ghost clipping finds norms in another way, and its updates differ by round-off."""
    ledgers = []
    for mode in ("hooks", "ghost"):
        run = private_run(mode=mode, noise_multiplier=NOISE, max_grad_norm=CLIP)
        ledger = Ledger()
        with bayesdp.opacus.watch(run.model, run.optimizer, run.loader, ledger=ledger):
            run.train(EPOCHS)
        ledgers.append(ledger)
    for step in range(1, ledgers[0].steps + 1):
        flat, ghost = (ledger.private_batch(step) for ledger in ledgers)
        assert flat is not None
        assert ghost is not None
        assert flat.drawn == ghost.drawn
        keys = [np.repeat(one.bins & 0xFFFF, one.counts).astype(int) for one in (flat, ghost)]
        below = [np.sort(one) for one in keys]
        assert np.abs(below[0] - below[1]).max(initial=0) <= 1


def test_watching_changes_nothing() -> None:
    """The same parameters and the same epsilon, to the last bit, with the watch and without it; also with dropout."""
    for mode in ("hooks", "ghost"):
        results = []
        for watched in (False, True):
            torch.manual_seed(3)
            model = nn.Sequential(nn.Linear(12, 16), nn.Dropout(0.5), nn.Tanh(), nn.Linear(16, 3))
            run = private_run(model, mode=mode)
            if watched:
                audit = some_data(30, seed=9)
                bayesdp.opacus.watch(run.model, run.optimizer, run.loader, ledger=Ledger(), audit=audit, loss=run.loss)
            run.train(2)
            results.append((run.parameters.tobytes(), run.engine.get_epsilon(1e-5), run.losses))
        assert results[0] == results[1]
