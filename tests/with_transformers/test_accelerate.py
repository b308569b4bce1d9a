"""Objects that Accelerate has wrapped are refused in one line; examples/with_accelerate.py shows the right order."""

import pytest
from accelerate import Accelerator

import bayesdp.opacus
from bayesdp import InvalidInputError, Ledger
from opacus_runs import private_run


def test_a_wrapped_optimizer_is_refused():
    run = private_run()
    wrapped = Accelerator(cpu=True).prepare(run.optimizer)
    expected = "optimizer='AcceleratedOptimizer': expected the optimizer that make_private returned, not one that is"
    with pytest.raises(InvalidInputError, match=expected):
        bayesdp.opacus.watch(run.model, wrapped, run.loader, ledger=Ledger())


def test_a_prepared_loader_draws_as_before():
    """It fetches one batch ahead; what is used is in the ledger."""
    run = private_run()
    with Ledger() as ledger, run.watch(ledger):
        run.train(loader=Accelerator(cpu=True).prepare(run.loader))
        assert ledger.steps == 10
