"""Figure 2: do distances between gradients tell who was trained on?

After training as published, distances |g_i - g_j| of pairs of training records are compared with those of pairs of test
records: histograms, a t-test for their means, Levene's test for their variances. The pairs are independent: no record
is in two of them. Beside the tests stands what an attacker could do with a distance: the probability that a pair of
training records has the smaller one (AUC).

As published, distances are between clipped mean gradients of a batch without one record, for all pairs of 100 records
in each of 8 or 10 batches: far fewer independent ones than the tests take them for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import nn

from bayesdp.recipes.datasets import Dataset, Rows
from bayesdp.reproduce.experiment import DATA_SETS, ExperimentOptions, Result, Verdict, rounded
from bayesdp.reproduce.published.images import MODELS, ImageModel, trained
from bayesdp.reproduce.published.sgd import distances, mean_gradient, random_mask
from bayesdp.validation import FloatArray

TITLE = "Leakage through distances between gradients (Figure 2)"
SECONDS = 240.0
_PAIRS = 4000
_PUBLISHED_BATCHES, _PUBLISHED_RECORDS = {"mnist": 8, "cifar10": 10}, 100
_CONTROLS = 6
_BINS = 40
_TESTS = ("t_test", "levene")


def compute(options: ExperimentOptions) -> Result:
    """Return histograms, p-values and the AUC for MNIST and CIFAR-10, by independent pairs and as published.

    A trial has ten pairs of each kind.
    """
    pairs = 10 if options.small else _PAIRS
    panels = [_panel(model, pairs, options) for model in MODELS.values()]
    return {"settings": {"seed": options.seed, "pairs": pairs}, "panels": panels}


def _panel(model: ImageModel, pairs: int, options: ExperimentOptions) -> dict[str, Any]:
    run = trained(model, options)
    rng = np.random.default_rng([options.seed, 2])
    members, others = (
        _pair_distances(model, run.network, rows, pairs, rng, options)
        for rows in (run.dataset.development, run.dataset.audit)
    )
    edges = np.histogram_bin_edges(np.concatenate([members, others]), _BINS)
    area, error = auc(members, others)
    return {
        "name": model.name,
        "accuracy": run.accuracies["accuracy"],
        "edges": rounded(edges, 5),
        "members": np.histogram(members, edges)[0].tolist(),
        "others": np.histogram(others, edges)[0].tolist(),
        "mean_members": float(members.mean()),
        "mean_others": float(others.mean()),
        **_tests(members, others, equal_var=False),
        "auc": area,
        "auc_error": error,
        "as_published": _as_published(model, run.network, run.dataset, options),
    }


def _as_published(
    model: ImageModel, network: nn.Module, dataset: Dataset, options: ExperimentOptions
) -> dict[str, Any]:
    """Return the authors' tests, and as controls the same tests with further training batches for the test set."""
    batches, controls = (1, 1) if options.small else (_PUBLISHED_BATCHES[model.name], _CONTROLS)

    def distances_of(rows: Rows, part: int) -> FloatArray:
        return _published_distances(model, network, rows, range(part * batches, (part + 1) * batches), options)

    members, others = distances_of(dataset.development, 0), distances_of(dataset.audit, 0)
    further = (distances_of(dataset.development, part) for part in range(1, controls + 1))
    return {
        "pairs": len(members),
        **_tests(members, others, equal_var=True),
        "controls": [_tests(members, control, equal_var=True) for control in further],
    }


def _tests(members: FloatArray, others: FloatArray, *, equal_var: bool) -> dict[str, float]:
    """Return p-values of Levene's test and of Student's t-test, or Welch's if variances may differ."""
    means, variances = stats.ttest_ind(members, others, equal_var=equal_var), stats.levene(members, others)
    return {"t_test": float(means.pvalue), "levene": float(variances.pvalue)}


def _published_distances(
    model: ImageModel, network: nn.Module, rows: Rows, batches: range, options: ExperimentOptions
) -> FloatArray:
    """Return distances between mean gradients of a batch without one record; clipped, even where training is not."""
    settings = replace(model.settings_for(options), clipped=True)
    generator = torch.Generator().manual_seed(options.seed)
    size, left_out = settings.batch, 10 if options.small else _PUBLISHED_RECORDS
    order = torch.randperm(len(rows), generator=generator).numpy()
    parts: list[FloatArray] = []
    for number in options.track(batches):
        inputs, targets = model.tensors(rows.take(order[number * size : (number + 1) * size]))
        mean = mean_gradient(network, inputs, targets)
        mask = random_mask(mean, settings, generator)
        parts.append(distances(network, inputs[:left_out], targets[:left_out], mean, mask, settings)[0])
    return np.concatenate(parts)


