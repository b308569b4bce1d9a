"""Data sets from files, from OpenML and bundled; one line says what is missing or damaged."""

import gzip

import numpy as np
import pandas
import pytest
import sklearn.datasets

from bayesdp.recipes import datasets, load
from bayesdp.recipes.datasets import NAMES, fingerprint, scaled_tables
from recipe_data import ABALONE, ADULT, ADULT_TEST, write_abalone, write_adult, write_images


def test_digits_are_bundled_and_no_seed_trains_on_audit_rows():
    digits, other = load("digits"), load("digits", seed=1)
    assert (len(digits.development), len(digits.audit), digits.classes) == (1297, 500, 10)
    assert len(digits.train) + len(digits.validation) == 1297
    assert len(digits.validation) == 130
    assert digits.train.x.shape[1:] == (8, 8)
    for mine, theirs in zip(digits.arrays(), other.arrays(), strict=True):
        assert np.array_equal(mine, theirs)  # so no row is trained on in one run and audited in another
    assert not np.array_equal(digits.held_out, other.held_out)
    everything = np.concatenate([digits.train.x, digits.validation.x, digits.audit.x]).reshape(1797, -1)
    bundled = sklearn.datasets.load_digits().images.astype(np.uint8).reshape(1797, -1)
    assert np.array_equal(*(rows[np.lexsort(rows.T)] for rows in (everything, bundled)))  # each row once


def test_images_in_the_form_of_mnist(tmp_path):
    images, labels = write_images(tmp_path, "mnist")
    mnist = load("mnist", tmp_path)
    assert np.array_equal(mnist.development.x, images["train"])
    assert np.array_equal(mnist.audit.y, labels["t10k"])
    assert mnist.audit.x.dtype == np.uint8
    assert mnist.source == "folder"


def test_the_folder_may_come_from_the_environment(tmp_path, monkeypatch):
    write_images(tmp_path, "fashion-mnist")
    monkeypatch.setenv("BAYESDP_DATA", str(tmp_path))
    assert load("fashion-mnist").source == "folder"


def test_cifar10(tmp_path):
    (tmp_path / "cifar10").mkdir()
    rng = np.random.default_rng(0)
    arrays = {f"x_{part}": rng.integers(0, 256, (n, 32, 32, 3), np.uint8) for part, n in (("train", 20), ("test", 5))}
    labels = {f"y_{part}": np.arange(n) % 10 for part, n in (("train", 20), ("test", 5))}
    np.savez(tmp_path / "cifar10" / "cifar10.npz", **arrays, **labels)
    cifar = load("cifar10", tmp_path)
    assert np.array_equal(cifar.development.x, arrays["x_train"])
    assert np.array_equal(cifar.audit.y, labels["y_test"])
    np.savez(tmp_path / "cifar10" / "cifar10.npz", **{**arrays, "x_test": arrays["x_test"][:, :8]}, **labels)
    with pytest.raises(ValueError, match=r"expected images \[n, 32, 32, 3\] of bytes"):
        load("cifar10", tmp_path)
    for wrong in (labels["y_train"] + 0.5, np.full(20, np.nan)):
        np.savez(tmp_path / "cifar10" / "cifar10.npz", **arrays, **{**labels, "y_train": wrong})
        with pytest.raises(ValueError, match=r"expected classes that are whole numbers, these are float64"):
            load("cifar10", tmp_path)
    (tmp_path / "cifar10" / "cifar10.npz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"file=.*cifar10.npz.*expected a file that can be read"):
        load("cifar10", tmp_path)


def test_abalone_is_scaled_by_public_constants(tmp_path):
    write_abalone(tmp_path)
    data = load("abalone", tmp_path)
    rows = np.concatenate([data.development.x, data.audit.x])
    assert rows.shape == (len(ABALONE), len(scaled_tables.ABALONE))
    first = [(2 - 1) / 0.8, (0.455 - 0.52) / 0.12]
    np.testing.assert_allclose(rows[0, :2], first)
    np.testing.assert_allclose(rows[0, 8], (0.2245 / 0.514 - 0.43) / 0.05)
    assert np.concatenate([data.development.y, data.audit.y]).tolist() == [int(row[-1] > 9) for row in ABALONE]
    assert len(data.development) == int(0.8 * len(ABALONE))
    alone = tmp_path / "alone"
    write_abalone(alone, ABALONE[:5])
    np.testing.assert_array_equal(load("abalone", alone).development.x, rows[:4])  # a row's features are its own


def test_adult_leaves_out_rows_with_missing_values(tmp_path):
    write_adult(tmp_path)
    data = load("adult", tmp_path)
    assert len(data.development) == sum("?" not in line for line in ADULT)
    assert len(data.audit) == sum("?" not in line for line in ADULT_TEST)
    assert data.development.x.shape[1] == len(scaled_tables.ADULT)
    first = dict(zip(scaled_tables.ADULT, data.development.x[0], strict=True))
    assert first == pytest.approx(
        {
            **dict.fromkeys(scaled_tables.ADULT, 0.0),
            "age": (39 - 40) / 13,
            "distance from age 45": ((39 - 45) / 15) ** 2 - 1,
            "schooling": (13 - 10) / 2.5,
            "small gain": 2.0,
            "married": -1.0,
            "manager or professional": -1.0,
            "other office work": 2.0,
            "small business or state": 2.0,
        }
    )
    assert data.development.y[0] == 0
    assert 1 in data.audit.y  # labels with a dot behind them


def openml(monkeypatch, frame, target):
    def fetch(name, *, version, as_frame):
        assert as_frame
        return sklearn.utils.Bunch(data=frame, target=target)

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    monkeypatch.delenv("BAYESDP_DATA", raising=False)


def test_openml_gives_the_same_tables_as_files(tmp_path, monkeypatch):
    write_abalone(tmp_path)
    values = pandas.DataFrame([row[:8] for row in ABALONE])
    openml(monkeypatch, values, pandas.Series([str(row[8]) for row in ABALONE], dtype="category"))
    fetched, read = load("abalone"), load("abalone", tmp_path)
    np.testing.assert_array_equal(fetched.development.x, read.development.x)
    np.testing.assert_array_equal(fetched.audit.y, read.audit.y)
    assert fetched.source == "OpenML"
    write_adult(tmp_path)
    lines = [line.rstrip(".").split(", ") for line in [*ADULT, *ADULT_TEST]]
    values = pandas.DataFrame([[None if value == "?" else value for value in line[:14]] for line in lines])
    for column in (0, 2, 4, 10, 11, 12):
        values[column] = values[column].astype(float)
    for column in (1, 5, 6):
        values[column] = values[column].astype("category")
    openml(monkeypatch, values, pandas.Series([line[14] for line in lines], dtype="category"))
    monkeypatch.setattr("bayesdp.recipes.datasets.scikit_learn._TRAINING_ROWS_OF_ADULT", len(ADULT))
    fetched, read = load("adult"), load("adult", tmp_path)
    np.testing.assert_array_equal(fetched.development.x, read.development.x)
    np.testing.assert_array_equal(fetched.audit.y, read.audit.y)


def test_openml_gives_images_with_channels_last(monkeypatch):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (50_003, 3, 2, 2), np.uint8)
    small = {"cifar10": lambda: datasets.scikit_learn.images("CIFAR_10", 1, 50_000, (3, 2, 2))}
    openml(monkeypatch, pandas.DataFrame(pixels.reshape(50_003, -1)), pandas.Series(["cat", "7"] * 25_001 + ["0"]))
    monkeypatch.setattr(datasets, "_FROM_OPENML", small)
    data = load("cifar10")
    assert np.array_equal(data.audit.x, np.moveaxis(pixels[50_000:], 1, -1))
    assert data.audit.y.tolist() == [3, 7, 0]
    openml(monkeypatch, pandas.DataFrame(pixels[:10].reshape(10, -1)), pandas.Series(["1"] * 10))
    with pytest.raises(ValueError, match="OpenML='CIFAR_10': expected more than 50000 rows, there are 10"):
        load("cifar10")


