"""The claim about the population on average: the smallest epsilon that the deltas of the audit records support."""

from __future__ import annotations

import math

from bayesdp.claims.claim import Claim
from bayesdp.claims.epsilon_walk import floor, least_epsilon
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.claims.request import ClaimRequest
from bayesdp.claims.shares import FIXED_NORMS, NO_AUDIT, SAMPLED

_NOT_THE_MEAN = (
    "It is not the mean of people's epsilons, but the epsilon at which delta, averaged over people, is as stated; the "
    "people who are most exposed dominate that average."
)


def average_claim(figures: RecordFigures, request: ClaimRequest, records: int, everyone: Claim) -> Claim:
    """Return the claim that delta(epsilon), averaged over the population, is at most ``request.delta``.

    It is proved if the exposures were fixed before the run and the estimator is monotone, and an estimate otherwise.
    Every record's delta is an upper bound (rounded exposures, PLD rounded up), so the average errs upwards. The claim
    has no figure, and a reason instead, where the audit records do not support any epsilon.
    """
    estimator, delta, fixed = request.average_estimator, request.delta, request.fixed_exposures
    claim = Claim(
        epsilon=math.inf,
        delta=delta,
        audience="average",
        direction="both",
        kind="proved" if fixed and estimator.monotone else "estimate",
        method=f"{type(estimator).__name__} on the delta of each audit record",
        samples=records or None,
        gamma=estimator.gamma,
        assumptions=(SAMPLED, "exposures were fixed before the run" if fixed else FIXED_NORMS),
        worst_case=everyone,
    )
    if records < 3:
        return claim.without(NO_AUDIT if not records else f"an average needs 3 audit records; there are {records}")
    steps, known = figures.plausible_points, math.isfinite(everyone.epsilon)
    while True:
        epsilons, bounds = figures.walk[:steps], figures.bounds[:steps]
        walked = least_epsilon(estimator, epsilons, figures.deltas(steps), bounds, delta, known=known)
        if not walked.to_the_end or steps == len(figures.walk):
            break
        steps = min(4 * steps, len(figures.walk))
    if math.isinf(walked.epsilon):
        return claim.without(f"{records} audit records do not support an average delta of {delta:g}")
    least = floor(estimator, records, figures.walk, figures.bounds, delta)
    note = f"No sample of {records} audit records could support an average epsilon below {least:.3g}."
    return claim.with_figure(walked.epsilon, notes=(_NOT_THE_MEAN, note) if least else (_NOT_THE_MEAN,))
