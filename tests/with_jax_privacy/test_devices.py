"""One step over several devices: the same ledger as on one."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax_runs import AUDIT, X, Y, batch, draws, raw_norms, start, step_function, train, watched


@pytest.mark.parametrize("audit_batch", [128, 8])
def test_batches_that_are_spread_over_devices(audit_batch):
    devices = jax.devices()
    assert len(devices) == 4  # tests/with_jax_privacy/conftest.py asks for them
    mesh = Mesh(np.array(devices), ("data",))
    rows, everywhere = (NamedSharding(mesh, PartitionSpec(*names)) for names in (("data",), ()))
    run, alone = watched(audit=AUDIT, audit_batch=audit_batch), watched(audit=AUDIT)
    train(alone, 3)
    update = run.jit(step_function(run.grad_fn, run.privatizer))
    params, state = jax.device_put((start(), run.privatizer.init(start())), everywhere)
    for drawn in draws(3):
        params, state = update(params, state, *jax.device_put(batch(drawn), rows))
    assert len(params["w"].devices()) == 4
    assert run.compilations == 1
    for number in (1, 2, 3):
        for norms, expected in zip(run.ledger.private_norms(number), alone.ledger.private_norms(number), strict=True):
            np.testing.assert_allclose(np.sort(norms), np.sort(expected), rtol=1e-4)


def test_norms_that_are_spread_over_devices_are_of_whole_records():
    mesh = Mesh(np.array(jax.devices()), ("data",))
    run = watched()
    update = run.jit(lambda params, state, x, y: run.privatizer.update(run.grad_fn(params, x, y)[0], state))
    state = run.privatizer.init(start())
    update(start(), state, *jax.device_put((X, Y), NamedSharding(mesh, PartitionSpec("data"))))
    np.testing.assert_allclose(np.sort(run.ledger.private_norms(1)[1]), np.sort(raw_norms(start(), X, Y)), rtol=1e-5)
