"""What ranks compare about their draws: honest ranks pass, whatever they draw, and ranks that draw the same do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler
from torch.utils.data import Subset, TensorDataset

from bayesdp import InvalidInputError
from bayesdp.opacus.rank_draws import Dealt, DrawGuard, data_digest, dealt_draws, digest


def sampler(rank: int, ranks: int, total: int = 103, rate: float = 0.3, seed: int = 0) -> Any:
    """A sampler as a rank of a process group has it, without the group."""
    made = object.__new__(DistributedUniformWithReplacementSampler)
    made.total_size, made.sample_rate, made.num_replicas, made.rank = total, rate, ranks, rank
    made.epoch, made.shuffle, made.shuffle_seed, made.num_batches = 0, True, 0, 40
    made.num_samples = total // ranks + (rank < total % ranks)
    made.generator = torch.Generator().manual_seed(seed)
    return made


def positions(content: object) -> Dealt:
    return Dealt(digest(repr(content).encode()), 0, -1)


def test_draws_are_those_of_opacus_and_also_the_empty_ones() -> None:
    ours = [numbers.tolist() for numbers, _ in dealt_draws(sampler(1, 4, rate=0.03))]
    theirs = [numbers.tolist() for numbers in sampler(1, 4, rate=0.03)]
    assert len(ours) == 40
    assert [] in ours
    assert [numbers for numbers in ours if numbers] == theirs


@pytest.mark.parametrize("ranks", [1, 2, 4, 7])
def test_each_record_is_on_one_rank(ranks: int) -> None:
    dealt = [next(dealt_draws(sampler(rank, ranks, rate=1.0)))[0].tolist() for rank in range(ranks)]
    assert sorted(number for numbers in dealt for number in numbers) == list(range(103))


def test_ranks_together_draw_at_the_stated_rate_and_independently() -> None:
    """Counts of pairs of records over many draws, against those of independent draws at the rate of the ledger."""
    draws, rate, total = 4000, 0.3, 12
    drawn = np.zeros((draws, total))
    for rank in range(3):
        made = sampler(rank, 3, total, rate, seed=rank)
        made.num_batches = draws
        for number, (numbers, _) in enumerate(dealt_draws(made)):
            drawn[number, numbers.numpy()] = 1
    pairs = drawn.T @ drawn / draws
    expected = np.where(np.eye(total, dtype=bool), rate, rate**2)
    assert (abs(pairs - expected) < 5 * np.sqrt(expected / draws)).all()


@pytest.mark.parametrize("offset", [0, 5])
def test_equal_seeds_are_seen_at_the_first_draw(offset: int) -> None:
    """Also at other places of the same stream, where the draws themselves differ: rank 0 draws noise in between."""
    first, second = sampler(0, 2, seed=9), sampler(1, 2, seed=9)
    torch.rand(offset, generator=second.generator)
    dealt = [next(dealt_draws(each))[1] for each in (first, second)]
    with pytest.raises(InvalidInputError, match=r"torch\.manual_seed\(seed \+ rank\)"):
        DrawGuard(2, 51, lambda: None).check(dealt, 0.3)


def test_seeds_that_pytorch_does_not_tell_apart() -> None:
    """The generator of the CPU uses the lower 32 bits of its seed."""
    first, second = sampler(0, 2, seed=9), sampler(1, 2, seed=9 + (1 << 32))
    dealt = [next(dealt_draws(each))[1] for each in (first, second)]
    with pytest.raises(InvalidInputError, match="seed"):
        DrawGuard(2, 51, lambda: None).check(dealt, 0.3)


def test_equal_positions_without_a_seed_are_seen_when_chance_cannot_explain_them() -> None:
    """With 10 records at rate 0.1, two honest ranks agree in 14 of 100 draws: 21 in a row are too many."""
    late: list[int] = []
    guard, rng = DrawGuard(2, 10, lambda: late.append(1)), np.random.default_rng(0)
    for _ in range(20):
        guard.check([positions((rng.random(10) < 0.1).tolist())] * 2, 0.1)
    assert late == []
    with pytest.raises(InvalidInputError, match="seed"):
        guard.check([positions((rng.random(10) < 0.1).tolist())] * 2, 0.1)
    assert late == [1]


def test_large_draws_that_are_equal_are_seen_at_once() -> None:
    late: list[int] = []
    with pytest.raises(InvalidInputError, match="seed"):
        DrawGuard(4, 5000, lambda: late.append(1)).check([positions(n % 3) for n in range(4)], 0.01)


def test_honest_ranks_are_never_refused() -> None:
    """30,000 draws of small ranks, which agree by chance all the time."""
    rng = np.random.default_rng(1)
    for records, rate, ranks in [(3, 0.2, 4), (10, 0.1, 2), (30, 0.05, 3)]:
        guard = DrawGuard(ranks, records, lambda: None)
        for drawn in rng.random((10_000, ranks, records)) < rate:
            guard.check([positions(own.tobytes()) for own in drawn], rate)


def test_digests_of_data() -> None:
    x = torch.arange(300.0).reshape(100, 3)
    whole = TensorDataset(x)
    assert data_digest(whole) == data_digest(TensorDataset(x.clone()))
    assert data_digest(whole) != data_digest(TensorDataset(x.flip(0)))
    assert data_digest(Subset(whole, [1, 2])) != data_digest(Subset(whole, [2, 1]))
    assert data_digest({"x": x}) != data_digest({"x": x + 1})
    assert data_digest((x, x)) != data_digest((x, x[:99]))
    assert data_digest(TensorDataset(torch.full((4, 1), torch.nan))) == data_digest(
        TensorDataset(torch.full((4, 1), torch.nan))
    )
