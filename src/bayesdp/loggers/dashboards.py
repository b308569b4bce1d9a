"""Where figures, words and files about a run go: a TensorBoard writer, or a run of MLflow or Weights & Biases.

The user's own object is recognised by its class, so no client is imported that is not in use already.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from bayesdp.validation import refuse

_EXPECTED = "a SummaryWriter of TensorBoard, the run of mlflow.start_run() or the run of wandb.init()"


class Dashboard(Protocol):
    """A place that takes figures against steps, words and files."""

    def figures(self, step: int, figures: Mapping[str, float]) -> None:
        """Add a point to each of the named curves."""
        ...

    def words(self, name: str, text: str) -> None:
        """Keep a text under a name."""
        ...

    def file(self, path: Path) -> None:
        """Keep a copy of a file under its own name."""
        ...


class TensorBoard:
    """A ``torch.utils.tensorboard.SummaryWriter``; files are copied into its folder, as TensorBoard keeps none."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def figures(self, step: int, figures: Mapping[str, float]) -> None:
        """Add scalars."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def words(self, name: str, text: str) -> None:
        """Add a text, whose lines TensorBoard would otherwise join."""
        self._writer.add_text(name, "\n".join(f"    {line}" for line in text.splitlines()))
        self._writer.flush()

    def file(self, path: Path) -> None:
        """Copy a file into the folder of the writer."""
        shutil.copyfile(path, Path(self._writer.log_dir) / path.name)


class MLflow:
    """A run of MLflow, in the store where the user's program has it."""

    def __init__(self, run: Any) -> None:
        from mlflow import MlflowClient

        self._client: Any = MlflowClient()
        self._run: str = run.info.run_id

    def figures(self, step: int, figures: Mapping[str, float]) -> None:
        """Log metrics."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in figures.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def words(self, name: str, text: str) -> None:
        """Log a text as an artifact."""
        self._client.log_text(self._run, text, f"{name}.txt")

    def file(self, path: Path) -> None:
        """Log an artifact."""
        self._client.log_artifact(self._run, str(path))


class WeightsAndBiases:
    """A run of Weights & Biases. The curves have a step of their own, and the user's steps stay as they are."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._row = -1
        "The row of the run's history that has our last point."
        run.define_metric("privacy_step", hidden=True)
        run.define_metric("epsilon*", step_metric="privacy_step")

    def figures(self, step: int, figures: Mapping[str, float]) -> None:
        """Add a point to the row that the user's program is writing; to a new one if that row has a point already."""
        if self._run.step == self._row:
            self._run.log({}, commit=True)
        self._row = self._run.step
        self._run.log({"privacy_step": step, **figures}, commit=False)

    def words(self, name: str, text: str) -> None:
        """Keep a text in the summary of the run."""
        self._run.summary[name] = text

    def file(self, path: Path) -> None:
        """Log an artifact that is named after the file."""
        self._run.log_artifact(str(path), name=path.name, type="privacy report")


_DASHBOARDS: tuple[tuple[str, str, type[Any]], ...] = (
    ("torch.utils.tensorboard", "SummaryWriter", TensorBoard),
    ("tensorboardX", "SummaryWriter", TensorBoard),
    ("mlflow", "Run", MLflow),
    ("mlflow", "ActiveRun", MLflow),
    ("wandb", "Run", WeightsAndBiases),
)
"""Library, class, and what writes to an object of that class or of a subclass."""


def dashboard(log: Any) -> Dashboard:
    """Return the dashboard behind an object of the user's: a writer of TensorBoard, a run of MLflow or of wandb.

    Raises InvalidInputError for anything else.
    """
    for library, name, kind in _DASHBOARDS:
        for cls in type(log).__mro__:
            if cls.__name__ == name and f"{cls.__module__}.".startswith(f"{library}."):
                return kind(log)
    raise refuse("log", type(log).__name__, _EXPECTED)
