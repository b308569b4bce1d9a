"""The worst case: classic differential privacy of given noise, for everyone, through dp-accounting."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from bayesdp import validation
from bayesdp.formatting import round_up
from bayesdp.guarantees.bounded_pld import BEYOND_SUPPORT, COARSENED, PldBound, bounded_pld
from bayesdp.guarantees.renyi_divergences import sampled_divergences
from bayesdp.mechanisms.gaussian import RepeatedStep
from bayesdp.mechanisms.log_moments import log_moments
from bayesdp.profiles import gaussian_epsilon
from bayesdp.profiles.conversion import epsilon_from_costs
from bayesdp.validation import FloatArray, InvalidInputError, refuse

ONLY_RENYI = "Only Rényi divergences gave a bound here; the exact epsilon may be much less."
"""What is said of a figure for which privacy loss distributions gave none."""
_LAMBDAS = np.arange(1.0, 513.0)
_RDP_ROUND_OFF = 1e-12  # by which dp-accounting's Rényi divergence of one sampled step may be too small
_TOO_LITTLE_NOISE = "no finite epsilon: the noise is too small"


@dataclass(frozen=True, kw_only=True)
class WorstCase:
    """(epsilon, delta)-DP for everyone under add/remove of one record: the smallest of several upper bounds.

    ``accountant`` names the bound that gave ``epsilon``: "PLD", "RDP", or "Gaussian", the profile of full-batch runs,
    which is exact for them and bounds sampled runs too. ``rdp_epsilon`` and ``pld_epsilon`` are the first two;
    ``pld_epsilon`` is None where it is not finite, where delta is within its round-off, or where the event is not
    supported. ``float(worst_case)`` is ``epsilon``.
    """

    epsilon: float
    delta: float
    accountant: str
    rdp_epsilon: float
    pld_epsilon: float | None
    reason: str | None = None
    "Why there is no finite epsilon, if not for too little noise."
    assumptions: tuple[str, ...] = ()
    "What the guarantee rests on besides noise, clipping and sampling."
    kind: Literal["proved", "estimate"] = "proved"
    "An estimate if one of the assumptions is known to be doubtful."
    condition: str | None = None
    "What must be true for it to be proved, if not every run of the procedure is covered."
    basis: str | None = None
    'What was declared before the run and makes it hold whenever the run ended, such as "the plan of 60 steps".'
    note: str | None = None
    "A sentence about what the figure is of, such as the plan of a run."
    computed: str | None = None
    "A sentence about how it was computed, if not as usual: on a coarser grid, or by Rényi divergences only."

    def __float__(self) -> float:
        return self.epsilon

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the figure should see: ``note`` and ``computed``, where they are given."""
        return tuple(text for text in (self.note, self.computed) if text)

    def statement(self) -> str:
        """Return the worst case in a sentence; figures are rounded up, never down."""
        if math.isinf(self.epsilon):
            return f"For everyone: {self.reason or _TOO_LITTLE_NOISE}."
        size = round_up(self.epsilon, 4)
        kind = f"{self.kind} {self.condition}" if self.condition else self.kind
        notes = "".join(f" {text}" for text in self.notes)
        assumed = f" Assumes that {'; '.join(self.assumptions)}." if self.assumptions else ""
        return f"For everyone: epsilon = {size} at delta = {self.delta:g} ({self.accountant}, {kind}).{assumed}{notes}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; an infinite epsilon becomes None, with a ``reason`` beside it."""
        values: dict[str, Any] = asdict(self)
        reason = values.pop("reason") or _TOO_LITTLE_NOISE
        for name in ("assumptions", "kind", "condition", "basis", "note"):  # these are stated by the claims
            del values[name]
        if values["computed"] is None:
            del values["computed"]
        for name in ("epsilon", "rdp_epsilon"):
            if math.isinf(values[name]):
                values[name] = None
                values["reason"] = reason
        return values

    def to_dict_with_kind(self) -> dict[str, Any]:
        """Return the same of a run, whose figure need not be proved, or only on a condition."""
        return {**self.to_dict(), "kind": self.kind, "condition": self.condition}


def epsilon(*, noise_multiplier: float, sample_rate: float, steps: int, delta: float = 1e-5) -> WorstCase:
    """Return the worst case of ``steps`` steps of DP-SGD: Poisson sampling, clipping, Gaussian noise.

    ``noise_multiplier`` is the standard deviation of the noise over the clip norm, ``sample_rate`` the probability with
    which each record is in a batch.

    Formal guarantee: an upper bound of epsilon for everyone, under add/remove of one record: the smallest of those by
    privacy loss distributions (PLD), by Rényi divergences (RDP) and by the Gaussian profile, exact without sampling.
    Discretisation and round-off err upwards. No steps cost nothing.

    Raises InvalidInputError for a noise multiplier outside [1e-6, 1e12], a rate outside (0, 1], a number of steps that
    is not whole, or a delta that is not strictly between 0 and 1.
    """
    return worst_case_of([(noise_multiplier, sample_rate, steps)], delta=delta)


