"""What the ledger holds is what a hand-written DP-SGD loop would have counted."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch import nn

from bayesdp import Ledger
from bayesdp.claims.everyone import OWN_GRADIENTS
from bayesdp.ledger.bins import keys_of
from opacus_runs import RATE, private_run, random_data, small_model

RECORDS, BATCH, EPOCHS = 200, 20, 3
NOISE, CLIP = 1.3, 0.7


def by_hand(audit: tuple[torch.Tensor, torch.Tensor]) -> tuple[Ledger, np.ndarray]:
    """Run DP-SGD from its definition, with random numbers in the order in which Opacus draws them."""
    model = small_model().double()
    x, y = random_data(RECORDS, dtype=torch.float64)
    draws, noise = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    parameters = list(model.parameters())
    ledger = Ledger()

    def gradient(features: torch.Tensor, label: torch.Tensor) -> list[torch.Tensor]:
        loss = nn.functional.cross_entropy(model(features[None]), label[None])
        return list(torch.autograd.grad(loss, parameters))

    def norm(grads: list[torch.Tensor]) -> float:
        return math.sqrt(sum(float((grad**2).sum()) for grad in grads))

    for _ in range(EPOCHS):
        torch.empty((), dtype=torch.int64).random_(generator=draws)  # the seed of loader workers
        sampler = UniformWithReplacementSampler(num_samples=RECORDS, sample_rate=BATCH / RECORDS, generator=draws)
        for drawn in sampler:
            total = [torch.zeros_like(parameter) for parameter in parameters]
            norms = []
            for index in drawn:
                grads = gradient(x[index], y[index])
                norms.append(norm(grads))
                factor = min(1.0, CLIP / (norms[-1] + 1e-6))
                total = [a + factor * b for a, b in zip(total, grads, strict=True)]
            held_out = [norm(gradient(*record)) for record in zip(*audit, strict=True)]
            ledger.step(noise_std=NOISE * CLIP, sample_rate=RATE, clip=CLIP, audit=held_out, batch=norms)
            with torch.no_grad():
                for parameter, summed in zip(parameters, total, strict=True):
                    added = torch.normal(0, NOISE * CLIP, summed.shape, generator=noise, dtype=torch.float64)
                    parameter -= 0.1 * (summed + added) / BATCH
    return ledger, torch.cat([parameter.detach().reshape(-1) for parameter in parameters]).numpy()


def test_counts_equal_those_of_a_hand_written_loop() -> None:
    audit = random_data(30, seed=9, dtype=torch.float64)
    expected, parameters = by_hand(audit)
    run = private_run(dtype=torch.float64, noise_multiplier=NOISE, max_grad_norm=CLIP)
    ledger = Ledger()
    with run.watch(ledger, audit=audit, loss=run.loss):
        run.train(EPOCHS)
    assert np.allclose(run.parameters, parameters, rtol=1e-9, atol=1e-12)  # it is the same run
    assert ledger.steps == expected.steps == EPOCHS * RECORDS // BATCH
    for step in range(1, ledger.steps + 1):
        watched, by_hand_batch = ledger.private_batch(step), expected.private_batch(step)
        assert watched is not None
        assert by_hand_batch is not None
        assert (watched.drawn, watched.clipped) == (by_hand_batch.drawn, by_hand_batch.clipped)
        assert np.array_equal(watched.bins, by_hand_batch.bins)
        assert np.array_equal(watched.counts, by_hand_batch.counts)
    assert np.array_equal(ledger.costs(range(1, 65)), expected.costs(range(1, 65)))
    assert ledger.worst_case().assumptions == (OWN_GRADIENTS.text,)  # of a loop that is not written here
    assert replace(ledger.worst_case(), assumptions=()) == expected.worst_case()


def test_ghost_counts_are_within_one_bucket() -> None:
    """Ghost clipping finds norms in another way, and its updates differ by round-off."""
    ledgers = []
    for mode in ("hooks", "ghost"):
        run = private_run(mode=mode, noise_multiplier=NOISE, max_grad_norm=CLIP)
        ledger = Ledger()
        with run.watch(ledger):
            run.train(EPOCHS)
        ledgers.append(ledger)
    for step in range(1, ledgers[0].steps + 1):
        flat, ghost = (ledger.private_batch(step) for ledger in ledgers)
        assert flat is not None
        assert ghost is not None
        assert flat.drawn == ghost.drawn
        keys = [np.sort(np.repeat(keys_of(batch.bins), batch.counts)) for batch in (flat, ghost)]
        assert np.abs(keys[0].astype(int) - keys[1]).max(initial=0) <= 1


def test_watching_changes_nothing() -> None:
    """Parameters, losses and epsilon are the same to the last bit with the watch and without it, also with dropout."""
    for mode in ("hooks", "ghost"):
        results = []
        for watched in (False, True):
            torch.manual_seed(3)
            model = nn.Sequential(nn.Linear(12, 16), nn.Dropout(0.5), nn.Tanh(), nn.Linear(16, 3))
            run = private_run(model, mode=mode)
            if watched:
                audit = random_data(30, seed=9)
                run.watch(Ledger(), audit=audit, loss=run.loss)
            run.train(2)
            results.append((run.parameters.tobytes(), run.engine.get_epsilon(1e-5), run.losses))
        assert results[0] == results[1]
