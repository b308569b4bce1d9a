"""The package as a whole: names, laziness, claims, what a wheel contains."""

import email
import re
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

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


def python(code):
    """What a fresh interpreter prints."""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


WITHOUT_OPACUS = "import sys; sys.modules['opacus'] = None; import bayesdp\n"


def test_everything_works_without_opacus():
    assert python(f"{WITHOUT_OPACUS}from bayesdp import *; print(Ledger, account)").startswith("<class")
    assert python(f"{WITHOUT_OPACUS}print(hasattr(bayesdp, 'opacus'), 'opacus' in bayesdp.__all__)") == "False False"


def test_opacus_that_is_missing_is_named_with_the_extra_to_install():
    code = f"""{WITHOUT_OPACUS}
try:
    import bayesdp.opacus
except ImportError as error:
    print(type(error).__name__, error.name, error)
"""
    expected = "MissingLibraryError opacus opacus=missing: bayesdp.opacus needs pip install 'bayesdp[opacus]'."
    assert python(code) == expected


def test_jax_privacy_that_is_missing_is_named_with_the_extra_to_install():
    code = """
import sys; sys.modules['jax_privacy'] = None
import bayesdp
print(hasattr(bayesdp, 'jax_privacy'), 'jax_privacy' in bayesdp.__all__)
try:
    import bayesdp.jax_privacy
except ImportError as error:
    print(type(error).__name__, error)
"""
    expected = "MissingLibraryError jax_privacy=missing: bayesdp.jax_privacy needs pip install 'bayesdp[jax]'."
    assert python(code) == f"False False\n{expected}"


@pytest.mark.skipif(find_spec("opacus") is None, reason="Opacus is not installed here")
def test_opacus_is_there_when_it_is_asked_for():
    from warm_programs import run_without

    code = "import bayesdp; print(hasattr(bayesdp, 'opacus'), callable(bayesdp.opacus.watch))"
    assert run_without(code=code).stdout.strip() == "True True"


def test_public_names_are_listed_once():
    listed = re.findall(r"import \w+ as (\w+)$", Path(bayesdp.__file__).with_suffix(".pyi").read_text(), re.MULTILINE)
    assert sorted(listed) == bayesdp.__all__
    assert len(set(listed)) == len(listed) > 30


def test_the_wheel_has_everything_and_its_readme_leads_to_the_repository(tmp_path):
    root = Path(bayesdp.__file__).parents[2]
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=root, check=True, capture_output=True, timeout=120)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
        about = email.message_from_bytes(wheel.read(next(name for name in names if name.endswith("/METADATA"))))
    tracked = {str(path.relative_to(root / "src")) for path in (root / "src" / "bayesdp").rglob("*") if path.is_file()}
    assert {name for name in tracked if "__pycache__" not in name} <= names
    links = re.findall(r"\]\(([^)]+)\)", about.get_payload())
    assert len(links) > 20
    assert all(link.startswith("https://") for link in links)
    assert about["Author"] == "bayesdp developers"
    assert any("github.com" in url for url in about.get_all("Project-URL"))


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
    claim, same = Claim(**fields), Claim(**fields)
    assert claim == same
    assert hash(claim) == hash(same)
    with pytest.raises(AttributeError):
        claim.epsilon = 0.5
    assert "at least 90 %" in str(claim)
    assert "99 %" in str(claim)