def worst_case_of(history: Iterable[RepeatedStep] | Any, *, delta: float = 1e-5) -> WorstCase:
    """Return the worst case of a history of (noise multiplier, sampling rate, steps), or of a dp-accounting DpEvent.

    The guarantee is that of ``epsilon``, for steps whose settings differ. A DpEvent may hold any mechanism that
    dp-accounting's RDP accountant supports; PLD joins in where it supports the event too. Raises InvalidInputError for
    entries that are no such triples or out of range, and for events that are not supported.
    """
    delta = validation.probability("delta", delta)
    if _is_event(history):
        return _worst_case(history, _steps_of(history), delta, _renyi_accountant)
    return _worst_case_of_steps(tuple(merge(history)), delta)


@lru_cache(maxsize=1024)
def _worst_case_of_steps(steps: tuple[RepeatedStep, ...], delta: float) -> WorstCase:
    """Return the worst case of merged steps; kept, because claims, statement and report ask for the same one."""
    return _worst_case(to_dp_event(steps), list(steps), delta, lambda _: _renyi_of_steps(steps))


def _worst_case(
    event: Any, steps: list[RepeatedStep] | None, delta: float, renyi_accountant: Callable[[Any], Any]
) -> WorstCase:
    """Return the smallest bound of an event; ``steps`` are those of an event made of Gaussians."""
    with _quiet():
        accountant = renyi_accountant(event)
        rdp = _rdp(accountant, steps, delta)
        pld = PldBound(None, False)
        if rdp > 0:
            largest = _gaussian(steps, BEYOND_SUPPORT) if steps else None
            support = min(_rdp(accountant, steps, BEYOND_SUPPORT), math.inf if largest is None else largest)
            pld = bounded_pld(event, steps, delta, rdp, support)
        gaussian = _gaussian(steps, delta) if rdp > 0 and steps else None
        bounds = {"PLD": pld.epsilon, "RDP": rdp, "Gaussian": gaussian}
    finite = {name: value for name, value in bounds.items() if value is not None}
    best = min(finite, key=finite.__getitem__)
    computed = None
    if best == "PLD" and pld.coarse:
        computed = COARSENED
    elif best == "RDP" and pld.epsilon is None and rdp > 0:
        computed = ONLY_RENYI
    return WorstCase(
        epsilon=finite[best],
        delta=delta,
        accountant=best,
        rdp_epsilon=rdp,
        pld_epsilon=pld.epsilon,
        computed=computed,
    )


def rdp_epsilon(history: Iterable[RepeatedStep], *, delta: float = 1e-5) -> float:
    """Return epsilon of a history by Rényi divergences only: an upper bound that is looser, but fast at any setting.

    Raises InvalidInputError as ``worst_case_of`` does.
    """
    delta = validation.probability("delta", delta)
    steps = merge(history)
    with _quiet():
        return _rdp(_renyi_of_steps(steps), steps, delta)


def to_dp_event(history: Iterable[RepeatedStep]) -> Any:
    """Return a history of (noise multiplier, sampling rate, steps) as a dp-accounting DpEvent.

    Neighbours with equal settings are merged; no steps give NoOpDpEvent. Raises InvalidInputError for entries that are
    no such triples or out of range.
    """
    merged = merge(history)  # checked before the library is imported, which is slow
    import dp_accounting as dp

    events: list[Any] = []
    for noise_multiplier, rate, steps in merged:
        event: Any = dp.GaussianDpEvent(noise_multiplier)
        if rate < 1:
            event = dp.PoissonSampledDpEvent(rate, event)
        events.append(dp.SelfComposedDpEvent(event, steps))
    if not events:
        return dp.NoOpDpEvent()
    return events[0] if len(events) == 1 else dp.ComposedDpEvent(events)


def from_dp_event(event: Any) -> list[RepeatedStep]:
    """Return the history (noise multiplier, sampling rate, steps) inside a DpEvent; the inverse of ``to_dp_event``.

    The event may nest compositions of Gaussians, Poisson-sampled or not; anything else raises InvalidInputError.
    """
    return merge(_repeated_steps(event, 1))


