"""What Table 1 says, as printed and as computed here, in words."""

from __future__ import annotations

from bayesdp.properties import attack_success
from bayesdp.reproduce.experiment import Found, Verdict, table

NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "abalone": "Abalone", "adult": "Adult"}
PRINTED = {
    "mnist": {"baseline": 0.99, "accuracy": 0.96, "dp": 2.2, "dp_success": 0.898, "bdp": 0.95, "bdp_success": 0.721},
    "cifar10": {"baseline": 0.86, "accuracy": 0.73, "dp": 8.0, "dp_success": 0.999, "bdp": 0.76, "bdp_success": 0.681},
    "abalone": {"baseline": 0.77, "accuracy": 0.76, "dp": 7.6, "dp_success": 0.999, "bdp": 0.61, "bdp_success": 0.649},
    "adult": {"baseline": 0.81, "accuracy": 0.81, "dp": 0.5, "dp_success": 0.623, "bdp": 0.2, "bdp_success": 0.55},
}
"""In the paper; its P(A) differs from 1/(1 + e^-epsilon) in the third digit here and there."""
DIFFERENCES = {
    "mnist": "GroupNorm, and LayerNorm before dense layers, stand in the place of BatchNorm, which couples the records "
    "of a batch. Inputs and first weights are scaled so that signals keep their size. 50 epochs as in the "
    "paper, the learning rate goes down to 0 from 0.1 (32 epochs and 0.02 in the authors' notebook): found by hand in "
    "trials on validation rows that are not kept. A first run, of 40 epochs, stayed just below 95 % on the test set: "
    "this is the second look at it. The baseline has 4 epochs of Adam in batches of 256.",
    "cifar10": "The last layer is trained on features of EfficientNet-Lite0 (square roots, an image with its mirror "
    "image, scaled to length sqrt 1280) and not of VGG-16; without colour jitter and dropout; 10 epochs and the best "
    "of five orders (2 epochs and lambda = 32 in the authors' notebook).",
    "abalone": "There is no public code for variational inference: our own, with our preparation of columns and our "
    "split. The learning rate is not printed; 2e-5 is the middle one of three, see below. Orders up to 256.",
    "adult": "As for Abalone. The printed 0.2 is below the floor at lambda = 32, so they must have used more too.",
}
_COMPARABLE = 0.01  # accuracies


def story(found: Found) -> str:
    """The table three times."""
    differences = "\n".join(f"- {NAMES[name]}: {text}" for name, text in DIFFERENCES.items())
    mnist = found["as_published"]["mnist"]
    return f"""In parentheses P(A) = 1/(1 + e^-epsilon). **As printed**, DP at delta 1e-5 and BDP at delta_mu 1e-10:

{_printed(found)}

**As published, computed here**: the mean of a batch clipped and not its records (MNIST), nothing clipped (CIFAR-10),
noise on that mean; shuffled batches accounted as Poisson samples; 28 dependent pairs, Student's t at gamma = 1e-15 (the
paper's; 1e-16 in the code), Hölder, lambda up to 32. Abalone and Adult as the paper describes them. One seed; baselines
without clipping, noise and mask, logistic regression for Abalone and Adult:

{_as_published(found)}

*Of it floor*: -log(delta_mu)/lambda of the order that is the best in the end. What of it stood there before the first
step is in the picture; it is less where the steps made the highest orders useless.

*Classic DP of the very same mechanism* is an upper bound without the paper's assumptions, for one record in the
place of another (the paper's accountant looks at pairs, too). Batches are shuffled, so a record is in one batch of each
epoch at most; it can move a clipped mean by up to twice the clip. On CIFAR-10 nothing is clipped, but the length of
features is known and that bounds every gradient. The mask, and that nobody knows in which batch a record was, would
lower it; neither is counted. In variational inference the parameters of q go from step to step without noise: no bound
is known. *Had each record been clipped*, to C and before the mean was taken, the same noise would give everyone this if
a record may be set to nothing (zero-out); with Poisson samples for batches,
{mnist["and_batches_poisson_samples"]:.2g} on MNIST. (Clipping records changes the gradients, so accuracy would be
another.) *Theorem with norms* looks at how far one record moves the mean, not at how far two are apart, at more orders;
model-based: still under the paper's assumptions, from 8 records a step and as if batches were Poisson samples.

What is not as in the paper:

{differences}

Variational inference as described counts the randomness of q(theta) and nothing else. Its epsilon depends on the
learning rate, by a factor of {_spread(found)}; that is no property of what is released:

{_learning_rates(found)}

**Our recipes**, clipped record by record, noise for a worst-case epsilon that holds for everyone; beside it half of
the people, sure for the run and as an estimate (audit set, 99 % confidence), all at delta 1e-5:

{_ours(found)}"""


def _printed(found: Found) -> str:
    rows = [
        [
            NAMES[name],
            f"{100 * one['baseline']:.0f} %",
            f"{100 * one['accuracy']:.0f} %",
            f"{one['dp']:g} ({one['dp_success']:g})",
            f"{one['bdp']:g} ({one['bdp_success']:g})",
        ]
        for name, one in found["printed"].items()
    ]
    return table(["", "baseline", "private", "DP", "BDP"], rows)