def test_without_a_network_it_says_how_to_get_the_data(monkeypatch):
    def fetch(*_, **__):
        raise OSError("no route to host")

    monkeypatch.delenv("BAYESDP_DATA", raising=False)
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    with pytest.raises(ValueError, match=r"OpenML did not give mnist_784 \(no route to host\).*--data FOLDER"):
        load("mnist")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "digits"])
def test_an_empty_folder_is_refused(name, tmp_path):
    otherwise = "" if name == "sst2" else ".*OpenML"  # which does not have it
    with pytest.raises(ValueError, match=rf"data=.*expected {name}/.* in it{otherwise}"):
        load(name, tmp_path)


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="name='imagenet': expected one of mnist, fashion-mnist, cifar10"):
        load("imagenet")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no gzip", "expected a file that can be read"),
        (gzip.compress(b"\0\0\x0b\x03" + bytes(12)), "expected an idx file of bytes with 3 axes"),
        (gzip.compress(b"\0\0\x08\x03" + (5).to_bytes(4, "big") * 3 + bytes(7)), "expected 125 values, it has 7"),
        (gzip.compress(bytes(1000))[:-20], "expected a file that can be read"),
        (gzip.compress(b"\0\0\x08\x03" + (40).to_bytes(4, "big") * 2 + b"\0\0\0\x0e" + bytes(22_400)), "form .28, 28."),
    ],
    ids=[
        "no gzip",
        "another type",
        "too few values",
        "cut off",
        "another form",
    ],  # gzip writes the time into its content
)
def test_damaged_images_are_refused(tmp_path, content, message):
    write_images(tmp_path, "mnist")
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(ValueError, match=rf"file=.*{message}"):
        load("mnist", tmp_path)


def test_labels_that_do_not_fit_are_refused(tmp_path):
    write_images(tmp_path, "mnist")
    folder = tmp_path / "mnist"
    (folder / "train-labels-idx1-ubyte.gz").write_bytes((folder / "t10k-labels-idx1-ubyte.gz").read_bytes())
    with pytest.raises(ValueError, match=r"len\(y\)=\d+: expected a class for each of"):
        load("mnist", tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("M,1,2", "expected 9 values in each row, row 3 has 3"),
        ("X,1,1,1,1,1,1,1,9", "sex='X': expected I, F or M"),
        ("M,1,1,one,1,1,1,1,9", "data='abalone': expected numbers where they belong"),
        ("M,1,1,inf,1,1,1,1,9", "data='abalone': expected finite numbers"),
    ],
)
def test_a_damaged_table_is_refused(tmp_path, line, message):
    write_abalone(tmp_path)
    path = tmp_path / "abalone" / "abalone.data"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], line, *lines[2:]]))
    with pytest.raises(ValueError, match=message):
        load("abalone", tmp_path)


def test_fingerprints_never_change():
    """Caches and checkpoints on users' disks are recognised by them."""
    rows = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    assert fingerprint([]) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert fingerprint([rows], about="|u1 (2, 3, 4) ")[:32] == "cff443d0d9dbfe0c2df1f055f15b499f"
    assert fingerprint([rows[:, :, ::2]], about="|u1 (2, 3, 2) ")[:32] == "b5b70bc650262afde88775dfc893a486"
    assert fingerprint([rows[:1], rows[1:]]) == fingerprint([rows])
