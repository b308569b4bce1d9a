"""Add up over ranks what the next step will release: norms of all batches, norms of all audit records, caveats.

Every rank has a sum of its own, as in a run of one process. Before noise is drawn all of them are gathered in one
message of 64-bit integers for each rank, so that every rank checks the same figures and comes to the same result: ranks
that disagree about noise or clip bound, or that do not draw independently (rank_draws.py), all stop, before anything
of the step is released. Rank 0 then has the sum over all ranks, which its ledger records as one step with the noise
that Opacus adds once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from bayesdp.ledger import CAVEATS
from bayesdp.opacus.audit_measurement import AuditMeasurement
from bayesdp.opacus.clipping import FlatClipping
from bayesdp.opacus.draw_repeats import DrawRepeats
from bayesdp.opacus.draws import Draw
from bayesdp.opacus.earlier_sources import EarlierSources
from bayesdp.opacus.rank_draws import Dealt, DrawGuard
from bayesdp.opacus.ranks import LedgerOfRankZero, Ranks, RanksError
from bayesdp.opacus.recording import DeviceNorms, GradientSum
from bayesdp.opacus.sampling import Sampling
from bayesdp.run_ledger import Ledger
from bayesdp.validation import refuse

_NAMES = sorted(CAVEATS)
_HEADER, _PER_DRAW = 9, 6
_COMPLETE, _FAILED = 1, 2
_SPARE = 64


class OverRanks:
    """One step of several processes: their sums become one, and rank 0 decides and records for all of them.

    Of a run of one process, nothing but its own sum and its own decisions. ``budgeted`` says whether rank 0 has a
    budget to ask.
    """

    def __init__(
        self,
        ranks: Ranks,
        sampling: Sampling,
        clipping: FlatClipping,
        audit: AuditMeasurement | None,
        ledger: Ledger | LedgerOfRankZero,
        earlier: EarlierSources,
        *,
        budgeted: bool,
    ) -> None:
        self.ranks, self._ledger, self._budgeted = ranks, ledger, budgeted
        self.used_noise = earlier.noise
        "Digests of the states that noise of the ledger's steps came from; none on ranks other than 0."
        self._repeats = DrawRepeats(ranks.share(sorted(earlier.draws)))
        self._guard = DrawGuard(ranks.size, sampling.records_here, self._mark_earlier_steps)
        expected = 2 * int(sampling.planned_batch or 0) // ranks.size + (0 if audit is None else audit.records)
        self._room = max(ranks.agree(_HEADER + _PER_DRAW + expected + _SPARE))
        "How long the messages of this step may be."
        self._recorded = 0
        self._noise_stream, self._collective = clipping.noise_stream, clipping.collective

    @contextmanager
    def preparing(self) -> Generator[None]:
        """Compute the sum of this rank; if that fails, the others hear of it when theirs are complete.

        With a sharded model they may be waiting in another collective: they notice when this rank has left.
        """
        try:
            yield
        except Exception as error:
            if self.ranks.size > 1 and not self._collective and not isinstance(error, RanksError):
                self._exchange(_failure())
            raise

    def ends(self, decision: Callable[[], bool]) -> bool:
        """Return whether training ends here, as rank 0 knows if there is a budget."""
        if self.ranks.size == 1:
            return decision()
        if not self._budgeted or not self.ranks.decide(decision, "could not ask the budget"):
            return False
        self.ranks.await_messages(0)  # about this step there are no further ones
        return True

    def record(self, step: Callable[[], None]) -> None:
        """Record a step on rank 0; returns on every rank when it is on disk.

        Raises RanksError on the other ranks if that failed; rank 0 raises what the ledger did.
        """
        self._repeats.released()
        self.ranks.do(step, "could not record the step")
        self._recorded += 1

    def failed(self, error: BaseException) -> None:
        """Tell the others that this rank does not go on with the step, if they are waiting for it."""
        if isinstance(error, Exception) and not isinstance(error, RanksError):
            self.ranks.excuse()

    def _mark_earlier_steps(self) -> None:
        """Note in the ledger that ranks have drawn the same records, in steps that were released before it showed."""
        if self._recorded and isinstance(self._ledger, Ledger):
            self._ledger.amend(self._ledger.steps, caveats=["drawn-together"])

    def whole(self, own: GradientSum) -> GradientSum:
        """Return on rank 0 the sum over all ranks, and on the others their own; it is the same step for all.

        Raises InvalidInputError on all ranks if their sums do not belong together, or if ranks draw the same records,
        their own or those of an earlier step; RanksError if another rank failed, ended or hangs.
        """
        if self.ranks.size == 1:
            self._repeats.check(state for draw in own.batch for state in draw.states)
            return own
        sums = [_Received(row) for row in self._exchange(_message(own, self._noise_stream(), self.ranks.device))]
        failed = [rank for rank, received in enumerate(sums) if received.failed]
        if failed:
            raise RanksError(f"rank={failed[0]} has refused the step; it says why. Nothing of it was released.")
        self._check(sums, own)
        self.ranks.await_messages(3 if self._budgeted else 1)
        return _added_up(own, sums) if self.ranks.has_ledger else own

    def _check(self, sums: Sequence[_Received], own: GradientSum) -> None:
        for name, values in (
            ("noise_multiplier * max_grad_norm", [received.noise_std for received in sums]),
            ("max_grad_norm", [received.bound for received in sums]),
            ("batches in a step", [len(received.draws) for received in sums]),
        ):
            if len(set(values)) > 1:
                raise refuse(name, values, "the same on every rank")
        places = {(stream, place) for stream, place in (received.noise_stream for received in sums) if stream >= 0}
        if len(places) > len({stream for stream, _ in places}):
            expected = "a seed of its own for each rank, or the same generator in the same state on all of them"
            raise refuse("noise_generator", "one seed, at different places", f"{expected}: noise would repeat itself")
        for number, draw in enumerate(own.batch):
            self._guard.check([received.draws[number].dealt for received in sums], draw.rate or 1.0)
        self._repeats.check(state for received in sums for draw in received.draws for state in draw.states)

    def _exchange(self, message: torch.Tensor) -> list[np.ndarray]:
        """Return the messages of all ranks; once they are longer than expected, there is more room from then on."""
        rows = self.ranks.gather(_padded(message, self._room))
        longest = int(rows[:, 0].max())
        if longest > self._room:
            self._room = longest + longest // 4
            rows = self.ranks.gather(_padded(message, self._room))
        return [row[: int(row[0])].numpy() for row in rows]


@dataclass(frozen=True)
class _ReceivedDraw:
    records: int
    norms: np.ndarray
    dealt: Dealt
    states: tuple[int, ...]


class _Received:
    """The sum of one rank, as it was sent."""

    def __init__(self, message: np.ndarray) -> None:
        self.failed = int(message[1]) == _FAILED
        if self.failed:
            return
        _, _, caveats, draws, audit_rows, *self.noise_stream = message[:7].tolist()
        self.noise_std, self.bound = message[7:_HEADER].view(np.float64).tolist()
        self.caveats = frozenset(name for bit, name in enumerate(_NAMES) if caveats >> bit & 1)
        about = message[_HEADER : _HEADER + draws * _PER_DRAW].reshape(draws, _PER_DRAW).tolist()
        norms = message[_HEADER + draws * _PER_DRAW :].view(np.float64)
        self.draws: list[_ReceivedDraw] = []
        for records, rows, positions, dealing, seed, state in about:
            states = () if state < 0 else (state,)
            self.draws.append(_ReceivedDraw(records, norms[:rows], Dealt(positions, dealing, seed), states))
            norms = norms[rows:]
        self.audit = None if audit_rows < 0 else norms


def _message(own: GradientSum, noise: tuple[int, int], device: torch.device) -> torch.Tensor:
    """Return a sum as integers: length, state, caveats, draws, audit rows; where noise comes from; noise, bound; then
    each draw, and norms by draw."""
    audit_rows = -1 if own.audit is None else len(own.audit)
    caveats = sum(1 << _NAMES.index(name) for name in own.caveats)
    header = [0, _COMPLETE, caveats, len(own.batch), audit_rows, *noise]
    header += np.array([own.noise_std, own.bound]).view(np.int64).tolist()
    for draw, norms in own.batch.items():
        dealt = draw.dealt or Dealt(0, 0, -1)
        header += [draw.records, len(norms), dealt.positions, dealt.dealing, dealt.seed, *(draw.states or [-1])]
    norms = [*own.batch.values(), *([] if own.audit is None else [own.audit])]
    parts = [each.tensor.to(device, torch.float64).view(torch.int64) for each in norms]
    message = torch.cat([torch.tensor(header, device=device), *parts])
    message[0] = len(message)
    return message


def _failure() -> torch.Tensor:
    return torch.tensor([2, _FAILED])


def _padded(message: torch.Tensor, room: int) -> torch.Tensor:
    row = message.new_zeros(room)
    row[: len(message)] = message[:room]
    return row


def _added_up(own: GradientSum, sums: Sequence[_Received]) -> GradientSum:
    """Return the sum over all ranks. Audit norms are in the order of ranks; without those of a rank, there are none."""
    batch: dict[Draw, DeviceNorms] = {}
    for number, draw in enumerate(own.batch):
        parts = [received.draws[number] for received in sums]
        states = tuple(state for part in parts for state in part.states)
        whole = Draw(draw.iteration, draw.number, sum(part.records for part in parts), draw.rate, states=states)
        batch[whole] = _norms("batch", [part.norms for part in parts])
    audits = [received.audit for received in sums]
    known = [audit for audit in audits if audit is not None]
    return GradientSum(
        noise_std=own.noise_std,
        bound=own.bound,
        batch=batch,
        audit=_norms("audit", known) if len(known) == len(audits) else None,
        caveats=frozenset[str]().union(*(received.caveats for received in sums)),
        noise=own.noise,
    )


def _norms(name: str, parts: Sequence[np.ndarray]) -> DeviceNorms:
    return DeviceNorms(name, torch.from_numpy(np.concatenate(parts)))
