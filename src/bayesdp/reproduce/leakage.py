"""Figure 2: do distances between gradients tell who was trained on?

After training as published, distances |g_i - g_j| of pairs of training records and of pairs of test records:
histograms, a t-test for their means, Levene's test for their variances. All pairs are independent: no record is in two.
And what an attacker could do with them: the probability that a pair of training records has the smaller distance (AUC).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import nn

from bayesdp.recipes.datasets import Rows
from bayesdp.reproduce.experiment import Found, Options, Verdict, short, table
from bayesdp.reproduce.published_images import MODELS, ImageModel, trained
from bayesdp.validation import FloatArray

TITLE = "Leakage through distances of gradients (Figure 2)"
SECONDS = 120.0
_PAIRS = 4000
_BINS = 40


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
    means, variances = stats.ttest_ind(members, others, equal_var=False), stats.levene(members, others)
    area, error = smaller(members, others)
    return {
        "name": model.name,
        "accuracy": found["accuracy"],
        "edges": short(edges, 5),
        "members": np.histogram(members, edges)[0].tolist(),
        "others": np.histogram(others, edges)[0].tolist(),
        "mean_members": float(members.mean()),
        "mean_others": float(others.mean()),
        "t_test": float(means.pvalue),
        "levene": float(variances.pvalue),
        "auc": area,
        "auc_error": error,
    }


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
    """Probability that one of ``members`` is below one of ``others``, ties half; and its standard error (DeLong)."""
    ranked_others, ranked_members = np.sort(others), np.sort(members)

    def share_above(values: FloatArray, of: FloatArray) -> FloatArray:
        low, high = np.searchsorted(of, values, "left"), np.searchsorted(of, values, "right")
        return 1 - (low + high) / (2 * len(of))

    by_member, by_other = share_above(members, ranked_others), 1 - share_above(others, ranked_members)
    error = np.sqrt(by_member.var(ddof=1) / len(members) + by_other.var(ddof=1) / len(others))
    return float(by_member.mean()), float(error)


def draw(found: Found, figure: Any) -> None:
    """Two histograms on top of each other, for each data set."""
    axes = figure.subplots(1, len(found["panels"]))
    for axis, panel in zip(axes, found["panels"], strict=True):
        for name, label in (("members", "training set"), ("others", "test set")):
            axis.stairs(panel[name], panel["edges"], fill=True, alpha=0.5, label=label)
        axis.set_title(panel["name"], fontsize=9)
        axis.set_xlabel("distance of two gradients")
        axis.set_yscale("symlog")
    axes[0].set_ylabel("pairs")
    axes[0].legend(fontsize=8)


def story(found: Found) -> str:
    """Tests and attack in a table."""
    heads = ["", "mean, training", "mean, test", "t-test p", "Levene p", "AUC of the attack", "95 % interval"]
    rows = [
        [
            panel["name"],
            panel["mean_members"],
            panel["mean_others"],
            panel["t_test"],
            panel["levene"],
            f"{panel['auc']:.3f}",
            f"{panel['auc'] - 1.96 * panel['auc_error']:.3f} to {panel['auc'] + 1.96 * panel['auc_error']:.3f}",
        ]
        for panel in found["panels"]
    ]
    return f"""After training as published, {found["settings"]["pairs"]} independent pairs of each set. The paper
reports p-values well over 0.05 for both tests.

{table(heads, rows)}

An AUC of 0.5 is a coin toss. The tests look at means and variances of the distances, the AUC at what someone could do
with one of them: whether a difference is significant depends on how many pairs are looked at, how useful it is does
not. Either way this is no proof that the estimator leaks nothing; the audit set, which was not trained on, needs
none."""


def verdicts(found: Found) -> list[Verdict]:
    """On both tests, on both data sets."""
    areas = ", ".join(f"{panel['auc']:.3f} ± {1.96 * panel['auc_error']:.3f}" for panel in found["panels"])
    return [
        Verdict(
            says="Distances of gradients do not tell the training set from the test set (t-test, Levene: p over 0.05).",
            as_published=None,
            accounted_right=all(min(panel["t_test"], panel["levene"]) > 0.05 for panel in found["panels"]),
            why=f"On {found['settings']['pairs']} independent pairs of each. The AUC of guessing by one distance is "
            f"{areas} ({', '.join(panel['name'] for panel in found['panels'])}); 0.5 is a coin toss.",
        )
    ]
