"""The settings of networks from scratch that `python -m benchmarks.choose_settings` compares.

Time decides how many: each trial takes minutes. Networks, batches and the range of learning rates were found by hand on
the same validation rows, with shorter runs.
"""

from __future__ import annotations

from bayesdp.recipes.choices import Choice, ImageNetworkChoice


def image_networks(
    target: float, network: str, sample_rate: float, trials: list[tuple[str, int, float, float]]
) -> list[Choice]:
    """``trials``: views, steps, clip bound and learning rate. Two views for half as many steps take as long as one."""
    return [
        ImageNetworkChoice(
            target_epsilon=target,
            network=network,
            views=views,
            steps=steps,
            sample_rate=sample_rate,
            clip=clip,
            learning_rate=rate,
        )
        for views, steps, clip, rate in trials
    ]


GREY, COLOUR = "two-convolutions-grey", "two-convolutions-colour"
STANDARDISED_GREY, STANDARDISED_COLOUR = "standardised-grey", "standardised-colour"
GRIDS: dict[str, list[list[Choice]]] = {
    "mnist-network": [
        image_networks(2.0, GREY, 0.1, [("plain", 80, 1.0, 2.0), ("plain", 80, 0.1, 10.0)])
        + image_networks(2.0, GREY, 0.04, [("plain", 200, 1.0, 2.0)])
        + image_networks(2.0, STANDARDISED_GREY, 0.1, [("plain", 80, 1.0, 2.0), ("plain", 80, 1.0, 4.0)])
    ],
    "cifar10-network": [
        image_networks(
            3.0, COLOUR, 0.03, [("plain", 200, 1.0, 1.0), ("mirrored", 100, 1.0, 1.0), ("mirrored", 200, 1.0, 1.0)]
        )
        + image_networks(3.0, STANDARDISED_COLOUR, 0.03, [("mirrored", 200, 1.0, 1.0), ("mirrored", 200, 1.0, 2.0)])
    ],
}
SEEDS = dict.fromkeys(GRIDS, 1)
AUDIT_ROWS = 100
"""The number of validation rows whose norms are computed: enough for a median, and it saves time."""
