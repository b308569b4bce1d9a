"""Figure 2: do distances between gradients tell who was trained on?

After training as published, distances |g_i - g_j| of pairs of training records and of pairs of test records:
histograms, a t-test for their means, Levene's test for their variances. All pairs are independent: no record is in two.
And what an attacker could do with them: the probability that a pair of training records has the smaller distance (AUC).
As published, distances are between mean gradients of a batch without one record, clipped, of all pairs of 100 records
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
from bayesdp.reproduce.experiment import Found, Options, Verdict, short, table
from bayesdp.reproduce.published.images import MODELS, ImageModel, trained
from bayesdp.reproduce.published.sgd import distances, mean_gradient, random_mask
from bayesdp.reproduce.table1_story import NAMES
from bayesdp.validation import FloatArray

TITLE = "Leakage through distances of gradients (Figure 2)"
SECONDS = 240.0
_PAIRS = 4000
_PUBLISHED_BATCHES, _PUBLISHED_RECORDS = {"mnist": 8, "cifar10": 10}, 100
_CONTROLS = 6
_BINS = 40
_TESTS = ("t_test", "levene")


def compute(options: Options) -> Found:
    """Both data sets."""
    pairs = 10 if options.small else _PAIRS
    panels = [_panel(model, pairs, options) for model in MODELS.values()]
    return {"settings": {"seed": options.seed, "pairs": pairs}, "panels": panels}


def _panel(model: ImageModel, pairs: int, options: Options) -> dict[str, Any]:
    network, dataset, found = trained(model, options)
    rng = np.random.default_rng([options.seed, 2])
    members, others = (
        _distances(model, network, rows, pairs, rng, options) for rows in (dataset.development, dataset.audit)
    )
    edges = np.histogram_bin_edges(np.concatenate([members, others]), _BINS)
    area, error = smaller(members, others)
    return {
        "name": model.name,
        "accuracy": found["accuracy"],
        "edges": short(edges, 5),
        "members": np.histogram(members, edges)[0].tolist(),
        "others": np.histogram(others, edges)[0].tolist(),
        "mean_members": float(members.mean()),
        "mean_others": float(others.mean()),
        **_tests(members, others, equal_var=False),
        "auc": area,
        "auc_error": error,
        "as_published": _as_published(model, network, dataset, options),
    }


def _as_published(model: ImageModel, network: nn.Module, dataset: Dataset, options: Options) -> dict[str, Any]:
    """The authors' tests; and as controls the same with further training batches in the place of the test set."""
    batches, controls = (1, 1) if options.small else (_PUBLISHED_BATCHES[model.name], _CONTROLS)

    def distances_of(rows: Rows, part: int) -> FloatArray:
        return _published_distances(model, network, rows, range(part * batches, (part + 1) * batches), options)

    members, others = distances_of(dataset.development, 0), distances_of(dataset.audit, 0)
    more = (distances_of(dataset.development, part) for part in range(1, controls + 1))
    return {
        "pairs": len(members),
        **_tests(members, others, equal_var=True),
        "controls": [_tests(members, one, equal_var=True) for one in more],
    }


def _tests(members: FloatArray, others: FloatArray, *, equal_var: bool) -> dict[str, float]:
    """Student's t-test, or Welch's if variances may differ."""
    means, variances = stats.ttest_ind(members, others, equal_var=equal_var), stats.levene(members, others)
    return {"t_test": float(means.pvalue), "levene": float(variances.pvalue)}


def _published_distances(
    model: ImageModel, network: nn.Module, rows: Rows, batches: range, options: Options
) -> FloatArray:
    """Between mean gradients of a batch without one record; clipped, also where training was not."""
    settings = replace(model.used_settings(options), clipped=True)
    generator = torch.Generator().manual_seed(options.seed)
    batch, few = settings.batch, 10 if options.small else _PUBLISHED_RECORDS
    order = torch.randperm(len(rows), generator=generator).numpy()
    found: list[FloatArray] = []
    for number in options.track(batches):
        inputs, targets = model.tensors(rows.take(order[number * batch : (number + 1) * batch]))
        mean = mean_gradient(network, inputs, targets)
        mask = random_mask(mean, settings, generator)
        found.append(distances(network, inputs[:few], targets[:few], mean, mask, settings)[0])
    return np.concatenate(found)


def _distances(
    model: ImageModel, network: nn.Module, rows: Rows, pairs: int, rng: np.random.Generator, options: Options
) -> FloatArray:
    """Of so many pairs, no record in two: the norm of the gradient of the difference of two losses."""
    inputs, targets = model.tensors(rows.take(rng.permutation(len(rows))[: 2 * pairs]))
    parameters = list(network.parameters())
    found = np.empty(pairs)
    for pair in options.track(range(pairs)):
        here = slice(2 * pair, 2 * pair + 2)
        losses = nn.functional.cross_entropy(network(inputs[here]), targets[here], reduction="none")
        parts = torch.autograd.grad(losses[0] - losses[1], parameters)
        found[pair] = sum(float(part.double().square().sum()) for part in parts) ** 0.5
    return found


