"""SST-2: texts from files, features of a transformer in a folder, and the recipe from both to a statement."""

import gzip
import json
import os
import shutil
import sys

import numpy as np
import pytest

from bayesdp import InvalidInputError, Ledger, MissingLibraryError
from bayesdp.recipes import RECIPES, load, train
from bayesdp.recipes.catalogue import ProbeChoice, Recipe
from bayesdp.recipes.datasets import AUDIT_ROWS
from bayesdp.recipes.features import extract, find_extractor
from recipe_data import write_sst2
from tiny_transformer import phrases, write_transformer
from warm_programs import run_warm

TRAIN, TEST = phrases(400), phrases(90, seed=1)


@pytest.fixture
def data(tmp_path, monkeypatch):
    write_sst2(tmp_path / "data", TRAIN, TEST)
    monkeypatch.setenv("BAYESDP_CACHE", str(tmp_path / "cache"))
    for variable in ("BAYESDP_DATA", "BAYESDP_MODEL"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path / "data"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    pytest.importorskip("transformers", reason="the extra transformers is not installed")
    return write_transformer(tmp_path_factory.mktemp("model"))


@pytest.fixture
def quick(monkeypatch):
    """Replace the recipe's settings by some that suit a few hundred rows of a dozen words."""
    choice = ProbeChoice(target_epsilon=50.0, steps=40, clip=0.5, learning_rate=10.0, shape=0.1)
    monkeypatch.setitem(RECIPES, "sst2", Recipe(name="sst2", features="sentence-encoder", choices=(choice,)))
    return choice


def test_audit_rows_come_from_the_training_file_and_test_rows_from_the_other(data):
    sst2, other = load("sst2", data), load("sst2", data, seed=1)
    assert (len(sst2.development), len(sst2.audit), len(sst2.test), sst2.classes) == (200, 200, 90, 2)
    assert sorted([*sst2.development.x, *sst2.audit.x]) == sorted(TRAIN[0])
    assert sst2.judged is sst2.test
    assert (sst2.test.x.tolist(), sst2.test.y.tolist()) == (TEST[0], TEST[1].tolist())
    assert np.array_equal(sst2.audit.x, other.audit.x)
    assert not np.array_equal(sst2.held_out, other.held_out)
    assert len(sst2.train) + len(sst2.validation) == 200
    labels = dict(zip(*TRAIN, strict=True))
    assert all(labels[text] == label for text, label in zip(sst2.audit.x, sst2.audit.y, strict=True))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("label\tsentence\n1\tfine\n2\tdull\n", "a text and a label, 0 or 1, in each row; row 2 is not such a row"),
        ("label\tsentence\n1\tfine\tagain\n", "row 1 is not such a row"),
        ("1\tfine\n", "a header of two names, one of them label"),
        ("", "a header of two names"),
        ("label\tsentence\n", "rows of classes 0 to 1, for training and for the audit"),
    ],
)
def test_files_that_are_not_sst2_are_refused(data, content, expected):
    (data / "sst2" / "train.tsv.gz").write_bytes(gzip.compress(content.encode()))
    with pytest.raises(InvalidInputError, match=expected):
        load("sst2", data)


def test_damaged_and_missing_files_are_named(data):
    (data / "sst2" / "train.tsv.gz").write_bytes(b"no archive")
    with pytest.raises(InvalidInputError, match=r"file='.*: expected a file that can be read"):
        load("sst2", data)
    (data / "sst2" / "dev.tsv.gz").unlink()
    with pytest.raises(InvalidInputError, match=r"data='.*': expected sst2/dev.tsv.gz in it\.$"):
        load("sst2", data)
    with pytest.raises(InvalidInputError, match=r"data=None: expected a folder with sst2/train.tsv.gz and sst2/dev"):
        load("sst2")


def test_features_of_a_text_do_not_depend_on_the_others(model):
    extractor = find_extractor("sentence-encoder", model)
    texts = np.array([*phrases(70)[0], "", "words that nobody knows", "fine " * 100])
    features = extractor(texts)
    assert features.dtype == np.float32
    assert features.shape[1] % 16 == 0
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1.0, rtol=1e-5)
    for number in (0, 3, 41, 70, 71, 72):
        assert np.array_equal(extractor(texts[number : number + 1])[0], features[number])  # to the last bit
    assert np.array_equal(extractor(texts[::-1])[::-1], features)


def test_features_are_means_of_activations_as_transformers_computes_them(model):
    import torch
    from transformers import AutoModel, AutoTokenizer

    from bayesdp.recipes.sentence_encoder import LAYERS

    tokens = AutoTokenizer.from_pretrained(model)(["a clever plot"], return_tensors="pt")
    with torch.no_grad():
        hidden = AutoModel.from_pretrained(model).eval()(**tokens, output_hidden_states=True).hidden_states
    means = [hidden[-number][0].mean(0) for number in range(LAYERS, 0, -1)]
    expected = torch.cat([mean / mean.norm() for mean in means]) / len(means) ** 0.5
    found = find_extractor("sentence-encoder", model)(np.array(["a clever plot"]))[0]
    np.testing.assert_allclose(found, expected.numpy(), atol=2e-6)