def _pair_distances(
    model: ImageModel, network: nn.Module, rows: Rows, pairs: int, rng: np.random.Generator, options: ExperimentOptions
) -> FloatArray:
    """Return distances between the gradients of two records, [pairs], with no record in two pairs.

    Each is the norm of one gradient, that of the difference of the two losses.
    """
    inputs, targets = model.tensors(rows.take(rng.permutation(len(rows))[: 2 * pairs]))
    parameters = list(network.parameters())
    norms = np.empty(pairs)
    for pair in options.track(range(pairs)):
        here = slice(2 * pair, 2 * pair + 2)
        losses = nn.functional.cross_entropy(network(inputs[here]), targets[here], reduction="none")
        parts = torch.autograd.grad(losses[0] - losses[1], parameters)
        norms[pair] = sum(float(part.double().square().sum()) for part in parts) ** 0.5
    return norms


def auc(members: FloatArray, others: FloatArray) -> tuple[float, float]:
    """Return the probability that one of ``members`` is below one of ``others``, and its standard error.

    Ties count one half. The error is DeLong's, but at least 1/n for the smaller sample of size n: DeLong's is 0 where
    the samples do not overlap, which n values cannot support.
    """
    ranked_others, ranked_members = np.sort(others), np.sort(members)

    def share_above(values: FloatArray, ranked: FloatArray) -> FloatArray:
        low, high = np.searchsorted(ranked, values, "left"), np.searchsorted(ranked, values, "right")
        return 1 - (low + high) / (2 * len(ranked))

    by_member, by_other = share_above(members, ranked_others), 1 - share_above(others, ranked_members)
    error = np.sqrt(by_member.var(ddof=1) / len(members) + by_other.var(ddof=1) / len(others))
    return float(by_member.mean()), max(float(error), 1 / min(len(members), len(others)))


def draw(result: Result, figure: Any) -> None:
    """Draw the histograms of training and test set on top of each other, a panel for each data set."""
    axes = figure.subplots(1, len(result["panels"]))
    for axis, panel in zip(axes, result["panels"], strict=True):
        for name, label in (("members", "training set"), ("others", "test set")):
            axis.stairs(panel[name], panel["edges"], fill=True, alpha=0.5, label=label)
        axis.set_title(DATA_SETS[panel["name"]], fontsize=9)
        axis.set_xlabel("distance between two gradients")
        axis.set_yscale("symlog")
    axes[0].set_ylabel("pairs")
    axes[0].legend(fontsize=8)


def template_values(result: Result) -> dict[str, Any]:
    """Return the lines of the table of tests and AUCs."""
    lines = [
        [
            DATA_SETS[panel["name"]],
            *(panel["as_published"][test] for test in _TESTS),
            "{} of {}".format(*_rejected_controls(panel)),
            *(panel[name] for name in ("mean_members", "mean_others", *_TESTS)),
            f"{panel['auc']:.3f}",
            "{:.3f} to {:.3f}".format(*_auc_interval(panel)),
        ]
        for panel in result["panels"]
    ]
    return {"lines": lines}


def verdicts(result: Result) -> list[Verdict]:
    """Judge whether distances differ between training and test set, by both tests on both data sets."""
    panels = result["panels"]
    values = _p_values(panels)
    published = _p_values(panel["as_published"] for panel in panels)
    controls = np.sum([_rejected_controls(panel) for panel in panels], axis=0)
    alike = len(values) * min(values) > 0.05
    areas = " and ".join(
        "{:.3f} ({:.3f} to {:.3f}) on {}".format(panel["auc"], *_auc_interval(panel), DATA_SETS[panel["name"]])
        for panel in panels
    )
    on_alike = "That no difference is significant proves nothing, though. " if alike else ""
    return [
        Verdict(
            says="Training and test set do not differ in distances between gradients (t-test, Levene: p over 0.05).",
            as_published=min(published) > 0.05,
            accounted_right=alike,
            why=f"With {result['settings']['pairs']} independent pairs from each set, the smallest of {len(values)} "
            f"p-values is {min(values):.2g}. {on_alike}As published, the smallest is {min(published):.1g}; but when "
            f"the same tests compare parts of the training set with each other, {controls[0]} of {controls[1]} have p "
            "below 0.05, because pairs that share a record or a batch are not independent. Guessing by one distance "
            f"has an AUC of {areas}; 0.5 is a coin toss.",
        )
    ]


def _p_values(panels: Iterable[dict[str, Any]]) -> list[float]:
    return [panel[test] for panel in panels for test in _TESTS]


def _rejected_controls(panel: dict[str, Any]) -> tuple[int, int]:
    """Return how many tests of the controls have p below 0.05, and how many there are."""
    values = _p_values(panel["as_published"]["controls"])
    return sum(value < 0.05 for value in values), len(values)


def _auc_interval(panel: dict[str, Any]) -> tuple[float, float]:
    """Return the 95 % interval around the AUC, within 0 and 1."""
    half = 1.96 * panel["auc_error"]
    return max(0.0, panel["auc"] - half), min(1.0, panel["auc"] + half)
