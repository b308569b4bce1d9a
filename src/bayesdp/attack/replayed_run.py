"""A real run whose steps were made again with one record added, and what its ledger says about the difference.

Whatever trains the model, three vectors are known of each step: what the optimizer was given; the same with one record
more in the batch, at the same weights and with the same noise; and the same with other noise. Their differences are
what the record did and what the noise was, without looking into the engine that made them. The ledger must not say
less: no smaller influence, no more noise, no lower sampling rate, no fewer steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, norm

from bayesdp.attack import draw_laws
from bayesdp.attack.finding import Finding, Unit, rate_at_least
from bayesdp.mechanisms.gaussian import SubsampledGaussian
from bayesdp.run_ledger import Ledger
from bayesdp.validation import FloatArray

LEVEL = 5e-4
"""The probability that one of the statistical findings of a run that is accounted rightly raises the alarm, at most."""
_TESTS = 4 + len(draw_laws.STATISTICS)  # statistical findings of a run, which share the level
assert _TESTS * draw_laws.LEVEL < LEVEL
_ORDERS = (1, 8, 32)


@dataclass(frozen=True, kw_only=True)
class ReplayedStep:
    """One step; vectors are in the units of the sum of clipped gradients: gradient times the public denominator.

    Attributes:
        drawn: Positions of the records in the batch.
        released: What the optimizer was given, [d].
        repeated: The same, made again from weights, batch and state of the noise generator, [d].
        with_record: The same, with one audit record added to the batch, for each of them, [m, d].
        other_noise: The same as ``released``, with other noise, [d].
        recorded: How many steps the ledger had when the update was about to be applied.
    """

    drawn: NDArray[np.int64]
    released: FloatArray
    repeated: FloatArray
    with_record: FloatArray
    other_noise: FloatArray
    recorded: int


@dataclass(frozen=True, kw_only=True)
class ReplayedRun:
    """A run that was recorded in a ledger, and replayed.

    Attributes:
        engine: What trained it, in words.
        ledger: Its ledger, with ``keep_norms``; its audit records are those that were added, one at a time.
        records: How many records there were to draw from.
        steps: What was seen of each step.
        round_off: How much the same computation may differ if it is made again: 0 for the same program, more if another
            program was compiled for it.
    """

    engine: str
    ledger: Ledger
    records: int
    steps: tuple[ReplayedStep, ...]
    round_off: float = 0.0

    def findings(self) -> Iterator[Finding]:
        """Yield what the ledger says beside what was seen, one property of the mechanism at a time."""
        yield self._finding("watching changes nothing that is released", self.round_off, self._unfaithful(), "norm")
        yield self._finding("every update is recorded before it is applied", *self._least_recorded(), "steps")
        settings = self.ledger.history.stretches
        if not settings:
            return
        changed = np.array([np.linalg.norm(step.with_record - step.released, axis=1) for step in self.steps])
        noise_std, clip = settings[0].noise_std, settings[0].clip or math.inf
        yield self._finding("no record changes a sum by more than the clip bound", clip, float(changed.max()), "norm")
        yield self._influence(changed, clip)
        yield from self._costs(changed / noise_std, settings[0].sample_rate)
        yield from self._noise(noise_std, clip)
        yield from self._sampling(settings[0].sample_rate)

    def _finding(
        self, claim: str, claimed: float, bound: float, unit: Unit, confidence: float = 1.0, attacker: str = "replay"
    ) -> Finding:
        return Finding(
            subject=self.engine,
            attacker=attacker,
            claim=claim,
            kind="proved",
            claimed=claimed,
            bound=bound,
            unit=unit,
            confidence=confidence,
        )

    def _unfaithful(self) -> float:
        return max(float(np.abs(step.repeated - step.released).max()) for step in self.steps)

    def _least_recorded(self) -> tuple[float, float]:
        """Return the number of recorded and of applied steps where the ledger was furthest behind."""
        behind = [(float(step.recorded), float(number)) for number, step in enumerate(self.steps, start=1)]
        return min(behind, key=lambda pair: pair[0] - pair[1])

    def _influence(self, changed: FloatArray, clip: float) -> Finding:
        """Compare the norm of each audit record at each step with what it changed; report the worst of them."""
        worst = (math.inf, 0.0)
        for number, seen in enumerate(changed[: self.ledger.steps], start=1):
            audit, _ = self.ledger.private_norms(number)
            said = np.full(len(seen), clip) if audit is None else np.minimum(audit, clip)
            pairs = [worst, *zip(said.tolist(), seen.tolist(), strict=True)]
            worst = min(pairs, key=lambda pair: pair[0] / max(pair[1], 1e-300))
        return self._finding("an audit record's norm is what the record changes", worst[0], worst[1], "norm")

    def _costs(self, exposures: FloatArray, rate: float) -> Iterator[Finding]:
        """Compare the costs of audit records in the ledger with those of the exposures [steps, m] that were seen."""
        said = self.ledger.costs(_ORDERS)
        steps, records = exposures.shape
        moments = SubsampledGaussian(sample_rate=rate).log_moment(exposures.ravel(), _ORDERS)
        seen = moments.reshape(steps, records, len(_ORDERS)).sum(axis=0)
        for number, order in enumerate(_ORDERS):
            worst = int(np.argmin(said[:, number] / seen[:, number]))
            claim = f"costs in the ledger are not rounded down (lambda = {order})"
            yield self._finding(claim, float(said[worst, number]), float(seen[worst, number]), "cost")

    def _noise(self, noise_std: float, clip: float) -> Iterator[Finding]:
        """Bound the noise by the chi-square law of its differences, and its correlation from step to step."""
        noises = np.array([step.released - step.other_noise for step in self.steps]) / math.sqrt(2)
        most = math.sqrt(float((noises**2).sum() / chi2.ppf(LEVEL / _TESTS, noises.size)))
        confidence = 1 - LEVEL / _TESTS
        yield self._finding(
            "the noise is what the ledger says", clip / noise_std, clip / most, "exposure", confidence, "chi-square"
        )
        before, after = noises[:-1].ravel(), noises[1:].ravel()
        correlation = abs(float(before @ after)) / float(np.linalg.norm(before) * np.linalg.norm(after))
        surely = correlation - float(norm.isf(LEVEL / _TESTS / 2)) / math.sqrt(before.size)
        yield self._finding(
            "noise is fresh at every step", 0.0, max(surely, 0.0), "correlation", confidence, "correlation of steps"
        )

    def _sampling(self, rate: float) -> Iterator[Finding]:
        """Bound the sampling rate by the number of draws, of all records and of the one that was drawn most often.

        And compare with whom, and how regularly, records were drawn with independent draws.
        """
        counts = np.bincount(np.concatenate([step.drawn for step in self.steps]), minlength=self.records)
        steps, level = len(self.steps), LEVEL / _TESTS
        overall = rate_at_least(int(counts.sum()), steps * self.records, level)
        most = rate_at_least(int(counts.max()), steps, level / self.records)
        for claim, bound in (("records are drawn as often as the ledger says", overall), ("so is each of them", most)):
            yield self._finding(claim, rate, bound, "probability", 1 - level, "counting draws")
        if rate == 1:
            return
        outside = draw_laws.surely_correlated([step.drawn for step in self.steps], self.records, rate)
        for claim, bound in zip(draw_laws.STATISTICS, outside.tolist(), strict=True):
            attacker = f"comparison with {draw_laws.SIMULATED} simulated runs"
            yield self._finding(claim, 0.0, bound, "correlation", 1 - draw_laws.LEVEL, attacker)
