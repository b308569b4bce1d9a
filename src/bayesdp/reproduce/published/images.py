"""The two image models of Table 1, trained as published: on MNIST a small network, on CIFAR-10 the last layer of one.

The authors' network has BatchNorm, which couples the records of a batch. GroupNorm, which does not, replaces it, with
LayerNorm before the dense layers: without it their outputs grow with the noise in their weights.

Trained models are kept in the folder of the results, with the distances that were seen on the way: the table and the
check for leakage use the same ones, and what is said about them can change without training again.
"""

from __future__ import annotations

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
from bayesdp.recipes.datasets import Dataset, Rows, fingerprint, load
from bayesdp.recipes.features import EXTRACTORS, extract
from bayesdp.reproduce.experiment import ExperimentOptions, Result
from bayesdp.reproduce.published.accountants import account_run, best_epsilon, epsilon_floor
from bayesdp.reproduce.published.sgd import Distances, PublishedSettings, fit_as_published
from bayesdp.whole_file import made_folder

DELTA = 1e-5
DELTA_MU = 1e-10
_TRIAL_RECORDS = 128
_WEIGHTS = "network."


@dataclass(frozen=True)
class ImageModel:
    """One line of the table: the data, the network, how it is trained."""

    name: str
    settings: PublishedSettings
    baseline: PublishedSettings
    "Settings without clipping, noise and mask."
    dataset: Callable[[ExperimentOptions], Dataset]
    network: Callable[[], nn.Module]
    "Returns a network that is not trained yet."
    seconds: float
    "About how long training takes on two cores."
    gradient_bound: float | None = None
    "The largest norm that a record's gradient can have, where network and features imply one."

    def settings_for(self, options: ExperimentOptions) -> PublishedSettings:
        """Return the settings of the table, or those of a trial."""
        return _for_trial(self.settings) if options.small else self.settings

    def baseline_for(self, options: ExperimentOptions) -> PublishedSettings:
        """Return the settings of the baseline, or those of a trial."""
        return _for_trial(self.baseline) if options.small else self.baseline

    def path(self, options: ExperimentOptions) -> Path:
        """Return where the trained model is kept."""
        return options.folder / "models" / f"{self.name}-seed-{options.seed}{'-small' * options.small}.safetensors"

    def largest_move(self, settings: PublishedSettings) -> float:
        """Return how far the mean of a batch can move if one of its records is replaced by another."""
        moves = [2 * settings.clip] if settings.clipped else []
        if self.gradient_bound is not None:
            moves.append(2 * self.gradient_bound / settings.batch)
        return min(moves)

    def tensors(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs as the network takes them, [n, ...], and classes, [n]."""
        return torch.from_numpy(np.asarray(rows.x, np.float32)), torch.from_numpy(np.asarray(rows.y, np.int64))


def _mnist(options: ExperimentOptions) -> Dataset:
    dataset = load("mnist", options.data)
    return _first_records(dataset.with_features(_centred), options)


def _centred(images: NDArray[Any]) -> NDArray[np.float32]:
    """Scale pixels from 0 to 255 to mean about 0 and variance about 1, by constants that everyone knows."""
    return ((images.reshape(-1, 1, 28, 28) / 255.0 - 0.13) / 0.31).astype(np.float32)


def _cifar(options: ExperimentOptions) -> Dataset:
    dataset = _first_records(load("cifar10", options.data), options)
    features = extract(dataset, EXTRACTORS["efficientnet-lite0"], options.track)
    return features.with_features(lambda x: x * np.float32(np.sqrt(x.shape[1])))  # mean square 1, as networks have it


def _first_records(dataset: Dataset, options: ExperimentOptions) -> Dataset:
    """Return the data set; for a trial only its first records of each kind."""
    if not options.small:
        return dataset
    first = np.arange(_TRIAL_RECORDS)
    return replace(
        dataset,
        development=dataset.development.take(first[: len(dataset.development)]),
        audit=dataset.audit.take(first[: len(dataset.audit)]),
        held_out=first[:1],
    )


def _for_trial(settings: PublishedSettings) -> PublishedSettings:
    return replace(settings, epochs=1, batch=_TRIAL_RECORDS // 8)


def _network() -> nn.Module:
    """Return the network of the TensorFlow tutorial: two convolutions of 64 filters, dense layers of 384 and 192."""

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


@dataclass(frozen=True)
class TrainedModel:
    """A network trained on all development records, its data, and what was seen on the way."""

    network: nn.Module
    dataset: Dataset
    distances: Distances
    accuracies: dict[str, float]
    "On the test set: ``accuracy`` with privacy and ``baseline`` without."


def trained(model: ImageModel, options: ExperimentOptions) -> TrainedModel:
    """Return the trained model: the one that an earlier run has kept, else trained now, and kept.

    A kept model is used only if data, settings, layers and initial weights are the same. Raises InvalidInputError if
    its file is damaged.
    """
    dataset = model.dataset(options)
    return _read_kept(model, dataset, options) or _train(model, dataset, options)


def published_figures(model: ImageModel, options: ExperimentOptions) -> Result:
    """Return a line of the table: accuracies, epsilon as published and by norms, classic DP of the same mechanism."""
    run, settings = trained(model, options), model.settings_for(options)
    records = len(run.dataset.development)
    accountants = account_run(run.distances, settings, records, model.largest_move(settings), DELTA_MU)
    return {
        **run.accuracies,
        "epsilon": accountants.epsilon_by_epoch[-1],
        "epsilon_by_epoch": accountants.epsilon_by_epoch,
        **epsilon_floor(accountants.published, DELTA_MU),
        "epsilon_of_norms": best_epsilon(accountants.norms, DELTA_MU),
        **_classic(model, settings, records),
    }


def seconds_to_train(options: ExperimentOptions) -> float:
    """Return about how long it takes to train the models that are not kept yet."""
    return sum(model.seconds for model in MODELS.values() if not model.path(options).exists())


def _train(model: ImageModel, dataset: Dataset, options: ExperimentOptions) -> TrainedModel:
    network = _untrained(model, options.seed)
    inputs, targets = model.tensors(dataset.development)
    settings = model.settings_for(options)
    distances = fit_as_published(network, inputs, targets, settings, seed=options.seed, track=options.track)
    accuracies = {
        "accuracy": accuracy(model, network, dataset.audit),
        "baseline": _baseline(model, dataset, options),
    }
    path = model.path(options)
    made_folder("output", path.parent)
    weights = {f"{_WEIGHTS}{name}": tensor.numpy() for name, tensor in network.state_dict().items()}
    about = {"of": _fingerprint(model, dataset, options), "accuracies": accuracies}
    write_arrays(path, {**weights, "pairs": distances.pairs, "moves": distances.moves}, about)
    return TrainedModel(network, dataset, distances, accuracies)


def _read_kept(model: ImageModel, dataset: Dataset, options: ExperimentOptions) -> TrainedModel | None:
    """Return what an earlier run has kept, or None if there is nothing or it was trained on something else."""
    path = model.path(options)
    if not path.exists():
        return None
    arrays, about = read_arrays(path)
    if about.get("of") != _fingerprint(model, dataset, options):
        return None
    distances = Distances(arrays.pop("pairs"), arrays.pop("moves"))
    network = model.network()
    network.load_state_dict({name.removeprefix(_WEIGHTS): torch.from_numpy(array) for name, array in arrays.items()})
    return TrainedModel(network, dataset, distances, about["accuracies"])


def _fingerprint(model: ImageModel, dataset: Dataset, options: ExperimentOptions) -> str:
    """Return a hash of everything that training depends on: records, settings, seed, layers, initial weights."""
    settings = {"private": asdict(model.settings_for(options)), "baseline": asdict(model.baseline_for(options))}
    network = _untrained(model, options.seed)
    weights = [tensor.numpy() for tensor in network.state_dict().values()]
    return fingerprint([*dataset.arrays(), *weights], about="\n".join(map(str, (settings, options.seed, network))))


def accuracy(model: ImageModel, network: nn.Module, rows: Rows) -> float:
    """Return the part of the rows that a trained network classifies correctly."""
    inputs, targets = model.tensors(rows)
    with torch.no_grad():
        guessed = torch.cat([network(part).argmax(1) for part in inputs.split(1000)])
    return float((guessed == targets).double().mean())


def _untrained(model: ImageModel, seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return model.network()


def _baseline(model: ImageModel, dataset: Dataset, options: ExperimentOptions) -> float:
    network = _untrained(model, options.seed)
    settings = model.baseline_for(options)
    inputs, targets = model.tensors(dataset.development)
    fit_as_published(network, inputs, targets, settings, seed=options.seed, private=False, track=options.track)
    return accuracy(model, network, dataset.audit)


def _classic(model: ImageModel, settings: PublishedSettings, records: int) -> dict[str, Any]:
    """Return classic DP of this mechanism, and what it would be had each record been clipped.

    Batches are shuffled, so a record is in at most one of them in each epoch, without amplification by sampling. One
    record is replaced by another; that also covers a record that is removed and replaced by one that had been dropped
    with the incomplete batch. Had each record been clipped, it would add at most C/B to the mean, or nothing
    (zero-out).
    """

    def epsilon(noise_multiplier: float, sample_rate: float, steps: int) -> float:
        return worst_case(noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=steps, delta=DELTA).epsilon

    clipped, steps = settings.sigma * settings.batch, settings.steps(records)
    return {
        "steps": steps,
        "sample_rate": settings.sample_rate(records),
        "worst_case": epsilon(settings.noise_std / model.largest_move(settings), 1.0, settings.epochs),
        "worst_case_if_records_were_clipped": epsilon(clipped, 1.0, settings.epochs),
        "and_batches_poisson_samples": epsilon(clipped, settings.sample_rate(records), steps),
    }
