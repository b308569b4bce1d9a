"""Advice about the clip bound: how many gradients are clipped, and what another bound would do for typical people.

Where nearly every gradient is clipped, nearly everyone contributes as much as clipping allows, and half of the people
lose what the worst case loses. A larger clip bound with noise in proportion has the same worst case and leaves typical
people below it. ``clip_sentence`` says so in one sentence if at least half of the gradients of audit records are
clipped; ``clip_advice`` has the figures for all bounds. Both come from audit records and settings alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bayesdp.claims.clip_outlook import ClipOutlook
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.claims.shares import share_epsilon, too_few_records
from bayesdp.estimators import order_statistic_rank
from bayesdp.formatting import finite_or_none, round_up
from bayesdp.ledger import MEMORY, OPACUS, StoredLedger, norm_counts
from bayesdp.validation import FloatArray

SHARES = (0.5, 0.9)
MANY_CLIPPED = 0.5
"""The share of clipped gradients from which on a statement begins with advice."""
AFTER_A_CHOICE = "the run was chosen among others, and what another clip bound would do to the choice is not known"
"""Why there is no advice about such a run."""
HELPS = 0.5
"""The part of the worst case that half of the people should be at: the smallest bound that does it is suggested."""
_AS_MUCH = 0.95
_EXPONENTS = range(1, 16)
_FACTORS = tuple(sorted(base * 2.0**power for power in range(-8, 16) for base in (1.0, 1.5)))
_LEAST_PART = 0.1  # a table ends where half are at this part of the worst case,
_AS_LITTLE = 1.02  # or at as little as any bound gives them: steps without norms cost the same at every bound
_MOST_BOUNDS = 12  # from which on a table has powers of 2 only
NOTES = (
    "These are estimates for gradients as they were, with noise in proportion to the clip bound. Another clip bound "
    "trains another model, whose gradients differ; nothing that is claimed rests on these figures.",
    "While every gradient is clipped, a larger clip bound only scales the updates: divide the learning rate by the "
    "same factor. Beyond the norms of typical people noise grows and their gradients do not. That protects them, and "
    "it may cost accuracy.",
    "Whoever chooses a clip bound by these figures has used the audit records for it. Take others for the next run, or "
    'declare audit_used_for="the clip bound".',
)
"""What to know before using the figures."""


@dataclass(frozen=True, kw_only=True)
class ClipBoundFigures:
    """Figures for one clip bound: a multiple of the run's, with noise in proportion."""

    factor: float
    clip: float | None
    "The clip bound; None if that of the run changed."
    clipped: float
    "The share of all gradients of audit records that would be clipped."
    epsilons: tuple[float, ...]
    "About the epsilon that each share of people does not exceed."


@dataclass(frozen=True, kw_only=True)
class ClipAdvice:
    """Figures for several clip bounds with the same worst case: estimates, and no claims.

    ``everyone`` is the epsilon for everyone at ``delta``, the same at all bounds. ``bounds`` rise, and include that of
    the run at factor 1, whose figures are the run's own estimates. ``shares`` are those of ``ClipBoundFigures``.
    Without figures ``bounds`` is empty, and ``reason`` says why.
    """

    everyone: float
    delta: float
    sentence: str | None
    shares: tuple[float, ...] = ()
    bounds: tuple[ClipBoundFigures, ...] = ()
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values for JSON."""
        return {
            "everyone": finite_or_none(self.everyone),
            "delta": self.delta,
            "sentence": self.sentence,
            "bounds": [
                {
                    "factor": bound.factor,
                    "clip": bound.clip,
                    "clipped": bound.clipped,
                    "shares": [
                        {"share": share, "estimate_epsilon": epsilon}
                        for share, epsilon in zip(self.shares, bound.epsilons, strict=True)
                    ],
                }
                for bound in self.bounds
            ],
            "notes": list(NOTES) if self.bounds else [],
            "reason": self.reason,
        }


class _Study:
    """Figures for clip bounds of one ledger, each computed once, and never above the figure for everyone.

    With ``quick``, those of the run are computed like the others, and not from the profiles of all audit records.
    """

    def __init__(
        self, outlook: ClipOutlook, ledger: StoredLedger, figures: RecordFigures, gamma: float, *, quick: bool
    ) -> None:
        records = ledger.audit_records
        ranked = {share: order_statistic_rank(records, share, gamma) for share in SHARES}
        self.shares = tuple(share for share, rank in ranked.items() if rank is not None)
        self._ranks = [rank for rank in ranked.values() if rank is not None]
        self._outlook, self._figures, self._gamma, self._quick = outlook, figures, gamma, quick
        self._known: dict[float, tuple[float, ...]] = {}
        clips = {stretch.clip for stretch in ledger.history.stretches}
        self.clip = clips.pop() if len(clips) == 1 else None

    def epsilons(self, factor: float) -> tuple[float, ...]:
        """Return the epsilon of each share; the run's own estimates at factor 1."""
        if factor not in self._known:
            if factor == 1 and not self._quick:
                own = [share_epsilon(self._figures.estimates, share, self._gamma) for share in self.shares]
                found: Sequence[float] = [math.inf if epsilon is None else epsilon for epsilon in own]
            else:
                found = self._outlook.epsilons([factor], self._ranks)[0].tolist()
            self._known[factor] = tuple(min(epsilon, self._figures.worst_case) for epsilon in found)
        return self._known[factor]

    def part(self, factor: float) -> float:
        """Return the epsilon of half of the people over that of everyone."""
        return self.epsilons(factor)[0] / self._figures.worst_case

    def suggested(self) -> float | None:
        """Return the smallest power of 2 at which half are far below the worst case; None if there is none."""
        low, high = _EXPONENTS.start, _EXPONENTS.stop
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.part(2.0**middle) <= HELPS else (middle + 1, high)
        return 2.0**low if low in _EXPONENTS else None

    def bounds(self) -> list[ClipBoundFigures]:
        """Return the figures from where nearly all lose the most to where half lose little, and those of the run."""
        above = [factor for factor in _FACTORS if factor >= 1]
        least = max(_LEAST_PART, _AS_LITTLE * self.part(above[-1]))
        last = next((n for n, factor in enumerate(above) if self.part(factor) <= least), len(above) - 1)
        below = [factor for factor in reversed(_FACTORS) if factor < 1]
        first = next((n for n, factor in enumerate([1.0, *below]) if self.part(factor) >= _AS_MUCH), len(below))
        factors = sorted([*below[:first], *above[: last + 1]])
        if len(factors) > _MOST_BOUNDS:
            factors = [factor for factor in factors if math.frexp(factor)[0] == 0.5]
        clipped: FloatArray = self._outlook.clipped(factors)
        return [
            ClipBoundFigures(
                factor=factor,
                clip=None if self.clip is None else self.clip * factor,
                clipped=float(share),
                epsilons=self.epsilons(factor),
            )
            for factor, share in zip(factors, clipped, strict=True)
        ]


