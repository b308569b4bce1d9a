"""Loops that hold batches for a while: each batch counts as what it is, and once."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bayesdp
from bayesdp import InvalidInputError, Ledger
from opacus_runs import RATE, batch_norms, private_run, settings

Batches = Iterator[Any]


def shuffled(loader: Any) -> list[Any]:
    batches = list(loader)
    random.Random(3).shuffle(batches)
    return batches


def ahead(loader: Any, depth: int = 3) -> Batches:
    """Fetch some batches ahead, as a prefetcher does."""
    queue: deque[Any] = deque()
    for batch in loader:
        queue.append(batch)
        if len(queue) > depth:
            yield queue.popleft()
    yield from queue


LOOPS: dict[str, Callable[[Any], Any]] = {
    "list": list,
    "list in reverse": lambda loader: list(loader)[::-1],
    "shuffled list": shuffled,
    "three ahead": ahead,
    "islice": lambda loader: itertools.islice(loader, 10),
    "zip with another": lambda loader: (batch for batch, _ in zip(loader, itertools.count(), strict=False)),
}


@pytest.mark.parametrize(("loop", "workers"), [*((loop, 0) for loop in LOOPS), ("shuffled list", 2)])
def test_every_batch_counts_once_as_what_it_is(ledger: Ledger, loop: str, workers: int) -> None:
    run = private_run(workers=workers)
    run.watch(ledger)
    sizes = []
    for x, y in LOOPS[loop](run.loader):
        sizes.append(len(x))
        run.step(x, y)
    assert settings(ledger) == [(1.0, RATE, 1.0, 10)]
    assert ledger.history.caveats == []
    assert [len(batch_norms(ledger, step)) for step in range(1, 11)] == sizes


@pytest.mark.parametrize("loop", ["list", "list in reverse", "shuffled list"])
def test_a_batch_that_is_held_may_not_be_used_again(ledger: Ledger, loop: str) -> None:
    """Although others of the same size were not used yet."""
    run = private_run(records=400, batch=4)
    run.watch(ledger)
    batches = [batch for batch in LOOPS[loop](run.loader) if len(batch[0])]
    sizes = [len(x) for x, _ in batches]
    twice = next(number for number, size in enumerate(sizes) if number and sizes.count(size) > 3)
    run.step(*batches[twice])
    before = run.parameters
    with pytest.raises(InvalidInputError, match="each in one step only"):
        run.step(*batches[twice])
    assert np.array_equal(run.parameters, before)


def test_two_epochs_over_one_list_are_refused(ledger: Ledger) -> None:
    run = private_run()
    run.watch(ledger)
    batches = list(run.loader)
    run.train(loader=batches)
    with pytest.raises(InvalidInputError, match="each in one step only"):
        run.train(loader=batches)
    assert ledger.steps == 10


def test_copies_of_earlier_rows_are_not_noticed_and_every_claim_says_so() -> None:
    """As in a replay buffer: as many rows as were drawn, at new addresses. The figures on the page are exact."""
    run, ledger = private_run(), Ledger()
    run.watch(ledger)
    kept = None
    for x, y in run.loader:
        if kept is None or len(kept[0]) < len(x):
            kept = x.clone(), y.clone()
        run.step(kept[0][: len(x)], kept[1][: len(x)])
    assert ledger.history.caveats == []
    claims = ledger.claims()
    named = (
        "one gradient for each record drawn, from that record alone: it took none twice and none of an earlier batch"
    )
    assert all(named in " ".join(claim.assumptions) for claim in claims)
    assert named in claims.statement()
    twice = bayesdp.epsilon(noise_multiplier=0.5**0.5, sample_rate=0.1, steps=5, delta=1e-5)
    accounted = bayesdp.epsilon(noise_multiplier=1.0, sample_rate=0.1, steps=10, delta=1e-5)
    page = (Path(__file__).parents[2] / "docs" / "sharp-edges.md").read_text()
    assert f"epsilon is {twice.epsilon:.1f} where {accounted.epsilon:.1f} is accounted" in page


@pytest.mark.parametrize("poisson", [True, False])
def test_a_list_of_two_epochs_is_refused_for_what_it_is(ledger: Ledger, poisson: bool) -> None:
    """None of its batches was used before; a list for each epoch is the way out."""
    run = private_run(poisson_sampling=poisson)
    run.watch(ledger)
    batches = [*run.loader, *run.loader]
    with pytest.raises(InvalidInputError, match=r"'a batch of an earlier iteration'.*for every epoch a list\(loader\)"):
        run.train(loader=batches[1:])
    assert ledger.steps == 0
    for _ in range(2):
        run.train(loader=list(run.loader))
    assert ledger.steps == (20 if poisson else 2)


def test_a_shuffled_loader_is_still_one_step_for_each_epoch(ledger: Ledger) -> None:
    run = private_run(poisson_sampling=False, shuffle=True)
    run.watch(ledger)
    for _ in range(2):
        run.train(loader=shuffled(run.loader))
    assert settings(ledger) == [(1.0, 1.0, 1.0, 2)]


def test_training_is_the_same() -> None:
    parameters = []
    for watched in (False, True):
        run = private_run()
        if watched:
            run.watch(Ledger())
        run.train(epochs=1, loader=shuffled(run.loader))
        parameters.append(run.parameters.tobytes())
    assert parameters[0] == parameters[1]


def test_a_refusal_says_the_way_out(ledger: Ledger) -> None:
    """A list from before, a second epoch over a list, two steps for a batch, and parts of a batch."""
    run = private_run()
    before = list(run.loader)
    run.watch(ledger)
    with pytest.raises(
        InvalidInputError, match=r"'other batches'.*: loop over that loader, and call watch before list"
    ):
        run.train(loader=before)
    batches = iter(run.loader)
    run.step(*next(batches))
    batch = next(batches)
    run.step(*batch)
    used = r"a batch that a step has used'.*: for another epoch, loop over the loader again; .* one backward pass"
    with pytest.raises(InvalidInputError, match=used):
        run.step(*batch)
    x, y = next(iter(run.loader))
    parts = list(zip(x.clone().split(7), y.split(7), strict=True))
    run.optimizer.signal_skip_step(True)
    run.step(*parts[0])
    with pytest.raises(
        InvalidInputError, match=r"'other batches'.*: for parts of a batch, use BatchMemoryManager \(sig"
    ):
        run.step(*parts[1])
    assert ledger.steps == 2
