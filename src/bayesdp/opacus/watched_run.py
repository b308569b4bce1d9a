"""A run with Opacus that is being watched: every step is in the ledger before its update is applied.

Why ``pre_step`` is replaced (``Watch._before_step``)
    ``DPOptimizer.step`` calls ``pre_step`` (clip, add to the sum, draw noise, step hook) and updates if it returns
    True. The hook that Opacus offers for accounting comes last in it and has no say: it cannot drop a sum that the
    budget does not allow without an exception in the user's loop, and it is not called at all for the parts of a
    virtual batch. By then noise is drawn and whatever was signalled about parts is used up. So ``pre_step`` of this one
    optimizer first notes the batch, computes audit norms and asks the budget, and calls Opacus' own ``pre_step`` if the
    step may be taken. ``DPOptimizer.step`` itself stays, as learning rate schedulers wrap it.

Why the step is recorded in the step hook (``Watch._before_update``)
    It is the last moment before the update: noise is drawn, nothing was used. What fails earlier was never released,
    and is not recorded; what is recorded and then lost in a crash is charged, as it may have been used. The hook that
    was there before, Opacus' accountant, is called from ours.

Why the wrapped optimizer gets a guard (``Watch._check_recorded``)
    There are two ways past the hook: another hook may be attached after ours (``attach_step_hook`` keeps one only), and
    ``original_optimizer.step()`` updates without noise. PyTorch calls hooks of ``register_step_pre_hook`` before any
    update by the wrapped optimizer, and ours raises unless a step was recorded for it.

What would break this: an update by another method than ``original_optimizer.step``; a ``step`` that does not call
``pre_step`` (the guard then refuses every step). The guard is strict: an optimizer of your own whose ``step`` calls
that of its base class is refused where PyTorch calls the hook for both.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Self, cast

import torch

from bayesdp.claims import RunClaims
from bayesdp.claims.stopping import StopWhen
from bayesdp.ledger import OPACUS, StepSource, check_continues, position_of
from bayesdp.opacus.accountant import AccountantHook
from bayesdp.opacus.audit_measurement import AuditMeasurement
from bayesdp.opacus.budget_check import BudgetCheck
from bayesdp.opacus.buffers import Buffers
from bayesdp.opacus.clipping import FlatClipping
from bayesdp.opacus.coupling import check_mode, coupling_layers, refuse_unsorted_sequences
from bayesdp.opacus.earlier_steps import EarlierSteps
from bayesdp.opacus.handed_out import PassNote
from bayesdp.opacus.noise_repeats import NoiseRepeats
from bayesdp.opacus.open_sum import OpenSum
from bayesdp.opacus.outside_steps import OutsideSteps
from bayesdp.opacus.passes import PassCounter
from bayesdp.opacus.precision import SeenAutocast
from bayesdp.opacus.rank_steps import OverRanks
from bayesdp.opacus.ranks import LedgerOfRankZero
from bayesdp.opacus.recording import GradientSum, PoissonSteps, ShuffledEpochs, warn_if_noise_changed
from bayesdp.opacus.sampling import Sampling
from bayesdp.opacus.secure import SecureNoise
from bayesdp.opacus.unnoised import RawGradients
from bayesdp.opacus.untrained import Movement
from bayesdp.report.views import View
from bayesdp.run_ledger import Ledger
from bayesdp.validation import refuse


class BudgetReachedWarning(UserWarning):
    """The declared budget allows no further step: training has ended."""


class Watch:
    """A run that is being watched; ``watch`` returns it.

    ``claims`` and ``statement`` may be asked at any time. ``close``, or the end of a ``with`` block, leaves Opacus'
    objects as they were before. A checkpoint should contain ``state_dict()`` unless Opacus' accountant is "bayesdp",
    which notes the same in its own state.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        sampling: Sampling,
        clipping: FlatClipping,
        ledger: Ledger | LedgerOfRankZero,
        audit: AuditMeasurement | None,
        earlier: EarlierSteps,
        budget: StopWhen | None,
        over_ranks: OverRanks,
        *,
        owned: bool,
        live: View | None = None,
    ) -> None:
        self.ledger = cast(Ledger, ledger)
        "The ledger; on ranks other than 0 of several, an object that says that rank 0 has it."
        self.stopped = False
        "Whether the budget allows no further step: the loader draws no more batches, and steps change nothing."
        self._model, self._optimizer = model, optimizer
        self._sampling, self._clipping = sampling, clipping
        self._audit = audit
        self._owned, self._live = owned, live
        self.at_end: Callable[[], None] | None = None
        "Called once when the run is closed, unless it was closed because of an exception."
        draws_noise = over_ranks.ranks.has_ledger or clipping.collective
        self._noise = NoiseRepeats(optimizer, over_ranks.used_noise, draws=draws_noise)
        self._coupling = coupling_layers(model)
        self._movement = Movement(model, optimizer)
        self._raw = RawGradients(model, optimizer)
        self._buffers = Buffers(model)
        self._hooks = [
            *self._raw.hooks,
            self._buffers.hook,
            *refuse_unsorted_sequences(model._module),
            model._module.register_forward_pre_hook(PassNote(sampling.draws.handed_out), with_kwargs=True),
        ]
        audited = None if audit is None else audit.passes
        passes = None if audited is None else PassCounter(model, optimizer, audited)
        self._autocast = SeenAutocast(model._module)
        if audit is not None:
            audit.follow(self._autocast)
        self._open = OpenSum(optimizer, sampling, clipping, passes)
        self._sum: GradientSum | None = None
        "The sum once it is complete, until it is recorded."
        self._may_update = False
        self._audit_norms: torch.Tensor | None = None
        self._over_ranks = over_ranks
        self._has_ledger = over_ranks.ranks.has_ledger
        waits = over_ranks.ranks.size > 1 or next(model._module.parameters()).device.type == "cpu"
        self._recorder: PoissonSteps | ShuffledEpochs
        source = StepSource(OPACUS, audit=() if audit is None else audit.rows, ranks=over_ranks.ranks.size)
        if sampling.rate is None:
            self._recorder = ShuffledEpochs(self.ledger, sampling, source)
        else:
            self._recorder = PoissonSteps(self.ledger, sampling, source, late=not waits)
        self._budget = BudgetCheck(budget, self._recorder, sampling.draws)
        self._step_hook: Callable[[Any], None] | None = optimizer.step_hook
        self._earlier = earlier
        self._resumed = False
        if isinstance(self._step_hook, AccountantHook):
            self._step_hook.accountant.follow(ledger)
            self._step_hook.watched = True
        if isinstance(ledger, Ledger):
            earlier.begin(ledger)
            self._resumed = ledger.steps > 0
        sampling.watch(self._open.start_iteration)
        clipping.attach()
        self._open.attach()
        self._pre_step = optimizer.pre_step
        optimizer.pre_step = self._before_step
        optimizer.attach_step_hook(self._before_update)
        self._guard = optimizer.original_optimizer.register_step_pre_hook(self._check_recorded)
        self._outside = OutsideSteps(model, earlier, resumed=self._resumed)

    @property
    def random_draws(self) -> tuple[str, ...]:
        """Where training draws random numbers that are not released, as far as audits found it; empty if nowhere.

        Names of layers, "the model or the loss" and "the training data". While it is not empty, claims about shares are
        estimates, or audit records are charged at the clip bound: ``random_draws`` of ``watch`` decides.
        """
        return () if self._audit is None else self._audit.reasons

    # What is claimed

    def claims(self, delta: float = 1e-5, **options: Any) -> RunClaims:
        """Return all claims about the run so far, as ``Ledger.claims`` does with the same options.

        Norms that are not in the ledger yet are given to it first, and so are steps of a checkpoint that was loaded
        after ``watch``. Warns if parameters were changed although no step
        was recorded: training then went past the optimizer that was given to ``watch``. Raises InvalidInputError if
        training went on after ``close``, so that its steps are missing.

        Of several processes rank 0 has the claims: on the others this raises InvalidInputError, as ``statement`` does.
        """
        if not self._has_ledger:
            asked = self._over_ranks.ranks.rank
            raise refuse("rank", asked, "rank 0, which has the ledger: ask there, as in `if rank == 0:`")
        self.settle()
        self._earlier.catch_up(self.settle)
        if self._live is not None:
            self._live.end()
        self._outside.check(self.ledger)
        return self.ledger.claims(delta, **options)

    def statement(self, delta: float = 1e-5, **options: Any) -> str:
        """Return the claims in words; options are those of ``Ledger.claims``."""
        return self.claims(delta, **options).statement()

    def settle(self) -> None:
        """Give the ledger what is not in it yet: norms of the epoch, or of the last step."""
        self._recorder.settle()

    def note_loss(self, loss: Any) -> None:
        """Note the loss of a batch before it is scaled, for a run whose ``loss`` is a function.

        The factor is then seen as that of a criterion is; no value is changed. Frameworks call this by themselves.
        """
        if self._audit is not None:
            self._audit.note_loss(loss)

    def close(self) -> None:
        """Stop watching; the ledger is closed too if ``watch`` created it. A second call does nothing."""
        if self._optimizer.__dict__.get("pre_step") != self._before_step:
            return
        self._sampling.detach()
        self._clipping.detach()
        self._open.detach()
        self._autocast.detach()
        if self._audit is not None:
            self._audit.detach()
        self._earlier.end()
        for hook in (self._guard, *self._hooks):
            hook.remove()
        if isinstance(self._step_hook, AccountantHook):
            self._step_hook.watched = False
        del self._optimizer.pre_step
        self._optimizer.attach_step_hook(self._step_hook)
        self.settle()
        try:
            if self._has_ledger:
                self._open.note_end(self.ledger)
                self._outside.close(self.ledger)
            if self._live is not None:
                self._live.end()
        finally:
            if self._owned and self._has_ledger:
                self.ledger.close()
        self._movement.look()
        if self.at_end is not None and self._has_ledger:
            self.at_end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.at_end = None
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """Return for a checkpoint which ledger has the steps before it; nothing on ranks other than 0 of several."""
        self.settle()
        return position_of(self.ledger) if self._has_ledger else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Check that the ledger contains the steps of a checkpoint; raise LedgerError if it does not.

        Of several processes, rank 0 checks the state that it has saved; the others may be given it or not.
        """
        if self._has_ledger:
            check_continues(self.ledger, state)

    # What Opacus calls

    def _before_step(self, closure: Callable[[], float] | None = None) -> bool | None:
        """Stand in for ``pre_step``: return whether to update. Whatever is not released is dropped."""
        self._may_update = False
        try:
            if not self.stopped and self._prepare():
                return self._pre_step(closure)
            self._drop()
            return False
        except BaseException as error:
            self._drop()
            self._over_ranks.failed(error)
            raise

    def _before_update(self, optimizer: Any) -> None:
        """Record the sum. This is Opacus' step hook: the noisy gradient is there and has not been used."""
        released = self._sum
        if released is None:
            raise refuse("pre_step", optimizer.pre_step, "the method that watch has put there")
        self._noise.used(released.noise)
        self._movement.look_when_due()
        self._over_ranks.record(lambda: self._record(released))
        self._movement.note(self._audit_norms)
        self._raw.recorded()
        self._open.released()
        if self._audit is not None:
            self._audit.released()
        self._sum = None
        self._may_update = True
        if self._step_hook is not None:
            self._step_hook(optimizer)
        self._earlier.count()
        if self._over_ranks.ends(lambda: not self._budget.allows_another(released)):
            self._stop()
        if self._live is not None:
            self._live.show()

    def _record(self, released: GradientSum) -> None:
        if self._resumed:
            warn_if_noise_changed(self.ledger, released)
        self._resumed = False
        self._recorder.record(released)

    def _check_recorded(self, *_: object) -> None:
        """Raise before the wrapped optimizer updates, unless a step was recorded for this update."""
        if not self._may_update:
            hook = self._optimizer.step_hook
            raise refuse(
                "step_hook",
                hook,
                "the hook that watch attached, and steps of the optimizer that make_private returned; close the watch "
                "before make_private is called again",
            )
        self._may_update = False

    # Details

    def _prepare(self) -> bool:
        """Add this batch to the sum; return True if more parts of it follow, or if the complete sum may be released."""
        with self._over_ranks.preparing():
            for layer in self._coupling:
                check_mode(layer)
            self._earlier.catch_up(self.settle)
            if self._open.add_batch():
                return True
            if self._audit is not None:
                self._audit.check_sizes(self._open.records)
                self._audit_norms = self._audit.norms(
                    self._open.clip,
                    several_passes=self._open.several_passes,
                    changed_gradients=self._open.changed_gradients,
                    empty=self._open.empty,
                )
            own = self._open.complete(self._audit_norms, self._caveats(), self._noise.states())
        released = self._sum = self._over_ranks.whole(own)
        if self._over_ranks.ends(lambda: not self._budget.allows(released)):
            self._stop()
        return not self.stopped

    def _caveats(self) -> frozenset[str]:
        noise = SecureNoise.of(self._optimizer)
        seeded = noise is not None and noise.randomness.reproducible
        rests_on = frozenset[str]() if self._audit is None else self._audit.caveats
        self._buffers.look()
        own = ["seeded"] * seeded + ["changed-buffers"] * self._buffers.changed
        return rests_on | self._autocast.caveats | frozenset(own)

    def _drop(self) -> None:
        self._open.drop()
        self._sum = None

    def _stop(self) -> None:
        """Draw no further batch, so that the loop ends."""
        self.stopped = self._sampling.draws.ended = True
        if not self._has_ledger:
            return
        warnings.warn(
            f"The declared budget allows no further step after {self.ledger.steps}: training has ended.",
            BudgetReachedWarning,
            stacklevel=2,
        )
