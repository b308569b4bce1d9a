"""Flower's own simulation, with Ray: shares for 500 clients."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import bayesdp
from bayesdp import Ledger
from bayesdp.estimators import records_needed

PROGRAM = Path(__file__).parents[1] / "flower_ray.py"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed; make test-flower installs it")
def test_shares_of_500_clients_by_simulation(tmp_path):
    path = tmp_path / "run.ledger"
    environment = {
        **os.environ,
        "FLWR_HOME": str(tmp_path / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-W", "ignore", str(PROGRAM), str(path), "500", "100", "3"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert ran.returncode == 0, ran.stderr[-2000:]
    ledger = Ledger.open(path, write=False)
    assert ledger.steps == 3
    assert ledger.audit_records == 100
    claims = ledger.claims(delta=1e-5, shares=[0.5, 0.9, 0.99])
    assert claims.everyone.kind == "proved"
    assert claims.everyone.epsilon == float(bayesdp.epsilon(noise_multiplier=1.0, sample_rate=0.1, steps=3))
    half, most, nearly_all = (claims.share(share).ex_post.epsilon for share in (0.5, 0.9, 0.99))
    assert half < most < claims.everyone.epsilon
    assert records_needed(0.9, 0.01) <= 100 < records_needed(0.99, 0.01)
    assert nearly_all >= claims.left_out.epsilon  # nothing better than what everyone has
