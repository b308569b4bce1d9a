"""Public features: each computed from one row alone, of length 1, computed once; the cache."""

import os

import numpy as np
import pytest

from bayesdp.recipes import feature_cache, load
from bayesdp.recipes.efficientnet import fold_norms
from bayesdp.recipes.features import EXTRACTORS, Extractor, extract
from recipe_data import write_images

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 28, 28), np.uint8)


def test_scattering_has_the_documented_size_and_depends_on_its_row_only():
    scattering = EXTRACTORS["scattering"]
    together = scattering(IMAGES)
    assert together.shape == (5, 81 * 49)
    assert together.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(scattering(IMAGES[3:4])[0], together[3], atol=1e-5)
    np.testing.assert_allclose(together.reshape(5, 27, -1).mean(axis=2), 0.0, atol=1e-6)  # normalised in groups


def test_blank_images_have_finite_features():
    features = EXTRACTORS["scattering"](np.zeros((2, 28, 28), np.uint8))
    assert np.isfinite(features).all()
    assert (np.linalg.norm(features, axis=1) <= 1 + 1e-5).all()


@pytest.mark.parametrize(("features", "rounding"), [("efficientnet-lite0", 1e-4), ("efficientnet-lite2-224", 0.02)])
def test_efficientnet_is_the_same_for_mirror_images(features, rounding):
    """Up to rounding, which is coarse where lite2 is computed in bfloat16."""
    extractor = EXTRACTORS[features]
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    computed = extractor(images)
    assert computed.shape == (2, 1280)
    np.testing.assert_allclose(
        np.linalg.norm(computed, axis=1), 1.0, rtol=1e-5 if extractor.kind == "float32" else 1e-3
    )
    np.testing.assert_allclose(extractor(images[:, :, ::-1].copy()), computed, atol=rounding)
    assert np.linalg.norm(computed[0] - computed[1]) > 0.01


@pytest.mark.parametrize(
    ("name", "first", "images"),
    [
        ("scattering-efficientnet", 81 * 9, IMAGES),
        ("efficientnet-lite2-lite0", 1280, np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), np.uint8)),
    ],
)
def test_features_side_by_side_weigh_the_same_and_depend_on_their_row_only(name, first, images):
    beside = EXTRACTORS[name]
    together = beside(images)
    assert together.shape == (5, first + 1280)
    np.testing.assert_allclose(np.linalg.norm(together[:, :first], axis=1), np.sqrt(0.5), rtol=1e-3)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1.0, rtol=1e-3)
    np.testing.assert_allclose(beside(images[3:4])[0], together[3], atol=2e-3)
    assert np.linalg.norm(together[0] - together[1]) > 0.01


def test_folded_norms_leave_the_network_as_it_is():
    """Batch norms are folded into convolutions: the same function in the same arithmetic."""
    torch = pytest.importorskip("torch")
    package = pytest.importorskip("efficientnet_lite_pytorch")
    with torch.random.fork_rng(), torch.inference_mode():
        torch.manual_seed(0)
        network = package.EfficientNet.from_name("efficientnet-lite0").eval()
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 2.0)
        images = torch.randn(2, 3, 64, 64)
        before = network.extract_features(images)
        fold_norms(network)
        assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in network.modules())
        torch.testing.assert_close(network.extract_features(images), before, rtol=1e-3, atol=1e-4)


def test_features_are_kept_in_half_precision_and_are_the_same_when_read(data):
    values = np.random.default_rng(0).random((10, 4)).astype(np.float32)
    calls = iter(np.split(values, [3, 6, 7]))
    half = Extractor("half", 1, 3, lambda: lambda rows: next(calls), kind="float16")
    first, again = extract(data, half), extract(data, half)
    assert first.development.x.dtype == np.float32
    assert np.array_equal(first.development.x, values[:7].astype(np.float16).astype(np.float32))
    assert np.array_equal(first.audit.x, again.audit.x)
    assert {np.load(path).dtype for path in files()} == {np.dtype(np.float16)}


