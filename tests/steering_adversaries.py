"""What somebody gains who steers a run by looking at its results: exact, by quadrature and backward induction.

All runs here take all records at every step. Then the loss L of a step of exposure e is normal with mean e^2/2 and
variance e^2 under the law with the record, in both directions.
"""

import numpy as np
from scipy.special import log_ndtr, ndtr
from scipy.stats import binom

_WIDTH = 12.0  # standard deviations that a grid covers


def best_of_delta(exposure, epsilon, runs):
    """delta at epsilon if ``runs`` runs are made and the one with the largest output towards the record is published.

    Of R outputs N(a, 1) the largest has density R phi(y - a) Phi(y - a)^{R-1}.
    """
    y, width = np.linspace(-_WIDTH, _WIDTH + exposure, 400_001, retstep=True)

    def log_density(mean):
        return np.log(runs) - (y - mean) ** 2 / 2 - np.log(2 * np.pi) / 2 + (runs - 1) * log_ndtr(y - mean)

    within, without = log_density(exposure), log_density(0.0)
    missing = np.minimum(epsilon + without - within, 0.0)
    return float(np.sum(np.exp(within) * -np.expm1(missing)) * width)


def second_step_delta(first, seconds, epsilon_of):
    """The failure of ``epsilon_of(first, second)`` if the second exposure is chosen by the output of the first step.

    E[max over seconds of H(second, epsilon - L_1)] with H the hockey-stick divergence of one step; 0 among ``seconds``
    stands for stopping.
    """
    losses, width = np.linspace(first**2 / 2 - _WIDTH * first, first**2 / 2 + _WIDTH * first, 20_001, retstep=True)
    weights = np.exp(-(((losses - first**2 / 2) / first) ** 2) / 2) / (first * np.sqrt(2 * np.pi)) * width
    best = np.zeros(len(losses))
    for second in seconds:
        left = epsilon_of(first, second) - losses
        best = np.maximum(best, _hockey_stick(second, left))
    return float(weights @ best)


def steered_delta(exposures, steps, epsilon_of):
    """sup over strategies that choose each exposure, and when to stop, by earlier outputs, of the failure.

    ``exposures`` are the two a step may have; ``epsilon_of(a, b)`` is what is claimed after a steps of the first kind
    and b of the second. Backward induction over (a, b, loss).
    """
    deviation = max(exposures) * np.sqrt(steps)
    spacing = min(exposures) / 12
    losses = np.arange(-_WIDTH * deviation, _WIDTH * deviation + deviation**2, spacing)
    kernels = [_kernel(exposure, spacing) for exposure in exposures]
    values = {}
    for taken in range(steps, -1, -1):
        for a in range(taken + 1):
            b = taken - a
            value = np.zeros(len(losses))
            if taken:
                value = np.maximum(-np.expm1(epsilon_of(a, b) - losses), 0.0)
            if taken < steps:
                for kernel, after in zip(kernels, (values[a + 1, b], values[a, b + 1]), strict=True):
                    value = np.maximum(value, _expected(after, kernel))
            values[a, b] = value
    return float(np.interp(0.0, losses, values[0, 0]))


def misled_probability(records, share, rank, looks):
    """How often the smallest of ``looks`` order statistics is too small, if looks are independent.

    The ``rank``-th smallest of ``records`` lies below the share's quantile with probability Pr[Bin(m, p) >= k].
    """
    return float(-np.expm1(looks * np.log1p(-binom.sf(rank - 1, records, share))))


def _hockey_stick(exposure, epsilons):
    """delta of one step at any epsilons, also negative ones."""
    if exposure == 0:
        return np.maximum(-np.expm1(epsilons), 0.0)
    over = epsilons / exposure
    half = exposure / 2
    return ndtr(half - over) - np.exp(np.minimum(epsilons, 700) + log_ndtr(-half - over))


def _kernel(exposure, spacing):
    reach = int(np.ceil((8 * exposure + exposure**2) / spacing))
    edges = (np.arange(-reach, reach + 2) - 0.5) * spacing
    return np.diff(ndtr((edges - exposure**2 / 2) / exposure))


def _expected(value, kernel):
    reach = len(kernel) // 2
    return np.convolve(np.concatenate([np.zeros(reach), value, np.ones(reach)]), kernel[::-1], mode="valid")