def merge(history: Iterable[RepeatedStep]) -> list[RepeatedStep]:
    """Return the checked entries of a history in order; neighbours of equal noise and rate are added up.

    Entries without steps are left out. Raises InvalidInputError for an entry that is no triple, a noise multiplier
    outside [1e-6, 1e12], a rate outside (0, 1], or a number of steps that is not whole.
    """
    triples = "triples (noise_multiplier, sample_rate, steps)"
    if not isinstance(history, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise refuse("history", history, triples)
    merged: list[RepeatedStep] = []
    for entry in history:
        try:
            noise, rate, count = entry
        except (TypeError, ValueError):
            raise refuse("history", entry, triples) from None
        noise = validation.noise_multiplier(noise)
        rate = validation.sample_rate(rate)
        steps = validation.count("steps", count, minimum=0)
        if merged and merged[-1][:2] == (noise, rate):
            merged[-1] = (noise, rate, merged[-1][2] + steps)
        elif steps:
            merged.append((noise, rate, steps))
    return merged


def _repeated_steps(event: Any, times: int) -> Iterator[RepeatedStep]:
    import dp_accounting as dp

    if isinstance(event, dp.NoOpDpEvent):
        return
    if isinstance(event, dp.GaussianDpEvent):
        yield float(event.noise_multiplier), 1.0, times
    elif isinstance(event, dp.PoissonSampledDpEvent) and isinstance(event.event, dp.GaussianDpEvent):
        if event.sampling_probability > 0:
            yield float(event.event.noise_multiplier), float(event.sampling_probability), times
    elif isinstance(event, dp.SelfComposedDpEvent):
        yield from _repeated_steps(event.event, times * int(event.count))
    elif isinstance(event, dp.ComposedDpEvent):
        for _ in range(times):
            for part in event.events:
                yield from _repeated_steps(part, 1)
    else:
        raise refuse("event", type(event).__name__, "Gaussian events, Poisson-sampled or not, composed")


def _is_event(value: object) -> bool:
    library = sys.modules.get("dp_accounting")  # whoever holds an event has imported the library
    return library is not None and isinstance(value, library.DpEvent)


def _renyi_accountant(event: Any) -> Any:
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant()
    try:
        accountant.compose(event)
    except Exception as error:
        raise InvalidInputError(f"event={type(event).__name__}: {str(error).splitlines()[0]}") from None
    return accountant


def _renyi_of_steps(steps_taken: Sequence[RepeatedStep]) -> Any:
    """Return what ``_renyi_accountant`` returns for the event of these steps, to the last bit.

    dp-accounting computes the Rényi divergences of a step again for every number of steps and every delta.
    """
    accountant = _renyi_accountant(to_dp_event([]))
    for noise, rate, steps in steps_taken:
        accountant._rdp += steps * _step_divergences(noise, rate)
    return accountant


@lru_cache(maxsize=1024)
def _step_divergences(noise_multiplier: float, rate: float) -> FloatArray:
    """Return the Rényi divergences [A] of one step at the orders of dp-accounting; kept, because they are slow."""
    if rate < 1:
        divergences = sampled_divergences(noise_multiplier, rate, _renyi_accountant(to_dp_event([]))._orders)
    else:
        divergences: FloatArray = _renyi_accountant(to_dp_event([(noise_multiplier, rate, 1)]))._rdp
    divergences.setflags(write=False)
    return divergences


def _rdp(accountant: Any, steps_taken: Sequence[RepeatedStep] | None, delta: float) -> float:
    """Return epsilon by the Rényi divergences of an accountant, and of its Gaussian steps if it has no others."""
    with np.errstate(all="ignore"):
        value = max(0.0, float(accountant.get_epsilon(delta)))
    sampled = [step for step in steps_taken or [] if step[1] < 1]
    if value == 0 and sampled:
        return _quiet_renyi(steps_taken or [], delta)
    return value + _RDP_ROUND_OFF * sum(steps for _, _, steps in sampled)


def _quiet_renyi(steps_taken: Sequence[RepeatedStep], delta: float) -> float:
    """Return epsilon by Rényi divergences of a run for which dp-accounting has 0, with moments that do not cancel.

    Its log-moments of sampled steps are logarithms of sums near 1, which are 0 for much noise: no reason for an epsilon
    of 0. That takes a total variation within delta, at most sqrt(1 - e^{-KL}) (Bretagnolle & Huber 1979).
    """
    costs = sum(steps * log_moments(rate, [1 / noise], _LAMBDAS)[0] for noise, rate, steps in steps_taken)
    costs = np.asarray(costs) * (1 + 1e-9)
    if delta**2 * (1 - 1e-9) > -math.expm1(-float(costs[0])):
        return 0.0
    return epsilon_from_costs(costs, _LAMBDAS, delta, "improved")[0]


def _steps_of(event: Any) -> list[RepeatedStep] | None:
    """Return the steps of an event made of Gaussians, None if it holds anything else."""
    try:
        return from_dp_event(event)
    except InvalidInputError:
        return None


def _gaussian(steps_taken: Sequence[RepeatedStep], delta: float) -> float | None:
    """Return epsilon of a run as one Gaussian release (Balle & Wang 2018), rounded up; None where it is not finite.

    Exact without sampling. With it, an upper bound: whoever is always drawn loses no less (joint convexity).
    """
    from dp_accounting import get_epsilon_gaussian

    sensitivity = math.sqrt(math.fsum(steps / noise**2 for noise, _, steps in steps_taken))
    if sensitivity < 1e-3:  # the difference of two normal tails would cancel
        return float(gaussian_epsilon(sensitivity * (1 + 2.0**-40), delta))
    with np.errstate(all="ignore"):
        value = float(get_epsilon_gaussian(1 / sensitivity, delta, tol=1e-12))
    return value * (1 + 1e-7) + 1e-11 if math.isfinite(value) else None


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Silence the log lines that dp-accounting writes whenever it skips a fractional order."""
    logger = logging.getLogger("absl")
    before, logger.disabled = logger.disabled, True  # a level would clear what all loggers of the process keep
    try:
        yield
    finally:
        logger.disabled = before
