"""What other callbacks of a trainer will do: choose by the results of validation, search for settings, accumulate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def choosers(trainer: Any) -> list[str]:
    """Return the names of callbacks and schedules that go by a metric, unless it is named as one of training."""
    found = [(type(each).__name__, getattr(each, "monitor", None)) for each in trainer.callbacks]
    for config in trainer.lr_scheduler_configs:
        if config.reduce_on_plateau:
            found.append((type(config.scheduler).__name__, config.monitor))
    return [name for name, metric in found if isinstance(metric, str) and not metric.startswith("train")]


def searches(trainer: Any) -> list[str]:
    """Return the names of callbacks that train the model, without noise, to find a setting."""
    names = [cls.__name__ for each in trainer.callbacks for cls in type(each).__mro__]
    return [name for name in names if name in ("LearningRateFinder", "BatchSizeFinder")]


def most_accumulated(trainer: Any) -> int:
    """Return how many batches will be accumulated for a step at most."""
    planned = [getattr(each, "scheduling", None) for each in trainer.callbacks]
    later = [most for each in planned if isinstance(each, dict) for most in each.values() if isinstance(most, int)]
    return max([trainer.accumulate_grad_batches, *later])


def validation_data(trainer: Any) -> Iterator[Any]:
    """Yield the data sets of the loaders that ``fit`` validates on, as far as they are known."""
    if trainer.enable_validation:
        loaders = trainer.fit_loop.epoch_loop.val_loop._data_source.dataloader()
        yield from (each.dataset for each in _loaders(loaders) if hasattr(each, "dataset"))


def _loaders(loaders: Any) -> Iterator[Any]:
    whole = getattr(loaders, "flattened", loaders)  # that of a CombinedLoader
    if isinstance(whole, Mapping):
        whole = list(whole.values())
    if isinstance(whole, list | tuple):
        for each in whole:
            yield from _loaders(each)
    else:
        yield whole
