"""The two image models of Table 1, trained as published: on MNIST a small network, on CIFAR-10 the last layer of one.

The authors' network has BatchNorm, which couples the records of a batch. GroupNorm, which does not, stands in its
place, and LayerNorm before the dense layers: without it their outputs grow with the noise in their weights.

Trained models are kept in the folder of the results: the table and the check for leakage use the same ones.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bayesdp.recipes.checkpoint import read_arrays, write_arrays
from bayesdp.recipes.datasets import Dataset, Rows, load
from bayesdp.recipes.features import EXTRACTORS, extract
from bayesdp.reproduce.experiment import Found, Options
from bayesdp.reproduce.published_accounting import best, floor
from bayesdp.reproduce.published_sgd import PublishedSettings, fit_as_published
from bayesdp.whole_file import made_folder
from bayesdp.worst_case import epsilon as worst_case

DELTA = 1e-5
DELTA_MU = 1e-10
_FEW = 128
_FORMAT = 2  # of the kept models; raised when what is found about them changes


@dataclass(frozen=True)
class ImageModel:
    """One row of the table: the data, the network, how it is trained."""

    name: str
    settings: PublishedSettings
    baseline: PublishedSettings
    "Without clipping, noise and mask."
    dataset: Callable[[Options], Dataset]
    network: Callable[[], nn.Module]
    gradient_bound: float | None = None
    "Of a record, where the network itself has one."

    def used_settings(self, options: Options) -> PublishedSettings:
        """Those of the table, or a few steps of them."""
        return _to_try(self.settings) if options.small else self.settings

    def tensors(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs as the network takes them, and classes."""
        return torch.from_numpy(np.asarray(rows.x, np.float32)), torch.from_numpy(np.asarray(rows.y, np.int64))


def _mnist(options: Options) -> Dataset:
    dataset = load("mnist", options.data)
    return _few(dataset.with_features(_centred), options)


def _centred(images: NDArray[Any]) -> NDArray[np.float32]:
    """Pixels from 0 to 255 with mean about 0 and variance about 1, by constants that everyone knows."""
    return ((images.reshape(-1, 1, 28, 28) / 255.0 - 0.13) / 0.31).astype(np.float32)


def _cifar(options: Options) -> Dataset:
    dataset = _few(load("cifar10", options.data), options)
    features = extract(dataset, EXTRACTORS["efficientnet-lite0"], options.track)
    return features.with_features(lambda x: x * np.float32(np.sqrt(x.shape[1])))  # mean square 1, as networks have it


def _few(dataset: Dataset, options: Options) -> Dataset:
    """The first rows of each kind, if it is only to try."""
    if not options.small:
        return dataset
    first = np.arange(_FEW)
    return replace(
        dataset,
        development=dataset.development.take(first[: len(dataset.development)]),
        audit=dataset.audit.take(first[: len(dataset.audit)]),
        held_out=first[:1],
    )


