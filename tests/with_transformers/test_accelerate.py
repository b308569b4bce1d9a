"""Objects that Accelerate has wrapped are refused in one line; examples/with_accelerate.py shows the right order."""

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

import bayesdp.opacus
from bayesdp import InvalidInputError, Ledger
from bayesdp.opacus.precision import CLIPPED
from opacus_runs import audit_norms, batch_norms, private_run, random_data, settings, small_model


@pytest.fixture
def fresh_state():
    """Accelerate keeps the precision for the whole process."""
    AcceleratorState._reset_state(True)
    yield
    AcceleratorState._reset_state(True)


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


def test_mixed_precision_is_seen_and_makes_estimates(fresh_state):
    """Accelerate enters autocast inside of the model's ``forward``."""
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    data = random_data(40)
    run = private_run(accelerator.prepare(small_model()), data=data, batch=40)
    with Ledger(keep_norms=True) as ledger, run.watch(ledger, audit=data, loss=run.loss) as watched:
        for x, y in run.loader:
            accelerator.backward(run.loss(run.model(x), y))
            assert run.optimizer.params[0].grad_sample.dtype == torch.bfloat16
            run.optimizer.step()
        assert settings(ledger) == [(1.0, 1.0, CLIPPED, 1)]
        assert ledger.history.caveats == ["low-precision"]
        assert watched.claims().everyone.kind == "estimate"
        audit, batch = audit_norms(ledger, 1), batch_norms(ledger, 1)
        assert np.all((batch * 0.99 < audit) & (audit < batch * CLIPPED * 1.01))
