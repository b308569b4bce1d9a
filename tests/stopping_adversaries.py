"""The most that somebody gains who looks at every output before deciding how to go on: exact, by backward induction.

The privacy loss L of a record at the clip bound is a random walk whose increments depend on the settings of each step.
Whoever sees it chooses the next settings, or stops, so as to make E[(1 - e^{epsilon - L})_+] as large as possible.
"""

import numpy as np
from scipy.signal import fftconvolve
from scipy.special import ndtr

_WIDTH = 12.0  # standard deviations of the loss that the grid covers


def worst_stopping_delta(exposure, epsilons, parts=24):
    """sup over stopping times tau in 1 .. T of E[(1 - e^{epsilon(tau) - L_tau})_+], T = len(epsilons).

    Without sampling the loss after t steps is a random walk with normal increments of mean e^2/2 and variance e^2 under
    the law with the record. The value of going on is computed on a grid of losses, ``parts`` to the standard deviation
    of a step, from the last step to the first.
    """
    steps = len(epsilons)
    deviation = exposure * np.sqrt(steps)
    spacing = exposure / parts
    losses = np.arange(-_WIDTH * deviation, _WIDTH * deviation + exposure**2 * steps, spacing)
    reach = int(np.ceil((8 * exposure + exposure**2) / spacing))
    edges = (np.arange(-reach, reach + 2) - 0.5) * spacing
    weights = np.diff(ndtr((edges - exposure**2 / 2) / exposure))
    value = np.zeros(len(losses))
    for epsilon in reversed(epsilons):
        stop = np.maximum(-np.expm1(epsilon - losses), 0.0)
        value = np.maximum(value, stop)
        padded = np.concatenate([np.zeros(reach), value, np.ones(reach)])
        value = np.convolve(padded, weights[::-1], mode="valid")
    return float(np.interp(0.0, losses, value))


def hockey_stick(direction, exposure, rate, epsilons):
    """E_P[(1 - e^{epsilon - L})_+] of one step, exactly, at epsilons of either sign."""
    sign = 1 if direction == "in" else -1
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = (np.exp(sign * np.asarray(epsilons)) - (1 - rate)) / rate
        at = np.where(ratio > 0, (np.log(np.maximum(ratio, 1e-300)) + exposure**2 / 2) / exposure, -np.inf)
    without = ndtr(-sign * at)
    mixed = (1 - rate) * without + rate * ndtr(-sign * (at - exposure))
    over, under = (mixed, without) if direction == "in" else (without, mixed)
    return np.maximum(over - np.exp(epsilons) * under, 0.0)


def first_losses(direction, exposure, rate, points=2001):
    """The losses of a first step on a grid of outputs, and the weights of these under P."""
    x = np.linspace(-14, 14 + exposure, points)
    density = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi) * (x[1] - x[0])
    ratio = (1 - rate) + rate * np.exp(exposure * x - exposure**2 / 2)
    return (np.log(ratio), density * ratio) if direction == "in" else (-np.log(ratio), density)


def two_step_delta(first, choices, epsilon):
    """The delta at ``epsilon`` of two steps, the second chosen among ``choices`` by the output of the first.

    Steps are (exposure, rate). The larger of both directions; quadrature over the first output, exact in the second.
    """
    deltas = []
    for direction in ("in", "out"):
        losses, weights = first_losses(direction, *first)
        values = [hockey_stick(direction, *choice, epsilon - losses) for choice in choices]
        deltas.append(float(weights @ np.max(values, axis=0)))
    return max(deltas)


def steered_delta(direction, menu, allowed, epsilon, spacing=0.002):
    """sup over all ways of choosing the next of ``menu`` by looking, or stopping, of E[(1 - e^{epsilon - L})_+].

    ``menu``: steps (exposure, rate). ``allowed``: counts of each, as tuples; a step may be taken if the counts after it
    are allowed. Losses are rounded to a grid of this spacing.
    """
    losses = np.arange(-8.0, 12.0, spacing)
    reach = int(8 / spacing)
    edges = (np.arange(-reach, reach + 2) - 0.5) * spacing
    laws = [np.diff(_below(direction, *step, edges)) for step in menu]
    values = {}
    for counts in sorted(allowed, key=sum, reverse=True):
        value = np.maximum(-np.expm1(epsilon - losses), 0.0)
        for number, law in enumerate(laws):
            after = tuple(count + (place == number) for place, count in enumerate(counts))
            if after in values:
                value = np.maximum(value, _expected(values[after], law, reach))
        values[counts] = value
    return float(np.interp(0.0, losses, values[(0,) * len(menu)]))


def _below(direction, exposure, rate, losses):
    """The probability that the loss of one step is at most each of ``losses``, under P."""
    sign = 1 if direction == "in" else -1
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        ratio = (np.exp(sign * losses) - (1 - rate)) / rate
        at = np.where(ratio > 0, (np.log(np.maximum(ratio, 1e-300)) + exposure**2 / 2) / exposure, -np.inf)
    if direction == "out":
        return ndtr(-at)
    return (1 - rate) * ndtr(at) + rate * ndtr(at - exposure)


def _expected(value, law, reach):
    padded = np.concatenate([np.zeros(reach), value, np.full(reach, value[-1])])
    return np.maximum(fftconvolve(padded, law[::-1], mode="valid"), 0.0)
