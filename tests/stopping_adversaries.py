"""The most that somebody gains who decides after every step whether to stop: exact, by backward induction."""

import numpy as np
from scipy.special import ndtr

_WIDTH = 12.0  # standard deviations of the loss that the grid covers


def worst_stopping_delta(exposure, epsilons):
    """sup over stopping times tau in 1 .. T of E[(1 - e^{epsilon(tau) - L_tau})_+], T = len(epsilons).

    Without sampling the loss after t steps is a random walk with normal increments of mean e^2/2 and variance e^2 under
    the law with the record. The value of going on is computed on a grid of losses, from the last step to the first.
    """
    steps = len(epsilons)
    deviation = exposure * np.sqrt(steps)
    spacing = exposure / 24
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
