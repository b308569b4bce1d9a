"""A library that is not installed is named in one line, with the extra to install, before anything is computed."""

import sys

import pytest

from bayesdp import MissingLibraryError, recipes
from bayesdp.recipes import train
from bayesdp.recipes.features import EXTRACTORS
from warm_programs import run_without

BARE = ("safetensors", "sklearn", "pandas", "torch", "opacus", "kymatio", "jinja2", "plotly", "PIL")
"""What a bare installation lacks."""


@pytest.mark.parametrize(
    ("recipe", "libraries", "missing"),
    [
        ("adult", BARE, "safetensors=missing: bayesdp.recipes needs pip install 'bayesdp[recipes]'."),
        ("digits", BARE, "safetensors=missing: bayesdp.recipes needs pip install 'bayesdp[recipes]'."),
        ("adult", ("sklearn",), "sklearn=missing: Bayesian logistic regression needs pip install 'bayesdp[recipes]'."),
        ("adult", ("jinja2",), "jinja2=missing: the report needs pip install 'bayesdp[report]'."),
        (
            "fashion-mnist",
            ("kymatio",),
            "kymatio=missing: computing scattering-efficientnet features needs pip install 'bayesdp[recipes]'.",
        ),
        ("digits", ("torch",), "torch=missing: training a network with DP-SGD needs pip install 'bayesdp[demo]'."),
        (
            "mnist-network",
            ("opacus",),
            "opacus=missing: training a network with DP-SGD needs pip install 'bayesdp[demo]'.",
        ),
    ],
    ids=[
        *("bare adult", "bare digits", "adult sklearn", "adult jinja2", "fashion-mnist kymatio", "digits torch"),
        "mnist-network opacus",
    ],
)
def test_train_names_the_library_and_the_extra(tmp_path, recipe, libraries, missing):
    result = run_without("train", recipe, "--data", "nowhere", "-o", "out", libraries=libraries, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr == f"bayesdp: {missing}\n"
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_the_demo_says_it_too_and_makes_no_folder(tmp_path):
    result = run_without("demo", libraries=BARE, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr == "bayesdp: safetensors=missing: bayesdp.recipes needs pip install 'bayesdp[recipes]'.\n"
    assert list(tmp_path.iterdir()) == []


def test_every_public_name_of_a_bare_installation_is_an_import_error(tmp_path):
    code = """
import bayesdp.recipes
for name in bayesdp.recipes.__all__:
    try:
        getattr(bayesdp.recipes, name)
    except ImportError as error:
        print(name, type(error).__name__)
"""
    result = run_without(libraries=BARE, code=code, cwd=tmp_path)
    assert result.stderr == ""
    without_libraries = {"Dataset", "RECIPES", "Rows", "SgdSettings", "load"}
    expected = [f"{name} MissingLibraryError" for name in recipes.__all__ if name not in without_libraries]
    assert result.stdout.splitlines() == expected


FEATURES_OF = {"mnist": "drawn-digits", "fashion-mnist": "scattering-efficientnet", "cifar10": "efficientnet-lite2-224"}


@pytest.mark.parametrize(("recipe", "features"), FEATURES_OF.items())
def test_features_are_checked_before_the_data_is_read(tmp_path, monkeypatch, recipe, features):
    for library in EXTRACTORS[features].libraries:
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, library, None)
            with pytest.raises(MissingLibraryError, match=rf"^{library}=missing: computing {features} features needs"):
                train(recipe, data=tmp_path / "nowhere")


@pytest.mark.parametrize("features", EXTRACTORS)
def test_what_is_installed_is_not_missing(features):
    EXTRACTORS[features].check_libraries()
