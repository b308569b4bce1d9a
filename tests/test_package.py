"""The package as a whole: names, laziness, claims."""

import subprocess
import sys

import pytest

import bayesdp
from bayesdp.claims.claim import Claim
from bayesdp.formatting import round_up


def test_every_public_name_exists():
    for name in bayesdp.__all__:
        assert getattr(bayesdp, name) is not None
    assert set(bayesdp.__all__) <= set(dir(bayesdp))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = bayesdp.nothing


def test_public_names_survive_any_order_of_imports():
    code = """
import bayesdp.guarantees.worst_case, bayesdp.guarantees.calibration, bayesdp.claims.account
assert all(map(callable, (bayesdp.calibrate, bayesdp.account, bayesdp.epsilon, bayesdp.worst_case_of)))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_importing_the_package_imports_no_framework():
    code = "import sys, bayesdp; print([m for m in ('torch', 'jax', 'opacus', 'numpy', 'scipy') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.12341, "0.124"), (2.0, "2"), (1.9999, "2"), (123.4, "124"), (0, "0"), (1e-9, "1e-09"), (float("inf"), "inf")],
)
def test_printed_figures_are_rounded_up(value, text):
    assert round_up(value) == text
    assert float(round_up(value)) >= value * (1 - 1e-12)


def test_claims_are_frozen_and_comparable():
    fields = {"epsilon": 1.0, "delta": 1e-5, "audience": "share", "share": 0.9, "gamma": 0.01}
    fields |= {"direction": "record out", "kind": "ex-post", "method": "m"}
    one, same = Claim(**fields), Claim(**fields)
    assert one == same
    assert hash(one) == hash(same)
    with pytest.raises(AttributeError):
        one.epsilon = 0.5
    assert "at least 90 %" in str(one)
    assert "99 %" in str(one)