def smaller(members: FloatArray, others: FloatArray) -> tuple[float, float]:
    """Probability that one of ``members`` is below one of ``others``, ties half; and its standard error.

    By DeLong, whose error is 0 where all are: so many samples do not say more than one in their number.
    """
    ranked_others, ranked_members = np.sort(others), np.sort(members)

    def share_above(values: FloatArray, of: FloatArray) -> FloatArray:
        low, high = np.searchsorted(of, values, "left"), np.searchsorted(of, values, "right")
        return 1 - (low + high) / (2 * len(of))

    by_member, by_other = share_above(members, ranked_others), 1 - share_above(others, ranked_members)
    error = np.sqrt(by_member.var(ddof=1) / len(members) + by_other.var(ddof=1) / len(others))
    return float(by_member.mean()), max(float(error), 1 / min(len(members), len(others)))


def draw(found: Found, figure: Any) -> None:
    """Two histograms on top of each other, for each data set."""
    axes = figure.subplots(1, len(found["panels"]))
    for axis, panel in zip(axes, found["panels"], strict=True):
        for name, label in (("members", "training set"), ("others", "test set")):
            axis.stairs(panel[name], panel["edges"], fill=True, alpha=0.5, label=label)
        axis.set_title(NAMES[panel["name"]], fontsize=9)
        axis.set_xlabel("distance of two gradients")
        axis.set_yscale("symlog")
    axes[0].set_ylabel("pairs")
    axes[0].legend(fontsize=8)


def story(found: Found) -> str:
    """Tests and attack in a table."""
    heads = [
        "",
        "t-test p, as published",
        "Levene p, as published",
        "controls rejected",
        "mean, training",
        "mean, test",
        "t-test p",
        "Levene p",
        "AUC of the attack",
        "95 % interval",
    ]
    rows = [
        [
            NAMES[panel["name"]],
            *(panel["as_published"][test] for test in _TESTS),
            "{} of {}".format(*_rejected(panel)),
            panel["mean_members"],
            panel["mean_others"],
            panel["t_test"],
            panel["levene"],
            f"{panel['auc']:.3f}",
            "{:.3f} to {:.3f}".format(*_interval(panel)),
        ]
        for panel in found["panels"]
    ]
    return f"""After training as published; the paper reports p-values well over 0.05 for both tests, and no figures.
*As published*: mean gradients of a batch without one record, clipped (on CIFAR-10 too, where training does not clip)
and masked as in training; all pairs of 100 records in each of 8 batches (10 on CIFAR-10), which the tests take for
independent ones though each record is in 99 of them; Student's t-test. *Controls*: the same with further batches of the
training set in the place of the test set, and how many of these tests have p below 0.05, too. The other columns, and
the picture: {found["settings"]["pairs"]} pairs of single records of each set, none of them in two, neither
clipped nor masked; Welch's t-test.

{table(heads, rows)}

An AUC of 0.5 is a coin toss. The tests look at means and variances of the distances, the AUC at what someone could do
with one of them: whether a difference is significant depends on how many pairs are looked at, how useful it is does
not. Either way this is no proof that the estimator leaks nothing; the audit set, which was not trained on, needs
none."""


def verdicts(found: Found) -> list[Verdict]:
    """On both tests, on both data sets."""
    panels = found["panels"]
    values = _p_values(panels)
    published = _p_values(panel["as_published"] for panel in panels)
    controls = np.sum([_rejected(panel) for panel in panels], axis=0)
    alike = len(values) * min(values) > 0.05
    areas = ", ".join("{:.3f} ({:.3f} to {:.3f})".format(panel["auc"], *_interval(panel)) for panel in panels)
    on_alike = "That they do not differ significantly is no proof of anything. " if alike else ""
    return [
        Verdict(
            says="Distances of gradients do not differ between training and test set (t-test, Levene: p over 0.05).",
            as_published=min(published) > 0.05,
            accounted_right=alike,
            why=f"On {found['settings']['pairs']} independent pairs of each the least of {len(values)} p-values is "
            f"{min(values):.2g}. {on_alike}As published it is {min(published):.1g}; but of the same "
            f"tests between parts of the training set itself {controls[0]} of {controls[1]} have p below 0.05, since "
            "pairs that share a record or a batch are not independent. The AUC of "
            f"guessing by one distance is {areas} ({', '.join(NAMES[panel['name']] for panel in panels)}); 0.5 is a "
            "coin toss.",
        )
    ]


def _p_values(each: Iterable[dict[str, Any]]) -> list[float]:
    return [one[test] for one in each for test in _TESTS]


def _rejected(panel: dict[str, Any]) -> tuple[int, int]:
    """Of the controls, how many tests have p below 0.05, and how many there are."""
    values = _p_values(panel["as_published"]["controls"])
    return sum(value < 0.05 for value in values), len(values)


def _interval(panel: dict[str, Any]) -> tuple[float, float]:
    """95 % around the AUC."""
    half = 1.96 * panel["auc_error"]
    return max(0.0, panel["auc"] - half), min(1.0, panel["auc"] + half)
