"""A dry run of the audit before training: are norms the same whatever else is in the pass, and when asked again?

Opacus recovers the gradient of a record from that of a batch: it multiplies by the size of the batch if
``make_private`` was told that the loss averages (``loss_reduction="mean"``, the default), and not at all if it was told
that the loss adds up. A loss that adds up while Opacus believes that it averages (a variational autoencoder, usually)
then gives norms that grow with the batch: those of audit records depend on ``audit_batch``, and those of training
records on who else was drawn, which no accounting covers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

from bayesdp.opacus.collating import mixed
from bayesdp.opacus.hidden_draws import borrowed_random_numbers, draw_on
from bayesdp.validation import refuse

Norms = Callable[[torch.Tensor], torch.Tensor]
_PASSES = 128  # at most, if norms are random and must be averaged
_SURE = 5.0  # standard errors
_MOST = 16
_TRIES = 8  # mixup may leave a record alone, or do nothing this time


@dataclass(frozen=True)
class DryRun:
    """What a dry run has shown about the norms of audit records; wrong ones are refused before this is returned."""

    conclusive: bool
    "False if no norm was above 0, or some were not finite."
    random: bool
    "Whether norms differ, or random numbers were drawn, when the same records are asked for again."


def dry_run(
    norms: Norms,
    quiet_norms: Norms,
    kinds: torch.Tensor,
    audit_batch: int,
    reduction: str,
    devices: list[int],
) -> DryRun:
    """Compare norms of a few audit records by themselves and among many others.

    ``norms`` returns those of the records with the given numbers in one pass, before any clipping; ``quiet_norms`` does
    so without the layers that are known to be random. ``kinds`` has a number for each record (``AuditData.kinds``):
    records of different kinds are compared, as far as there are any. Raises InvalidInputError if norms depend on the
    other records in the pass. The random numbers of the run are put back.
    """
    many = min(_MOST, max(4, audit_batch))
    few = many // 4
    among = _various(kinds, many)
    places = torch.arange(few) * (many // few)
    alone, times = among[places], many / few
    is_random, first = _asked_twice(norms, alone, devices)
    if is_random:
        norms = quiet_norms
        still_random, first = _asked_twice(norms, alone, devices)
    else:
        still_random = False
    with borrowed_random_numbers(devices):
        everywhere = norms(among)
        together = everywhere[places]
        shown = torch.cat([first, together])
        if not bool(torch.isfinite(shown).all()) or not float(shown.max()) > 0:
            return DryRun(conclusive=False, random=is_random)
        if still_random:
            _check_not_mixed(norms, among, devices)
            ratio = _mean_ratio(lambda: norms(alone), lambda: norms(among)[places], math.log(times) / 2)
            separate = times**-0.5 < ratio < times**0.5
        else:
            ratio = float(together.sum() / first.sum())
            separate = _close(first, together) and _close(_each_twice(norms, alone), together)
    moved = not still_random and not _close(first, together) and _reordered(first, everywhere)
    if not separate and moved:
        expected = "audit records in the order in which the collate function puts a batch (sorted by length, perhaps)"
        raise refuse("audit", "reordered", expected)
    if not separate:
        raise _refusal(ratio, times, reduction)
    return DryRun(conclusive=True, random=is_random)


def _asked_twice(norms: Norms, rows: torch.Tensor, devices: list[int]) -> tuple[bool, torch.Tensor]:
    """Return whether norms are random, and the norms."""
    with borrowed_random_numbers(devices) as borrowed:
        first, again = norms(rows), norms(rows)
    return borrowed.drawn or not _close(first, again), first


def _various(kinds: torch.Tensor, many: int) -> torch.Tensor:
    """Return the numbers of ``many`` records, in order: one of each kind if there are no more, others from all over.

    A collate function that sorts leaves them in order, and in sorted data the first records are all alike.
    """
    records = len(kinds)
    spread = (torch.arange(many) * max(records, many) // many % records).tolist()
    first: dict[int, int] = {}
    for number, kind in enumerate(kinds.tolist()):
        first.setdefault(kind, number)
    rare = [number for number in list(first.values())[: many // 2] if number not in spread]
    kept = [spread[place * many // (many - len(rare))] for place in range(many - len(rare))]
    return torch.tensor(sorted(kept + rare))


def _each_twice(norms: Norms, rows: torch.Tensor) -> torch.Tensor:
    """Return the norms of records that have nobody beside them but themselves: some models fail on a single row."""
    return torch.cat([norms(torch.stack([row, row]))[:1] for row in rows])


def _close(first: torch.Tensor, second: torch.Tensor) -> bool:
    scale = float(torch.maximum(first, second).nan_to_num(0.0, posinf=0.0).max())
    return bool(torch.allclose(first, second, rtol=1e-2, atol=1e-3 * scale, equal_nan=True))


def _reordered(alone: torch.Tensor, among: torch.Tensor) -> bool:
    """Return whether all norms are there, each in another place: the collate function has moved records."""
    nearest = (among[None] - alone[:, None]).abs().argmin(dim=1)
    return len(set(nearest.tolist())) == len(alone) and bool(torch.allclose(alone, among[nearest], rtol=1e-4))


def _mean_ratio(alone: Callable[[], torch.Tensor], among: Callable[[], torch.Tensor], least: float) -> float:
    """Return how much larger random norms are among many records, in the geometric mean over as many passes as needed.

    It ends when a difference of ``least`` between the means of the logarithms is 5 standard errors, or after 128
    passes of each; if that is not enough for a difference that was found, the ratio is 1. Norms of one pass may share
    a draw, so a pass is one observation.
    """
    logs: tuple[list[float], list[float]] = ([], [])
    difference = error = math.inf
    for number in range(1, _PASSES + 1):
        for norms, kept in zip((alone, among), logs, strict=True):
            drawn = norms().double()
            if bool((drawn > 0).any()):
                kept.append(float(drawn[drawn > 0].log().mean()))
        if number >= 8 and min(map(len, logs)) > 1:
            difference = statistics.fmean(logs[1]) - statistics.fmean(logs[0])
            error = math.sqrt(sum(statistics.variance(kept) / len(kept) for kept in logs))
            if _SURE * error < least:
                return math.exp(difference)
    return math.exp(difference) if _SURE * error < abs(difference) < math.inf else 1.0


def _check_not_mixed(norms: Norms, rows: torch.Tensor, devices: list[int]) -> None:
    """Raise InvalidInputError if the norm of the first record depends on the others, with the same random numbers.

    The others are the same in another order, so that whatever is drawn for a batch has the same shape. Nothing is
    found if random numbers come from elsewhere than from the generators of PyTorch, NumPy and Python.
    """
    others = torch.cat([rows[:1], rows[2:], rows[1:2]])

    def first_of(asked: torch.Tensor) -> torch.Tensor:
        with borrowed_random_numbers(devices):
            return norms(asked)[:1]

    for _ in range(_TRIES):
        draw_on()
        first = first_of(rows)
        if not _close(first, first_of(rows)):
            return
        if not _close(first, first_of(others)):
            raise mixed("loss")


def _refusal(ratio: float, times: float, reduction: str) -> Exception:
    if reduction == "mean" and ratio > times**0.5:
        expected = "'sum' in make_private: the loss adds up, so that norms grow with the batch; or a loss that averages"
        return refuse("loss_reduction", "mean", expected)
    if reduction == "sum" and ratio < times**-0.5:
        expected = "'mean' in make_private: the loss averages, so that norms shrink with the batch; or a loss that adds"
        return refuse("loss_reduction", "sum", expected)
    expected = (
        "a model and a loss that treat each record by itself: norms depend on the other records of the batch (weights, "
        "ignored targets or tokens in a mean over the batch: use a function loss(model, batch) that returns one loss "
        "for each record, in training too; padding to the longest of a batch: pad to a fixed length)"
    )
    return refuse("loss", "coupled records", expected)