def clip_sentence(ledger: StoredLedger, figures: RecordFigures, gamma: float, *, quick: bool = False) -> str | None:
    """Return in one sentence what the audit set shows about the clip bound; None if there is nothing to advise.

    ``figures`` are those of the claims, ``gamma`` the failure probability of a share. Most runs cost no time here: the
    work begins if at least half of the gradients of audit records were clipped. A run that is chosen among others gets
    no advice: its figures include the choice, and those of other bounds would not. ``quick`` does without the profiles
    of all audit records, which claims need anyway and a live view does not have.
    """
    share = share_clipped(ledger)
    if share is None or share < MANY_CLIPPED or ledger.declared_selection is not None:
        return None
    study = _study(ledger, figures, gamma, quick=quick)
    return None if isinstance(study, str) else _sentence(ledger, study, share)


def clip_advice(ledger: StoredLedger, figures: RecordFigures, gamma: float) -> ClipAdvice:
    """Return figures for clip bounds around that of the run; without figures, the reason.

    ``figures`` are those of the claims, at their delta; ``gamma`` is the failure probability of a share.
    """
    study = _study(ledger, figures, gamma)
    if isinstance(study, str):
        return ClipAdvice(everyone=figures.worst_case, delta=figures.delta, sentence=None, reason=study)
    share = share_clipped(ledger)
    return ClipAdvice(
        everyone=figures.worst_case,
        delta=figures.delta,
        sentence=None if share is None or share < MANY_CLIPPED else _sentence(ledger, study, share),
        shares=study.shares,
        bounds=tuple(study.bounds()),
    )


def share_clipped(ledger: StoredLedger) -> float | None:
    """Return the share of all gradients of audit records that were above the clip bound; None without norms."""
    return ledger.history.share_clipped(0, ledger.steps)


def whole_percent(share: float) -> str:
    """Write a share in whole per cent, rounded down, so that only 1 is "100 %"."""
    return f"{math.floor(100 * share)} %"


def _study(ledger: StoredLedger, figures: RecordFigures, gamma: float, *, quick: bool = False) -> _Study | str:
    """Return what figures come from, or in words why there are none."""
    if ledger.declared_selection is not None:
        return AFTER_A_CHOICE
    if not 0 < figures.worst_case < math.inf:
        return "there is no figure for everyone to compare with"
    counts = norm_counts(ledger)
    if isinstance(counts, str):
        return counts
    if order_statistic_rank(ledger.audit_records, SHARES[0], gamma) is None:
        return too_few_records(SHARES[0], gamma, ledger.audit_records)
    return _Study(ClipOutlook(counts, figures.delta), ledger, figures, gamma, quick=quick)


def _sentence(ledger: StoredLedger, study: _Study, share: float) -> str:
    named = " (max_grad_norm)" if all(stretch.source == OPACUS for stretch in ledger.history.stretches) else ""
    bound = "their clip bounds" if study.clip is None else f"the clip bound {study.clip:g}{named}"
    now, factor = study.part(1.0), study.suggested()
    clipped = f"{whole_percent(share)} of the gradients of audit records are clipped at {bound}"
    if now >= _AS_MUCH:
        so = "so typical people lose as much as anyone"
    else:
        so = f"and half of the people are at about {round_up(now, 2)} of the worst case"
    if factor is None or study.part(factor) > _AS_MUCH * now:
        return f"{clipped}, {so}."
    at = f"{factor:g} times these" if study.clip is None else f"{study.clip * factor:g}"
    part, more = round_up(study.part(factor), 2), "" if ledger.path == MEMORY else " (bayesdp advise)"
    return f"{clipped}, {so}; at {at}, with the same worst case, half would be at about {part} of it{more}."
