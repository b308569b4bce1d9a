"""The settings of probes and regressions that `python -m benchmarks.choose_settings` compares, by recipe.

Outer lists of a grid are compared one after the other: most are one target epsilon each.
"""

from __future__ import annotations

import itertools

from bayesdp.recipes.choices import Choice, NetworkChoice, ProbeChoice, VariationalChoice


def probes(
    target: float,
    steps: list[int],
    rates: list[float],
    shapes: list[tuple[float, float]],
    clip: float = 0.02,
) -> list[Choice]:
    """``shapes``: part of the budget for the shape, and least variance."""
    return [
        ProbeChoice(
            target_epsilon=target,
            steps=step,
            clip=clip,
            learning_rate=rate,
            shape=shape,
            floor=floor,
        )
        for (shape, floor), step, rate in itertools.product(shapes, steps, rates)
    ]


def quiet_probes(
    target: float, steps: int, settings: list[tuple[float, float, float]], shape: float = 0.03
) -> list[Choice]:
    """Probes whose clip leaves most gradients whole, and whose whitening charges little; (clip, rate, momentum)."""
    return [
        ProbeChoice(
            target_epsilon=target,
            steps=steps,
            clip=clip,
            learning_rate=rate,
            momentum=momentum,
            centre=0.003,
            shape=shape,
            floor=0.5,
        )
        for clip, rate, momentum in settings
    ]


def regressions(
    target: float,
    steps: list[int],
    rates: list[float],
    clips: list[float],
    momenta: tuple[float, ...] = (0.0, 0.5),
    average: float = 0.5,
) -> list[Choice]:
    return [
        VariationalChoice(
            target_epsilon=target, steps=step, clip=clip, learning_rate=rate, momentum=momentum, average=average
        )
        for step, rate, clip, momentum in itertools.product(steps, rates, clips, momenta)
    ]


def networks(target: float, steps: list[int], rates: list[float], clips: list[float]) -> list[Choice]:
    return [
        NetworkChoice(target_epsilon=target, steps=step, sample_rate=1.0, clip=clip, learning_rate=rate)
        for step, rate, clip in itertools.product(steps, rates, clips)
    ]


OTHER_FEATURES: dict[str, tuple[str, list[list[Choice]]]] = {
    "cifar10": (
        "efficientnet-lite2-lite0",
        [
            probes(0.65, [60], [900.0], [(0.2, 0.5)]),
            probes(0.2, [40], [800.0], [(0.1, 0.5)]),
            probes(0.09, [10], [2500.0], [(0.1, 0.5)]),
        ],
    )
}
"""Features that are compared with those of a recipe (`--other-features`), with the settings that are best for these."""
GRIDS: dict[str, list[list[Choice]]] = {
    "mnist": [
        probes(0.5, [60, 100], [600.0, 1000.0], [(0.2, 0.5)])
        + probes(0.5, [60], [600.0], [(0.1, 0.5)])
        + quiet_probes(0.5, 120, [(0.3, 250.0, 0.5), (0.6, 150.0, 0.0)]),
        probes(0.65, [60, 100], [600.0], [(0.2, 0.5)])
        + quiet_probes(0.65, 120, [(0.3, 250.0, 0.5), (0.6, 150.0, 0.0)]),
        probes(0.2, [30], [600.0, 1200.0], [(0.1, 0.5)])
        + probes(0.2, [30], [1200.0], [(0.2, 0.5)])
        + quiet_probes(0.2, 60, [(0.15, 250.0, 0.5), (0.3, 150.0, 0.5)]),
    ],
    "fashion-mnist": [
        probes(0.65, [80], [1250.0, 2000.0], [(0.2, 0.3), (0.2, 0.5)])
        + probes(0.65, [80], [1250.0], [(0.1, 0.5)])
        + quiet_probes(0.65, 120, [(0.3, 250.0, 0.5)], shape=0.1)
    ],
    "cifar10": [
        # One step is least squares: the shape is the left side of the normal equations, the first gradient the right.
        probes(0.65, [60], [600.0, 900.0], [(0.2, 0.5), (0.1, 0.5)])
        + probes(0.65, [60], [1400.0], [(0.2, 0.5), (0.3, 0.5)])
        + probes(0.65, [100], [900.0], [(0.2, 0.5)])
        + probes(0.65, [1], [1.0], [(0.3, 1.0)]),
        probes(0.2, [20, 40], [800.0], [(0.1, 0.5)])
        + probes(0.2, [20], [1500.0], [(0.0, 0.3), (0.1, 0.5)])
        + probes(0.2, [1], [1.0], [(0.3, 1.0), (0.6, 1.0)]),
        probes(0.09, [10], [2500.0], [(0.0, 0.3), (0.1, 0.5)]) + probes(0.09, [1], [1.0], [(0.3, 1.0), (0.6, 1.0)]),
    ],
    "abalone": [
        regressions(0.15, [12, 25, 50], [1.0, 3.0], [0.5, 1.0, 2.0]),
        regressions(0.12, [25, 50, 100], [0.5, 1.0, 2.0], [0.25, 0.5]),
    ],
    "adult": [regressions(0.06, [40, 100], [2.0, 5.0, 10.0], [0.5, 1.0, 2.0], (0.5,))],
    "sst2": [probes(1.0, [40, 80], [30.0, 60.0], [(0.1, 0.5), (0.2, 0.3)], clip=0.1)],
    "digits": [networks(3.0, [10, 20, 40], [0.25, 0.5, 1.0, 2.0], [1.0, 2.0, 4.0, 8.0])],
}
TYPICAL: dict[str, list[Choice]] = {
    "mnist": quiet_probes(0.65, 120, [(0.6, 150.0, 0.0)])
    + quiet_probes(0.65, 120, [(0.6, 150.0, 0.0), (1.0, 150.0, 0.0)], shape=0.01)
    + quiet_probes(0.65, 120, [(0.6, 150.0, 0.0)], shape=0.003),
    "cifar10": quiet_probes(0.65, 120, [(0.3, 250.0, 0.5), (0.6, 150.0, 0.0), (0.6, 300.0, 0.0), (1.0, 150.0, 0.0)])
    + quiet_probes(0.65, 120, [(0.3, 250.0, 0.5), (0.6, 150.0, 0.0)], shape=0.05)
    + quiet_probes(0.65, 120, [(0.6, 150.0, 0.0), (0.6, 300.0, 0.0), (0.1, 250.0, 0.8)], shape=0.1)
    + quiet_probes(0.65, 120, [(0.6, 150.0, 0.0), (0.6, 75.0, 0.0), (1.0, 75.0, 0.0)], shape=0.01),
    "adult": [
        VariationalChoice(target_epsilon=0.1, steps=steps, clip=clip, learning_rate=rate)
        for steps, clip, rate in itertools.product([20, 40, 80], [3.0, 4.0, 5.0, 6.0], [1.0, 2.0, 4.0])
    ],
}