def _to_try(settings: PublishedSettings) -> PublishedSettings:
    return replace(settings, epochs=1, batch=_FEW // 8)


def _network() -> nn.Module:
    """Of the TensorFlow tutorial: two convolutions of 64 filters, dense layers of 384 and 192."""

    def plain_norm(features: int) -> nn.Module:
        return nn.LayerNorm(features, elementwise_affine=False)

    network = nn.Sequential(
        nn.Conv2d(1, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.GroupNorm(8, 64),
        nn.Conv2d(64, 64, 5),
        nn.ReLU(),
        nn.GroupNorm(8, 64),
        nn.MaxPool2d(2),
        nn.Flatten(),
        plain_norm(1024),
        nn.Linear(1024, 384),
        nn.SELU(),
        plain_norm(384),
        nn.Linear(384, 192),
        nn.SELU(),
        plain_norm(192),
        nn.Linear(192, 10),
    )
    for layer in network:
        if isinstance(layer, nn.Conv2d | nn.Linear):  # so that signals keep their size from layer to layer
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu" if isinstance(layer, nn.Conv2d) else "linear")
            nn.init.zeros_(cast(torch.Tensor, layer.bias))
    return network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


MODELS = {
    "mnist": ImageModel(
        "mnist",
        PublishedSettings(epochs=40, batch=1024, sigma=0.1, learning_rate=0.1, mask=0.1, decay=True),
        PublishedSettings(epochs=4, batch=256, sigma=0.0, learning_rate=0.001, adam=True),
        _mnist,
        _network,
    ),
    "cifar10": ImageModel(
        "cifar10",
        PublishedSettings(epochs=10, batch=512, sigma=0.8, learning_rate=0.001, clipped=False, adam=True),
        PublishedSettings(epochs=10, batch=512, sigma=0.0, learning_rate=0.001, adam=True),
        _cifar,
        lambda: nn.Linear(1280, 10),
        # softmax less one-hot is at most sqrt 2 long, a row of features sqrt 1280, and 1 for the bias; rounded up
        gradient_bound=1.0001 * math.sqrt(2 * 1281),
    ),
}


def trained(model: ImageModel, options: Options) -> tuple[nn.Module, Dataset, Found]:
    """The network, trained on all development rows; its data; accuracy on the test set, epsilon after each epoch."""
    dataset = model.dataset(options)
    settings = model.used_settings(options)
    path = made_folder("output", options.folder / "models") / f"{model.name}-seed-{options.seed}.safetensors"
    network = _first_weights(model, options.seed)
    inputs, targets = model.tensors(dataset.development)
    about = {
        "settings": asdict(settings),
        "seed": options.seed,
        "rows": len(inputs),
        "inputs": float(inputs.double().sum()),
        "first_weights": _digest(network),
        "format": _FORMAT,
    }
    if path.exists():
        arrays, kept = read_arrays(path)
        if kept["about"] == about:
            network.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
            return network, dataset, kept["found"]
    epsilons: list[float] = []
    both = fit_as_published(
        network,
        inputs,
        targets,
        settings,
        seed=options.seed,
        after_epoch=lambda _, now: epsilons.append(best(now.published, DELTA_MU)),
        track=options.track,
    )
    found = {
        "accuracy": accuracy(model, network, dataset.audit),
        "baseline": _baseline(model, dataset, options),
        "epsilon": epsilons[-1],
        "epsilon_by_epoch": epsilons,
        **floor(both.published, DELTA_MU),
        "epsilon_of_norms": best(both.norms, DELTA_MU),
        **_classic(model, settings, len(inputs)),
    }
    write_arrays(
        path, {name: one.numpy() for name, one in network.state_dict().items()}, {"about": about, "found": found}
    )
    return network, dataset, found


def accuracy(model: ImageModel, network: nn.Module, rows: Rows) -> float:
    """Of a trained network."""
    inputs, targets = model.tensors(rows)
    with torch.no_grad():
        guessed = torch.cat([network(part).argmax(1) for part in inputs.split(1000)])
    return float((guessed == targets).double().mean())


def _digest(network: nn.Module) -> str:
    """Of the layers and their weights: another network is trained anew."""
    digest = hashlib.sha256(str(network).encode())
    for one in network.state_dict().values():
        digest.update(one.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _first_weights(model: ImageModel, seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return model.network()


def _baseline(model: ImageModel, dataset: Dataset, options: Options) -> float:
    network = _first_weights(model, options.seed)
    settings = _to_try(model.baseline) if options.small else model.baseline
    inputs, targets = model.tensors(dataset.development)
    fit_as_published(network, inputs, targets, settings, seed=options.seed, private=False, track=options.track)
    return accuracy(model, network, dataset.audit)


def _classic(model: ImageModel, settings: PublishedSettings, rows: int) -> dict[str, Any]:
    """Classic DP of this mechanism, and had each record been clipped. Batches are shuffled: a record is in one of them
    in each epoch, without amplification by sampling."""

    def epsilon(noise_multiplier: float, sample_rate: float, steps: int) -> float:
        return worst_case(noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=steps, delta=DELTA).epsilon

    # a record moves the mean of its batch by a part of its gradient; or a clipped mean by twice the clip at most
    moves = [2 * settings.clip] if settings.clipped else []
    if model.gradient_bound is not None:
        moves.append(model.gradient_bound / settings.batch)
    clipped = settings.sigma * settings.batch
    steps = settings.steps(rows)
    return {
        "steps": steps,
        "sample_rate": settings.sample_rate(rows),
        "worst_case": epsilon(settings.noise_std / min(moves), 1.0, settings.epochs) if moves else None,
        "worst_case_if_records_were_clipped": epsilon(clipped, 1.0, settings.epochs),
        "and_batches_poisson_samples": epsilon(clipped, settings.sample_rate(rows), steps),
    }
