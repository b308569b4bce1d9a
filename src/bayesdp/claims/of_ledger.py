"""All claims of a ledger, side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from bayesdp import validation
from bayesdp.claim import Claim
from bayesdp.claims import paper
from bayesdp.claims.average import least_epsilon
from bayesdp.claims.figures import LAMBDAS, Figures
from bayesdp.claims.shares import SAMPLED, RecordEpsilons, ShareClaims, share_claims
from bayesdp.estimators import Betting, DistributionFree, EmpiricalBernstein, KullbackLeibler
from bayesdp.ledger import Ledger
from bayesdp.profiles import Precision
from bayesdp.validation import refuse
from bayesdp.worst_case import WorstCase

ESTIMATORS: dict[str, type[DistributionFree]] = {
    "betting": Betting,
    "kullback-leibler": KullbackLeibler,
    "empirical-bernstein": EmpiricalBernstein,
}
NO_AUDIT = "no audit records: the worst case is all that can be claimed"


@dataclass(frozen=True)
class LedgerClaims:
    """The claims of a run by whom they cover."""

    worst_case: WorstCase
    everyone: Claim
    for_rows: Claim | None
    shares: list[ShareClaims]
    groups: dict[str, list[ShareClaims]]
    average: Claim
    estimator: str
    bayesian: Claim
    gate: tuple[Claim, ...]
    private: tuple[Claim, ...]

    def all(self) -> list[Claim]:
        """Every claim, the worst case first."""
        listed = [self.everyone] + ([self.for_rows] if self.for_rows else [])
        for one in [*self.shares, *(claims for group in self.groups.values() for claims in group)]:
            listed += [one.ex_post, one.estimate]
        return [*listed, self.average, self.bayesian, *self.gate, *self.private]


def ledger_claims(
    ledger: Ledger,
    *,
    delta: float = 1e-5,
    gamma: float = 0.01,
    shares: Iterable[float] = (0.5, 0.9, 0.99),
    joint: bool = False,
    estimator: str = "betting",
    fixed_exposures: bool = False,
    private: bool = False,
    rows: int = 1,
    precision: Precision | None = None,
) -> LedgerClaims:
    """What may be said about a run; the arguments are those of ``Ledger.claims``."""
    delta = validation.probability("delta", delta)
    gamma = validation.probability("gamma", gamma)
    listed = [validation.probability("shares", share) for share in shares]
    rows = validation.count("rows", rows, minimum=1)
    estimate_average = check_estimator(estimator)(gamma=gamma)
    worst = ledger.worst_case(delta)
    everyone = everyone_claim(worst)
    figures = Figures(ledger, delta, worst.epsilon, precision)
    groups = ledger.audit_groups or []
    names = sorted(set(groups))
    together = len(listed) * (1 + len(names))
    each = gamma / together if joint and together else gamma
    said = f"All {together} shares hold together." if joint else "Each share holds by itself, not all of them together."
    gate = ledger.gate
    records = ledger.audit_records
    by_share: list[ShareClaims] = []
    by_group: dict[str, list[ShareClaims]] = {}
    met = False
    if records:
        epsilons = RecordEpsilons(figures.ex_post, figures.profiles.epsilons, figures.profiles.method)

        def claims_of(group: str | None, those: RecordEpsilons) -> list[ShareClaims]:
            return share_claims(those, listed, delta=delta, gamma=each, note=said, group=group, worst_case=everyone)

        by_share = claims_of(None, epsilons)
        members = np.array(groups)
        by_group = {name: claims_of(name, epsilons.of(np.flatnonzero(members == name))) for name in names}
        met = gate is not None and gate.met(ledger.costs([gate.at])[:, 0])
    return LedgerClaims(
        worst_case=worst,
        everyone=everyone,
        for_rows=rows_claim(figures, delta, rows, everyone) if rows > 1 else None,
        shares=by_share,
        groups=by_group,
        average=_average(figures, estimate_average, records, delta, fixed_exposures, everyone),
        estimator=estimator,
        bayesian=_bayesian(figures, records, delta, everyone),
        gate=gate.claims(met=met, worst_case=everyone) if gate is not None else (),
        private=(paper.from_batches(ledger, delta=delta, worst_case=everyone),) if private else (),
    )


def check_estimator(name: str) -> type[DistributionFree]:
    """The estimator of the average with this name."""
    if name not in ESTIMATORS:
        raise refuse("estimator", name, "one of " + ", ".join(ESTIMATORS))
    return ESTIMATORS[name]


def everyone_claim(worst: WorstCase) -> Claim:
    """The worst case as a claim."""
    return Claim(
        epsilon=worst.epsilon,
        delta=worst.delta,
        audience="everyone",
        direction="both",
        kind="proved",
        method=worst.accountant,
        reason=(worst.reason or "the noise is too small") if math.isinf(worst.epsilon) else None,
    )


def rows_claim(figures: Figures, delta: float, rows: int, everyone: Claim) -> Claim:
    """The worst case of a person with several rows, at the same delta: the best epsilon and delta of one row for it."""
    claim = replace(
        everyone,
        method=f"group privacy, {rows} rows of one person",
        notes=(f"It holds for a person with up to {rows} rows.",),
    )
    best = math.inf
    for epsilon, bound in zip(figures.walk, figures.bounds, strict=True):
        group = replace(everyone, epsilon=float(epsilon), delta=min(float(bound), 1.0), reason=None).for_rows(rows)
        if group.delta <= delta:
            best = min(best, group.epsilon)
    upward = figures.walk[0] / figures.walk[1]
    for number in range(1, 400):  # one row at a smaller delta, a larger epsilon
        epsilon = float(figures.walk[0] * upward**number)
        if epsilon * rows >= best or figures.clip_bound is None or math.isinf(everyone.epsilon):
            break
        bound = float(figures.clip_bound.deltas(np.array([epsilon]), delta, None)[0])
        group = replace(everyone, epsilon=epsilon, delta=min(bound, 1.0), reason=None).for_rows(rows)
        if group.delta <= delta:
            best = group.epsilon
            break
    return replace(claim, epsilon=best, reason="no finite epsilon at this delta" if math.isinf(best) else None)


def _average(
    figures: Figures, estimator: DistributionFree, records: int, delta: float, fixed: bool, everyone: Claim
) -> Claim:
    claim = Claim(
        epsilon=math.inf,
        delta=delta,
        audience="average",
        direction="both",
        kind="proved" if fixed else "estimate",
        method=f"{type(estimator).__name__} on the delta of each audit record",
        samples=records or None,
        gamma=estimator.gamma,
        assumptions=(
            SAMPLED,
            "exposures were fixed before the run"
            if fixed
            else "the norms would have been the same, whatever was released before",
        ),
        worst_case=everyone,
    )
    if records < 3:
        return claim.without(NO_AUDIT if not records else f"an average needs 3 audit records, there are {records}")
    known = math.isfinite(everyone.epsilon)
    walked = least_epsilon(estimator, figures.walk, figures.profiles.deltas, figures.bounds, delta, known=known)
    if math.isinf(walked.epsilon):
        return claim.without(f"{records} audit records do not support an average delta of {delta:g}")
    note = f"No sample of {records} audit records could support an average epsilon below {walked.floor:.3g}."
    return claim.with_figure(walked.epsilon, notes=(note,) if walked.floor else ())


def _bayesian(figures: Figures, records: int, delta: float, everyone: Claim) -> Claim:
    bound = np.full(len(LAMBDAS), np.inf) if figures.clip_bound is None else figures.clip_bound.costs
    columns = np.searchsorted(LAMBDAS, paper.LAMBDAS)
    if not records:
        empty = np.zeros((3, len(columns)))
        return paper.from_audit(empty, bound[columns], delta=delta, worst_case=everyone).without(NO_AUDIT)
    return paper.from_audit(figures.costs[:, columns], bound[columns], delta=delta, worst_case=everyone)
