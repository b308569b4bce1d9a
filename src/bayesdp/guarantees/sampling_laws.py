"""Epsilon of a planned run, by the law with which its loader draws batches."""

from __future__ import annotations

from bayesdp.guarantees import worst_case
from bayesdp.guarantees.fixed_size import fixed_size_epsilon
from bayesdp.guarantees.random_allocation import random_allocation_epsilon
from bayesdp.guarantees.worst_case import WorstCase
from bayesdp.validation import refuse

SAMPLING = ("poisson", "fixed-size", "fixed-size, zero-out", "random-allocation")
"""The laws that ``epsilon`` knows, by name."""


def epsilon(
    *, noise_multiplier: float, sample_rate: float, steps: int, delta: float = 1e-5, sampling: str = "poisson"
) -> WorstCase:
    """Return the worst case of ``steps`` steps of DP-SGD: sampling, clipping, Gaussian noise.

    ``noise_multiplier`` is the standard deviation of the noise on the sum over the clip norm, ``sample_rate`` the
    probability with which each record is in a batch, and ``sampling`` how batches are drawn:

    | sampling | a batch | relation | source |
    |---|---|---|---|
    | ``"poisson"`` | each record independently, with probability ``sample_rate`` | add/remove | dp-accounting |
    | ``"fixed-size"`` | a set of exactly ``sample_rate`` N of N records, afresh | replace-one | ``fixed_size.py`` |
    | ``"fixed-size, zero-out"`` | the same | zero-out | ``fixed_size.py`` |
    | ``"random-allocation"`` | each record in one of 1/``sample_rate`` steps | add/remove | ``random_allocation.py`` |

    No amplification is proved for a loader that shuffles once an epoch and cuts batches of one size: each record is in
    one batch an epoch, so account one step with rate 1 for each epoch, as ``bayesdp.opacus.watch`` does.

    Formal guarantee: an upper bound of epsilon for everyone under the named relation, the smallest of several:
    by privacy loss distributions (PLD), by Rényi divergences (RDP) and by the Gaussian profile, exact without sampling.
    Discretisation and round-off err upwards. No steps cost nothing.

    Raises InvalidInputError for a noise multiplier outside [1e-6, 1e12], a rate outside (0, 1], a number of steps that
    is not whole, a delta that is not strictly between 0 and 1, or sampling of another name.
    """
    if sampling == "poisson":
        return worst_case.epsilon(noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=steps, delta=delta)
    if sampling == "random-allocation":
        return random_allocation_epsilon(
            noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=steps, delta=delta
        )
    if sampling not in SAMPLING:
        raise refuse("sampling", sampling, ", ".join(f'"{name}"' for name in SAMPLING))
    return fixed_size_epsilon(
        noise_multiplier=noise_multiplier,
        sample_rate=sample_rate,
        steps=steps,
        delta=delta,
        relation="zero-out" if sampling.endswith("zero-out") else "replace-one",
    )
