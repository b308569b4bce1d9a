"""The law of each batch selection strategy, and batches that contradict it."""

import warnings

import numpy as np
import pytest
from jax_privacy import batch_selection

from bayesdp import InvalidInputError
from bayesdp.jax_privacy import Epochs, SamplingWarning
from bayesdp.jax_privacy.sampling import BatchSizes, Sampling
from jax_runs import (
    AUDIT,
    AUDIT_RECORDS,
    RECORDS,
    batch,
    draws,
    poisson,
    raw_norms,
    start,
    step_function,
    train,
    watched,
)


@pytest.mark.parametrize(
    ("strategy", "rate", "apart"),
    [
        (poisson(0.1), 0.1, 1),
        (batch_selection.CyclicPoissonSampling(sampling_prob=0.1, iterations=9, cycle_length=3), None, 3),
        (batch_selection.CyclicPoissonSampling(sampling_prob=0.1, iterations=9, truncated_batch_size=5), None, 1),
        (batch_selection.BallsInBinsSampling(iterations=9, cycle_length=4), None, 4),
        (batch_selection.BMinSepSampling(sampling_prob=0.5, iterations=9, min_sep=3), None, 3),
        (batch_selection.FixedBatchSampling(batch_size=8, iterations=9), None, 1),
        (batch_selection.UserSelectionStrategy(poisson(0.2)), 0.2, 1),
        (Epochs(5), None, 5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_only_poisson_sampling_is_amplified(strategy, rate, apart):
    sampling = Sampling.of(strategy)
    assert (sampling.rate, sampling.batches) == (rate, apart)
    assert sampling.caveats == (frozenset() if rate else {"zero-out"})


@pytest.mark.parametrize(
    "strategy",
    [
        batch_selection.CyclicPoissonSampling(sampling_prob=0.5, iterations=24, cycle_length=3),
        batch_selection.BallsInBinsSampling(iterations=24, cycle_length=4),
        batch_selection.BMinSepSampling(sampling_prob=0.5, iterations=24, min_sep=3),
        batch_selection.FixedBatchSampling(batch_size=8, iterations=24),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_record_is_at_most_once_in_as_many_batches_as_the_law_says(strategy):
    apart = Sampling.of(strategy).batches
    drawn = [np.asarray(indices) for indices in strategy.batch_iterator(200, rng=1)]
    for first in range(0, 24, apart):
        together = np.concatenate(drawn[first : first + apart])
        assert len(together) == len(np.unique(together))


def test_strategies_that_are_not_known_are_refused():
    class Own(batch_selection.BatchSelectionStrategy):
        def batch_iterator(self, num_examples, rng=None):
            yield np.arange(num_examples)

    for other in (Own(), 0.1, None):
        with pytest.raises(
            InvalidInputError, match=r"batches=.* expected a batch selection strategy of jax_privacy, or"
        ):
            Sampling.of(other)
    with pytest.raises(InvalidInputError, match=r"batches=0"):
        Epochs(0)


def test_a_record_that_may_be_twice_in_a_batch_is_refused():
    with pytest.raises(InvalidInputError, match=r"replace=True: expected False"):
        Sampling.of(batch_selection.FixedBatchSampling(batch_size=8, iterations=9, replace=True))


@pytest.mark.parametrize("records", [RECORDS, None])
def test_batches_that_do_not_fit_the_rate_are_reported(records):
    """Poisson sampling is assumed, but the loader yields batches of one size."""
    run = watched(records=records)
    update = run.jit(step_function(run.grad_fn, run.privatizer))
    params, state = start(), run.privatizer.init(start())
    with warnings.catch_warnings(record=True, action="always") as said:
        for _ in range(32):
            params, state = update(params, state, *batch(np.arange(32)))
    (warning,) = [warning for warning in said if warning.category is SamplingWarning]
    assert "sample_rate=0.125: the sizes of the batches do not fit Poisson sampling" in str(warning.message)
    assert run.ledger.stored_steps()[-1].step.caveats == "sampling-mismatch"
    assert run.claims().everyone.kind == "estimate"


@pytest.mark.parametrize("records", [400, None])
def test_honest_sampling_is_never_reported(records):
    for seed in range(200):
        sizes = BatchSizes(0.05, records)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for drawn in poisson(0.05, 64).batch_iterator(400, rng=seed):
                sizes.add(len(drawn))


def test_a_shuffled_loader_is_one_step_for_each_epoch():
    """At rate 1, each audit record at its largest norm of the epoch."""
    run = watched(batches=Epochs(3), audit=AUDIT)
    _, before = train(run, 7)
    run.settle()
    steps = [stored.step for stored in run.ledger.stored_steps()]
    assert [(step.sample_rate, step.caveats) for step in steps] == [(1.0, "zero-out")] * 3
    assert [step.audited for step in steps] == [AUDIT_RECORDS] * 3
    norms = np.array([raw_norms(params, *AUDIT) for params in before])
    for number, epoch in enumerate((norms[:3], norms[3:6], norms[6:]), start=1):
        np.testing.assert_allclose(run.ledger.private_norms(number)[0], epoch.max(axis=0), rtol=1e-5)


def test_an_epoch_that_is_not_over_is_charged_at_the_clip_bound():
    run = watched(batches=Epochs(3), audit=AUDIT)
    train(run, 1)
    assert run.ledger.steps == 1
    assert run.ledger.stored_steps()[0].step.audited == 0
    run.claims()
    assert run.ledger.stored_steps()[0].step.audited == AUDIT_RECORDS
    train(run, 1)  # the epoch goes on: its norms are not final
    assert run.ledger.steps == 1
    assert run.ledger.stored_steps()[0].step.audited == 0


def test_a_step_of_somebody_else_does_not_shift_epochs():
    """A window that began later would let a record be in two batches of one step."""
    run = watched(batches=Epochs(3), audit=AUDIT)
    train(run, 1)
    run.ledger.step(noise_std=1.0, sample_rate=1.0, clip=1.0)
    train(run, 2)  # the rest of the epoch, paid anew
    train(run, 1)  # the next epoch
    assert run.ledger.steps == 4


def test_the_plan_of_a_shuffled_loader_is_in_epochs(tmp_path):
    with watched(ledger=tmp_path / "run.ledger", batches=Epochs(3), steps=7) as run:
        assert run.ledger.plan[0].steps == 3
        train(run, 7)
        assert run.claims().everyone.kind == "proved"


def test_a_strategy_that_begins_anew_begins_a_step():
    """A record of the last batches of one pass may be in the first of the next: 5 batches are steps of 3 and 2."""
    strategy = batch_selection.BallsInBinsSampling(iterations=5, cycle_length=3)
    run = watched(batches=strategy)
    update = run.jit(step_function(run.grad_fn, run.privatizer))
    params, state, steps = start(), run.privatizer.init(start()), []
    for drawn in [*draws(5), *draws(5)]:
        params, state = update(params, state, *batch(drawn))
        steps.append(run.ledger.steps)
    assert steps == [1, 1, 1, 2, 2, 3, 3, 3, 4, 4]
