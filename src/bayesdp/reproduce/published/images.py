"""The two image models of Table 1, trained as published: on MNIST a small network, on CIFAR-10 the last layer of one.

The authors' network has BatchNorm, which couples the records of a batch. GroupNorm, which does not, stands in its
place, and LayerNorm before the dense layers: without it their outputs grow with the noise in their weights.

Trained models are kept in the folder of the results, with the distances that were seen on the way: the table and the
check for leakage use the same ones, and what is said about them can change without training again.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bayesdp.guarantees.worst_case import epsilon as worst_case
from bayesdp.recipes.checkpoint import read_arrays, write_arrays
from bayesdp.recipes.datasets import Dataset, Rows, load
from bayesdp.recipes.features import EXTRACTORS, extract
from bayesdp.reproduce.experiment import Found, Options
from bayesdp.reproduce.published.accountants import account, best, floor
from bayesdp.reproduce.published.sgd import Distances, PublishedSettings, fit_as_published
from bayesdp.whole_file import made_folder

DELTA = 1e-5
DELTA_MU = 1e-10
_FEW = 128
_WEIGHTS = "network."


@dataclass(frozen=True)
class ImageModel:
    """One row of the table: the data, the network, how it is trained."""

    name: str
    settings: PublishedSettings
    baseline: PublishedSettings
    "Without clipping, noise and mask."
    dataset: Callable[[Options], Dataset]
    network: Callable[[], nn.Module]
    seconds: float
    "About how long training takes on two cores."
    gradient_bound: float | None = None
    "Of a record, where the network itself has one."

    def used_settings(self, options: Options) -> PublishedSettings:
        """Those of the table, or a few steps of them."""
        return _to_try(self.settings) if options.small else self.settings

    def used_baseline(self, options: Options) -> PublishedSettings:
        """The same for the baseline."""
        return _to_try(self.baseline) if options.small else self.baseline

    def kept_at(self, options: Options) -> Path:
        """Where the trained network is kept."""
        return options.folder / "models" / f"{self.name}-seed-{options.seed}{'-small' * options.small}.safetensors"

    def largest_move(self, settings: PublishedSettings) -> float:
        """How far the mean of a batch moves at most if one of its records is another."""
        moves = [2 * settings.clip] if settings.clipped else []
        if self.gradient_bound is not None:
            moves.append(2 * self.gradient_bound / settings.batch)
        return min(moves)

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
        PublishedSettings(epochs=50, batch=1024, sigma=0.1, learning_rate=0.1, mask=0.1, decay=True),
        PublishedSettings(epochs=4, batch=256, sigma=0.0, learning_rate=0.001, adam=True),
        _mnist,
        _network,
        seconds=2000.0,
    ),
    "cifar10": ImageModel(
        "cifar10",
        PublishedSettings(epochs=10, batch=512, sigma=0.8, learning_rate=0.001, clipped=False, adam=True),
        PublishedSettings(epochs=10, batch=512, sigma=0.0, learning_rate=0.001, adam=True),
        _cifar,
        lambda: nn.Linear(1280, 10),
        seconds=900.0,  # nearly all of it for features, which are cached
        # softmax less one-hot is at most sqrt 2 long, a row of features sqrt 1280, and 1 for the bias; rounded up
        gradient_bound=1.0001 * math.sqrt(2 * 1281),
    ),
}


def trained(model: ImageModel, options: Options) -> tuple[nn.Module, Dataset, Found]:
    """The network, trained on all development rows; its data; accuracy on the test set, epsilon after each epoch."""
    dataset, settings = model.dataset(options), model.used_settings(options)
    network, seen, accuracies = _kept(model, dataset, options) or _fit(model, dataset, options)
    both = account(seen, settings, len(dataset.development), model.largest_move(settings), DELTA_MU)
    found = {
        **accuracies,
        "epsilon": both.by_epoch[-1],
        "epsilon_by_epoch": both.by_epoch,
        **floor(both.published, DELTA_MU),
        "epsilon_of_norms": best(both.norms, DELTA_MU),
        **_classic(model, settings, len(dataset.development)),
    }
    return network, dataset, found


def seconds_to_train(options: Options) -> float:
    """About how long the models take that are not kept."""
    return sum(model.seconds for model in MODELS.values() if not model.kept_at(options).exists())


Trained = tuple[nn.Module, Distances, dict[str, float]]
"""A network, the distances seen on the way, accuracies on the test set with privacy and without."""


def _fit(model: ImageModel, dataset: Dataset, options: Options) -> Trained:
    network = _first_weights(model, options.seed)
    inputs, targets = model.tensors(dataset.development)
    settings = model.used_settings(options)
    seen = fit_as_published(network, inputs, targets, settings, seed=options.seed, track=options.track)
    accuracies = {
        "accuracy": accuracy(model, network, dataset.audit),
        "baseline": _baseline(model, dataset, options),
    }
    path = model.kept_at(options)
    made_folder("output", path.parent)
    weights = {f"{_WEIGHTS}{name}": one.numpy() for name, one in network.state_dict().items()}
    about = {"of": _fingerprint(model, dataset, options), "accuracies": accuracies}
    write_arrays(path, {**weights, "pairs": seen.pairs, "moves": seen.moves}, about)
    return network, seen, accuracies


def _kept(model: ImageModel, dataset: Dataset, options: Options) -> Trained | None:
    """What an earlier run has trained, if on the same rows and with the same settings."""
    path = model.kept_at(options)
    if not path.exists():
        return None
    arrays, about = read_arrays(path)
    if about.get("of") != _fingerprint(model, dataset, options):
        return None
    seen = Distances(arrays.pop("pairs"), arrays.pop("moves"))
    network = model.network()
    network.load_state_dict({name.removeprefix(_WEIGHTS): torch.from_numpy(one) for name, one in arrays.items()})
    return network, seen, about["accuracies"]


def _fingerprint(model: ImageModel, dataset: Dataset, options: Options) -> str:
    """Of all that training depends on: rows, settings, layers, first weights."""
    settings = {"private": model.used_settings(options), "baseline": model.used_baseline(options)}
    network = _first_weights(model, options.seed)
    words = [str({name: asdict(one) for name, one in settings.items()}), str(options.seed), str(network)]
    digest = hashlib.sha256("\n".join(words).encode())
    arrays = [one for rows in (dataset.development, dataset.audit) for one in (rows.x, rows.y)]
    for one in [*arrays, *(weights.numpy() for weights in network.state_dict().values())]:
        digest.update(np.ascontiguousarray(one).data)
    return digest.hexdigest()


def accuracy(model: ImageModel, network: nn.Module, rows: Rows) -> float:
    """Of a trained network."""
    inputs, targets = model.tensors(rows)
    with torch.no_grad():
        guessed = torch.cat([network(part).argmax(1) for part in inputs.split(1000)])
    return float((guessed == targets).double().mean())


def _first_weights(model: ImageModel, seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return model.network()


def _baseline(model: ImageModel, dataset: Dataset, options: Options) -> float:
    network = _first_weights(model, options.seed)
    settings = model.used_baseline(options)
    inputs, targets = model.tensors(dataset.development)
    fit_as_published(network, inputs, targets, settings, seed=options.seed, private=False, track=options.track)
    return accuracy(model, network, dataset.audit)


def _classic(model: ImageModel, settings: PublishedSettings, rows: int) -> dict[str, Any]:
    """Classic DP of this mechanism, and had each record been clipped.

    Batches are shuffled, so a record is in one of them in each epoch at most, without amplification by sampling. One
    record is another; that covers also one that is taken away and replaced by one that had been dropped with the
    incomplete batch. Had each record been clipped, it adds at most C/B to the mean, or nothing (zero-out).
    """

    def epsilon(noise_multiplier: float, sample_rate: float, steps: int) -> float:
        return worst_case(noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=steps, delta=DELTA).epsilon

    clipped, steps = settings.sigma * settings.batch, settings.steps(rows)
    return {
        "steps": steps,
        "sample_rate": settings.sample_rate(rows),
        "worst_case": epsilon(settings.noise_std / model.largest_move(settings), 1.0, settings.epochs),
        "worst_case_if_records_were_clipped": epsilon(clipped, 1.0, settings.epochs),
        "and_batches_poisson_samples": epsilon(clipped, settings.sample_rate(rows), steps),
    }