class Counted:
    """An extractor that counts its calls."""

    def __init__(self, version=1):
        self.calls = 0
        self.extractor = Extractor("counted", version, 3, lambda: self.compute)

    def compute(self, rows):
        self.calls += 1
        return rows.reshape(len(rows), -1)[:, :4].astype(np.float32)


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("BAYESDP_CACHE", str(tmp_path / "cache"))
    write_images(tmp_path, "mnist", 7, 3)
    return load("mnist", tmp_path)


def files():
    return sorted(feature_cache.folder().iterdir())


def test_features_are_computed_once_for_the_same_rows_and_version(data):
    counted = Counted()
    first = extract(data, counted.extractor)
    assert counted.calls == 4  # three calls for seven rows, one for three
    again = extract(data, counted.extractor)
    assert counted.calls == 4
    assert np.array_equal(first.development.x, again.development.x)
    assert [oct(path.stat().st_mode & 0o777) for path in files()] == ["0o600"] * 2
    newer = Counted(version=2)
    extract(data, newer.extractor)
    assert newer.calls == 4


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "other"])
def test_a_damaged_file_is_computed_again(data, damage):
    counted = Counted()
    good = extract(data, counted.extractor)
    for path in files():
        content = path.read_bytes()
        middle = len(content) - 50
        changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        path.write_bytes({"cut": content[:-40], "changed": changed, "empty": b"", "other": b"text"}[damage])
    again = extract(data, counted.extractor)
    assert counted.calls == 8
    assert np.array_equal(good.development.x, again.development.x)
    extract(data, counted.extractor)
    assert counted.calls == 8


@pytest.mark.parametrize("killed", [False, True])
def test_two_that_compute_the_same_features_at_once(data, killed):
    """A second one overtakes the first in its second thousand rows; the first goes on to its end, or is killed."""
    rows = np.random.default_rng(0).integers(0, 256, (5000, 4), np.uint8)
    called = []

    def compute(part):
        return part / np.float32(7)

    def overtaken(part):
        called.append(part)
        if len(called) == 1500 // 256:
            assert np.array_equal(kept(compute), compute(rows))
        if len(called) == 3000 // 256 and killed:
            raise KeyboardInterrupt
        return compute(part)

    def kept(function):
        return feature_cache.cached_in_parts("name", 1, [rows], function, 256)[0]

    if killed:
        with pytest.raises(KeyboardInterrupt):
            kept(overtaken)
        assert [path.suffix for path in files()] == [".npy", ".parts"]
    else:
        assert np.array_equal(kept(overtaken), compute(rows))
    called.clear()
    assert np.array_equal(kept(overtaken), compute(rows))
    assert not called
    assert [path.suffix for path in files()] == [".npy"]


def test_only_the_owner_may_list_what_is_kept(data, monkeypatch, tmp_path):
    """The names of files and folders have a fingerprint of the rows, which confirms a guess of all of them."""
    rows, modes = np.zeros((3000, 4), np.uint8), []

    def compute(part):
        modes.extend(path.stat().st_mode & 0o777 for path in feature_cache.folder().glob("*.parts"))
        return part.astype(np.float32)

    monkeypatch.setenv("BAYESDP_CACHE", str(tmp_path / "new" / "cache"))
    feature_cache.cached_in_parts("name", 1, [rows], compute, 256)
    assert modes
    assert {oct(mode) for mode in [*modes, feature_cache.folder().stat().st_mode & 0o777]} == {"0o700"}


def test_a_folder_that_cannot_be_written_costs_only_time(data, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("BAYESDP_CACHE", str(tmp_path / "file"))
    counted = Counted()
    assert len(extract(data, counted.extractor).development.x) == 7


def test_a_write_that_fails_leaves_nothing(data, monkeypatch):
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    assert len(extract(data, Counted().extractor).development.x) == 7
    assert files() == []


def test_the_cache_is_where_users_keep_theirs(monkeypatch, tmp_path):
    monkeypatch.delenv("BAYESDP_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert feature_cache.folder() == tmp_path / "bayesdp"


def test_files_are_found_by_names_that_never_change(data):
    rows = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    feature_cache.cached_in_parts("name", 3, [rows], lambda part: np.zeros((len(part), 1), np.float32), 2)
    assert [path.name for path in files()] == ["name-3-cff443d0d9dbfe0c2df1f055f15b499f.npy"]