def test_features_of_another_model_are_not_taken_from_the_cache(data, model, tmp_path):
    dataset = load("sst2", data)
    first = extract(dataset, find_extractor("sentence-encoder", model))
    other = shutil.copytree(model, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "hidden_act": "relu"}))
    second = extract(dataset, find_extractor("sentence-encoder", other))
    assert not np.allclose(first.audit.x, second.audit.x)
    assert len(list((tmp_path / "cache").iterdir())) == 6  # development, audit and test rows of both


def test_from_files_to_a_statement(data, model, tmp_path, quick):
    trained = train("sst2", data=data, model=model, reproducible=True, output=tmp_path / "out")
    assert trained.accuracy > 0.8
    assert trained.baseline_accuracy > 0.8
    assert trained.claims.worst_case.epsilon <= 50
    assert "% of the test rows classified correctly" in (tmp_path / "out" / "statement.txt").read_text()
    assert trained.settings["tested_on"] == "90 rows"
    assert trained.settings["model_sha256"] == find_extractor("sentence-encoder", model).model
    with Ledger.open(tmp_path / "out" / "run.ledger", write=False) as ledger:
        assert (ledger.steps, ledger.audit_records) == (quick.steps + 2, 200)
    assert trained.claims.everyone.kind == "proved"


def test_the_folder_of_the_model_may_come_from_the_environment(data, model, quick, monkeypatch):
    monkeypatch.setenv("BAYESDP_MODEL", str(model))
    assert train("sst2", data=data, reproducible=True, baseline=False).accuracy > 0.8


def test_a_run_goes_on_with_the_same_model_only(data, model, tmp_path, quick):
    def interrupted(items, what):
        for number, item in enumerate(items):
            if what != "Public features" and number == 5:
                raise KeyboardInterrupt
            yield item

    with pytest.raises(KeyboardInterrupt):
        train("sst2", data=data, model=model, output=tmp_path / "out", track=interrupted)
    other = shutil.copytree(model, tmp_path / "other")
    (other / "config.json").write_text((other / "config.json").read_text() + "\n")
    with pytest.raises(InvalidInputError, match="expected the same recipe, target, seed and data"):
        train("sst2", data=data, model=other, output=tmp_path / "out", resume=True)
    assert train("sst2", data=data, model=model, output=tmp_path / "out", resume=True).accuracy > 0.5


def test_the_command_says_in_one_line_what_is_wrong_with_the_model(data, tmp_path):
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.json").write_text("{}")
    cases = {
        (): "model=None: expected the folder of a transformer with config.json, model.safetensors and tokenizer.json, "
        "as --model or in BAYESDP_MODEL",
        ("--model", "nowhere"): "model='nowhere': expected the folder of a transformer with config.json, "
        "model.safetensors and tokenizer.json in it",
        ("--model", "half"): "model='half': expected the folder of a transformer with model.safetensors and "
        "tokenizer.json in it",
    }
    for options, said in cases.items():
        result = run_warm("train", "sst2", "--data", str(data), "-o", "out", *options, cwd=tmp_path)
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr == f"bayesdp: {said}.\n"
    result = run_warm("train", "adult", "--model", "half", "-o", "out", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (
        2,
        "bayesdp: model='half': expected no model: table features do without.\n",
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        ("weights", "a model that transformers can load"),
        ("tokenizer", "a model that transformers can load"),
        ("layer", r"weights of all layers; encoder\.layer\.1\.output"),
        ("words", "a tokenizer with at most 16 words, as the model has"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(data, model, tmp_path, damage, expected, quick):
    from safetensors.numpy import load_file, save_file

    broken = shutil.copytree(model, tmp_path / "broken")
    if damage == "weights":
        (broken / "model.safetensors").write_bytes(b"no weights")
    elif damage == "tokenizer":
        (broken / "tokenizer.json").write_text("{}")
    elif damage == "words":
        tokenizer = json.loads((broken / "tokenizer.json").read_text())
        tokenizer["model"]["vocab"]["unheard"] = len(tokenizer["model"]["vocab"])
        (broken / "tokenizer.json").write_text(json.dumps(tokenizer))
    else:
        weights = load_file(broken / "model.safetensors")
        kept = {name: array for name, array in weights.items() if "layer.1.output" not in name}
        save_file(kept, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InvalidInputError, match=f"model='.*: expected {expected}") as refused:
        train("sst2", data=data, model=broken, output=tmp_path / "out")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_without_transformers_the_extra_is_named(data, model, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    expected = r"^transformers=missing: computing sentence-encoder features needs pip install 'bayesdp\[transformers\]'"
    with pytest.raises(MissingLibraryError, match=expected):
        train("sst2", data=data, model=model)


@pytest.mark.slow
@pytest.mark.skipif(
    not (os.environ.get("BAYESDP_DATA") and os.environ.get("BAYESDP_MODEL")),
    reason="BAYESDP_DATA and BAYESDP_MODEL do not name SST-2 and a model",
)
def test_the_published_rows():
    sst2 = load("sst2")
    assert (len(sst2.development), len(sst2.audit), len(sst2.test)) == (67_349 - AUDIT_ROWS, AUDIT_ROWS, 872)
    features = find_extractor("sentence-encoder")(sst2.test.x[:64])
    assert np.isfinite(features).all()
