"""The worst case: classic differential privacy of the same noise, for everyone, through dp-accounting."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
from collections.abc import Generator, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bayesdp import validation
from bayesdp.formatting import round_up
from bayesdp.mechanisms.gaussian import RepeatedStep
from bayesdp.validation import InvalidInputError, refuse

PLD_ROUND_OFF = 1e-12
"""Probability that truncation and the Fourier transform may lose; taken out of delta before PLD is asked."""

_FINEST, _COARSEST_SHARE = 1e-4, 1e-5
_TOO_LITTLE_NOISE = "no finite epsilon: the noise is too small"


@dataclass(frozen=True, kw_only=True)
class WorstCase:
    """(epsilon, delta)-DP for everyone under add/remove of one record: the smallest of several upper bounds.

    ``accountant`` names the one that gave ``epsilon``: "PLD", "RDP", or "Gaussian", the exact profile of full-batch
    runs. ``pld_epsilon`` is None where that bound is not finite or delta is within its round-off.
    """

    epsilon: float
    delta: float
    accountant: str
    rdp_epsilon: float
    pld_epsilon: float | None
    reason: str | None = None
    "Why there is no finite epsilon, if that is not because of too little noise."
    assumptions: tuple[str, ...] = ()
    "What it rests on besides noise, clipping and sampling."

    def __float__(self) -> float:
        return self.epsilon

    def statement(self) -> str:
        """The worst case in words; figures are never rounded below themselves."""
        if math.isinf(self.epsilon):
            return f"For everyone: {self.reason or _TOO_LITTLE_NOISE}."
        size = round_up(self.epsilon, 4)
        assumed = f" Assumes that {'; '.join(self.assumptions)}." if self.assumptions else ""
        return f"For everyone: epsilon = {size} at delta = {self.delta:g} ({self.accountant}, proved).{assumed}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; an infinite epsilon becomes None with a reason."""
        values: dict[str, Any] = asdict(self)
        reason = values.pop("reason") or _TOO_LITTLE_NOISE
        del values["assumptions"]  # claims have them
        for name in ("epsilon", "rdp_epsilon"):
            if math.isinf(values[name]):
                values[name] = None
                values["reason"] = reason
        return values


def epsilon(*, noise_multiplier: float, sample_rate: float, steps: int, delta: float = 1e-5) -> WorstCase:
    """The worst case of ``steps`` steps of DP-SGD: Poisson sampling, clipping, Gaussian noise of multiplier z.

    Formal guarantee: an upper bound, the smallest of those by privacy loss distributions (PLD), by Rényi divergences
    and, without sampling, by the exact Gaussian profile.
    """
    return worst_case_of([(noise_multiplier, sample_rate, steps)], delta=delta)


def worst_case_of(history: Iterable[RepeatedStep] | Any, *, delta: float = 1e-5) -> WorstCase:
    """The worst case of a history of (noise multiplier, sampling rate, steps), or of a dp-accounting DpEvent."""
    delta = validation.probability("delta", delta)
    event = history if _is_event(history) else to_dp_event(history)
    with _quiet():
        rdp = _rdp(event, delta)
        pld = None if rdp == 0 else _pld(event, delta, rdp)
        bounds = {"PLD": pld, "RDP": rdp, "Gaussian": _gaussian(event, delta) if rdp > 0 else None}
    finite = {name: value for name, value in bounds.items() if value is not None}
    best = min(finite, key=finite.__getitem__)
    return WorstCase(epsilon=finite[best], delta=delta, accountant=best, rdp_epsilon=rdp, pld_epsilon=pld)


def rdp_epsilon(history: Iterable[RepeatedStep], *, delta: float = 1e-5) -> float:
    """The worst case by Rényi divergences only: looser, but fast at any setting."""
    delta = validation.probability("delta", delta)
    event = to_dp_event(history)
    with _quiet():
        return _rdp(event, delta)


def to_dp_event(history: Iterable[RepeatedStep]) -> Any:
    """The history as a dp-accounting DpEvent; equal neighbours are merged, no steps give NoOpDpEvent."""
    merged = merge(history)  # refused before the library is imported
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
    """The history inside a DpEvent of (Poisson-sampled) Gaussians; anything else is refused."""
    return merge(_repeated_steps(event, 1))


def merge(history: Iterable[RepeatedStep]) -> list[RepeatedStep]:
    """Checked entries in order, neighbours with the same noise and rate added up, empty ones left out."""
    merged: list[RepeatedStep] = []
    for entry in history:
        try:
            noise, rate, count = entry
        except (TypeError, ValueError):
            raise refuse("history", entry, "triples (noise_multiplier, sample_rate, steps)") from None
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
    library = sys.modules.get("dp_accounting")  # who holds an event has imported it
    return library is not None and isinstance(value, library.DpEvent)


def _rdp(event: Any, delta: float) -> float:
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant()
    try:
        accountant.compose(event)
    except Exception as error:
        raise InvalidInputError(f"event={type(event).__name__}: {str(error).splitlines()[0]}") from None
    with np.errstate(all="ignore"):
        return max(0.0, float(accountant.get_epsilon(delta)))


def _pld(event: Any, delta: float, rdp: float) -> float | None:
    """PLD with a discretisation that suits the size of epsilon: the finest step is 1e-3 of it, the coarsest 1e-5."""
    from dp_accounting.pld import PLDAccountant

    if delta <= 2 * PLD_ROUND_OFF or not math.isfinite(rdp) or rdp > 1000:
        return None
    value = rdp
    interval = math.inf
    for _ in range(3):  # RDP may be far above PLD for quiet runs: refine until the discretisation is small beside it
        finer = max(min(_FINEST, 1e-3 * value), _COARSEST_SHARE * value)
        if finer > 0.5 * interval:
            break
        interval = finer
        accountant = PLDAccountant(value_discretization_interval=interval)
        try:
            accountant.compose(event)
        except Exception:  # an event that only RDP supports
            return None
        value = max(0.0, float(accountant.get_epsilon(delta - PLD_ROUND_OFF)))
        if not 0 < value < math.inf:
            break
    return value if math.isfinite(value) else None


def _gaussian(event: Any, delta: float) -> float | None:
    """The exact epsilon of a run without sampling (Balle & Wang 2018): one Gaussian release of all steps together."""
    from dp_accounting import get_epsilon_gaussian

    try:
        steps_taken = from_dp_event(event)
    except InvalidInputError:
        return None
    if not steps_taken or any(rate < 1 for _, rate, _ in steps_taken):
        return None
    sensitivity = math.sqrt(math.fsum(steps / noise**2 for noise, _, steps in steps_taken))
    if sensitivity < 1e-7:  # its difference of two normal tails would cancel
        return None
    with np.errstate(all="ignore"):
        value = float(get_epsilon_gaussian(1 / sensitivity, delta, tol=1e-12))
    return value * (1 + 1e-7) + 1e-11 if math.isfinite(value) else None


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Without the log lines that dp-accounting writes when it leaves a fractional order out."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