def _as_published(found: Found) -> str:
    rows = [
        [
            NAMES[name],
            _percent(one["baseline"]),
            _percent(one["accuracy"]),
            _with_success(one["epsilon"]),
            f"{100 * one['floor'] / one['epsilon']:.0f} % (lambda {one['best_lambda']:g})",
            "none known" if one["worst_case"] is None else _with_success(one["worst_case"]),
            _with_success(one.get("worst_case_if_records_were_clipped")),
            _with_success(one.get("epsilon_of_norms")),
        ]
        for name, one in found["as_published"].items()
    ]
    heads = ["", "baseline", "private", "BDP, 1e-10", "of it floor", "classic DP of the very same mechanism, 1e-5"]
    return table([*heads, "had each record been clipped, 1e-5", "theorem with norms, 1e-10"], rows)


def _learning_rates(found: Found) -> str:
    rows = [
        [NAMES[name], f"{one['learning_rate']:g}", _percent(one["accuracy"]), _with_success(one["epsilon"])]
        for name, row in found["as_published"].items()
        for one in row.get("by_learning_rate", [])
    ]
    return table(["", "learning rate", "accuracy", "BDP, 1e-10"], rows)


def _spread(found: Found) -> str:
    """Of epsilon over learning rates, for each data set."""
    tried = [row["by_learning_rate"] for row in found["as_published"].values() if "by_learning_rate" in row]
    epsilons = [[one["epsilon"] for one in rates] for rates in tried]
    return " and ".join(f"{max(values) / min(values):.0f}" for values in epsilons)


def _ours(found: Found) -> str:
    rows = [
        [
            NAMES[name],
            _percent(one["accuracy"]),
            *(_with_success(one[claim]) for claim in ("worst_case", "half_ex_post", "half_estimate")),
        ]
        for name, one in found["ours"].items()
    ]
    return table(["", "accuracy", "everyone, proved", "half, ex-post", "half, estimate"], rows)


def verdicts(found: Found) -> list[Verdict]:
    """On each row, on classic DP of the mechanism, on what DP costs."""
    return [*(_of_row(name, found) for name in found["printed"]), _of_clipping(found), *_of_recipes(found)]


def _of_row(name: str, found: Found) -> Verdict:
    printed, here = found["printed"][name], found["as_published"][name]
    says = f"{NAMES[name]}: {100 * printed['accuracy']:.0f} % accuracy with BDP epsilon {printed['bdp']:g}."
    if "by_learning_rate" in here:
        accuracies, epsilons = ([one[figure] for one in here["by_learning_rate"]] for figure in ("accuracy", "epsilon"))
        why = (
            f"Epsilon is what the learning rate, which is not printed, makes it: {min(epsilons):.2g} to "
            f"{max(epsilons):.2g} here, accuracy {_percent(min(accuracies))} to {_percent(max(accuracies))}. "
            "What the optimiser keeps is released unaccounted."
        )
        return Verdict(says=says, as_published=None, accounted_right=None, why=why)
    return Verdict(
        says=says,
        as_published=here["accuracy"] >= printed["accuracy"] - _COMPARABLE and here["epsilon"] <= printed["bdp"],
        accounted_right=None,
        why=f"{_percent(here['accuracy'])} with {here['epsilon']:.3g} here; the floor of its order is "
        f"{here['floor']:.2g}. Under the same assumptions norms give {here['epsilon_of_norms']:.3g}: an estimate, no "
        "bound.",
    )


def _of_clipping(found: Found) -> Verdict:
    printed, here = found["printed"]["mnist"], found["as_published"]["mnist"]
    return Verdict(
        says="Clipping ensures the classic DP bounds on top of BDP.",
        as_published=here["worst_case"] <= printed["dp"],
        accounted_right=here["worst_case_if_records_were_clipped"] <= printed["dp"],
        why=f"Measured by the printed {printed['dp']:g}, on MNIST. The code clips the mean of a batch: we can prove "
        f"{here['worst_case']:,.0f} for that, and no useful bound. Each record clipped, the same noise gives everyone "
        f"{here['worst_case_if_records_were_clipped']:.2g}.",
    )


def _of_recipes(found: Found) -> list[Verdict]:
    if not found["ours"]:
        return []
    printed = found["printed"]
    as_good = [
        NAMES[name]
        for name, one in found["ours"].items()
        if one["accuracy"] >= printed[name]["accuracy"] - _COMPARABLE and one["worst_case"] <= printed[name]["bdp"]
    ]
    return [
        Verdict(
            says="Classic DP needs a far larger epsilon than BDP for the same accuracy.",
            as_published=None,
            accounted_right=False if len(as_good) == len(found["ours"]) else None,
            why="Recipes that clip record by record reach the printed accuracy, to within a point, with a worst case "
            f"not above the printed BDP epsilon on {len(as_good)} of {len(found['ours'])} data sets"
            + (f": {', '.join(as_good)}. " if as_good else ". ")
            + "(CIFAR-10 with better features than the paper's.)",
        )
    ]


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %"


def _with_success(epsilon: float | None) -> str:
    if epsilon is None:
        return ""
    return f"{epsilon:,.0f} (1.000)" if epsilon > 100 else f"{epsilon:.3g} ({attack_success(epsilon):.3f})"
