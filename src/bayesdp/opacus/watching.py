"""Watch a training run: every step of Opacus' optimizer is in the ledger before its update is applied."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import nn

from bayesdp.claims import RunClaims
from bayesdp.claims.stopping import StopWhen
from bayesdp.ledger.position import check_continues, position
from bayesdp.opacus.accountant import AccountantHook
from bayesdp.opacus.audit import AuditNorms, AuditRecords
from bayesdp.opacus.clipping import Flat, clipping_of
from bayesdp.opacus.draws import Draw
from bayesdp.opacus.recording import PoissonSteps, ShuffledEpochs, Sum, numbers
from bayesdp.opacus.sampling import Sampling
from bayesdp.opacus.secure import SecureNoise
from bayesdp.report.live import LiveView
from bayesdp.run_ledger import Ledger
from bayesdp.validation import refuse


class BudgetReachedWarning(UserWarning):
    """The declared budget allows no further step: training has ended."""


def watch(
    model: Any,
    optimizer: Any,
    data_loader: Any,
    *,
    ledger: Ledger | str | Path,
    audit: Any = None,
    loss: Any = None,
    every: int = 1,
    between: Literal["clip", "last"] = "clip",
    audit_batch: int = 128,
    budget: StopWhen | None = None,
    live: bool = False,
) -> Watch:
    """Record every step of a run with Opacus; call it once, with what ``make_private`` returned, before training.

    ``ledger``: where to record, or the path of a new one. ``audit``: (inputs, targets) of people from the same
    population who are not trained on, or ``AuditNorms``; ``loss``: what is trained with. Their norms are computed at
    every ``every``-th step; at the others they are charged at the clip bound, or with between="last" as at the last,
    which makes estimates of the claims that rest on them; ``audit_batch`` of them are computed at once. ``budget``:
    training ends before the step that would exceed it. ``live`` shows on a terminal what the run has cost so far.

    What cannot be accounted is refused, now or at the step that shows it, before anything of that step is released.
    """
    _check_model(model)
    if between not in ("clip", "last"):
        raise refuse("between", between, "'clip' or 'last'")
    if budget is not None and budget.ledger is not ledger:
        raise refuse("budget", budget, "StopWhen of the ledger that is given")
    if float(getattr(optimizer, "noise_multiplier", 1.0)) <= 0:
        raise refuse("noise_multiplier", optimizer.noise_multiplier, "noise above 0: without it there is no privacy")
    sampling = Sampling(data_loader)
    clipping = clipping_of(model, optimizer, sampling, loss)
    records = audit
    if audit is not None and not isinstance(audit, AuditNorms):
        records = AuditRecords(audit, loss, model, clipping, every=every, at_once=audit_batch)
    if isinstance(ledger, Ledger):
        _check_records(ledger, records)
    else:
        _check_no_checkpoint(optimizer)
    owned = not isinstance(ledger, Ledger)
    kept = Ledger.create(ledger) if owned else ledger
    view = LiveView(kept) if live else None
    return Watch(model, optimizer, sampling, clipping, kept, records, between, budget, owned=owned, live=view)


class Watch:
    """A run that is being watched. ``close`` leaves Opacus' objects as they were before."""

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        sampling: Sampling,
        clipping: Flat,
        ledger: Ledger,
        audit: AuditNorms | None,
        between: str,
        budget: StopWhen | None,
        *,
        owned: bool,
        live: LiveView | None = None,
    ) -> None:
        self.ledger = ledger
        self.stopped = False
        "Whether the budget allows no further step: the loader draws no more batches, and steps change nothing."
        self._model, self._optimizer = model, optimizer
        self._sampling, self._clipping = sampling, clipping
        self._audit, self._between, self._budget = audit, between, budget
        self._owned, self._live = owned, live
        self._normalising = [one for one in model._module.modules() if _couples(one)]
        self._parts: list[tuple[Draw, torch.Tensor, float]] = []
        "Of the sum so far: draw, norms, clip bound."
        self._may_update = False
        self._audit_norms: torch.Tensor | None = None
        self._last_norms: torch.Tensor | None = None
        self._earlier = False
        self._resumed = ledger.steps > 0
        device = next(model._module.parameters()).device
        self._steps: PoissonSteps | ShuffledEpochs
        if sampling.rate is None:
            self._steps = ShuffledEpochs(ledger, sampling)
        else:
            self._steps = PoissonSteps(ledger, sampling, late=device.type != "cpu")
        self._step_hook: Callable[[Any], None] | None = optimizer.step_hook
        if isinstance(self._step_hook, AccountantHook):
            self._step_hook.accountant.follow(ledger)
            self._step_hook.watched = True
        sampling.watch(self._start_iteration)
        clipping.attach()
        self._pre_step = optimizer.pre_step
        optimizer.pre_step = self._before_step
        optimizer.attach_step_hook(self._before_update)
        self._guard = optimizer.original_optimizer.register_step_pre_hook(self._check_recorded)
        self._untouched = self._versions() if not ledger.steps else None

    # What is claimed

    def claims(self, delta: float = 1e-5, **options: Any) -> RunClaims:
        """All claims of the run so far; see ``Ledger.claims``."""
        self.settle()
        if not self.ledger.steps and self._versions() != self._untouched:
            warnings.warn(
                "Parameters were changed, but no step was recorded. If that was training, it was not with the "
                "optimizer given to watch.",
                stacklevel=2,
            )
        return self.ledger.claims(delta, **options)

    def statement(self, delta: float = 1e-5, **options: Any) -> str:
        """The claims in words."""
        return self.claims(delta, **options).statement()

    def settle(self) -> None:
        """Give the ledger what is not in it yet: norms of the epoch, or of the last step."""
        self._steps.settle()

    def close(self) -> None:
        """Stop watching; the ledger is closed too if ``watch`` created it."""
        if self._optimizer.__dict__.get("pre_step") != self._before_step:
            return
        self._sampling.release()
        self._clipping.release()
        self._guard.remove()
        if isinstance(self._step_hook, AccountantHook):
            self._step_hook.watched = False
        del self._optimizer.pre_step
        self._optimizer.attach_step_hook(self._step_hook)
        self.settle()
        if self._live is not None:
            self._live.end()
        if self._owned:
            self.ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: which ledger has the steps before it."""
        self.settle()
        return position(self.ledger)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From a checkpoint; refused if the ledger does not contain its steps."""
        check_continues(self.ledger, state)

    # What Opacus calls

    def _before_step(self, closure: Callable[[], float] | None = None) -> bool | None:
        """In place of what Opacus does before an update (clip, add to the sum, add noise): whether to update."""
        self._may_update = False
        try:
            if not self.stopped and self._prepare():
                return self._pre_step(closure)
            self._drop_sum()
            return False
        except BaseException:
            self._drop_sum()
            raise

    def _before_update(self, optimizer: Any) -> None:
        """Opacus' step hook: the noisy gradient is there and has not been used."""
        released = self._sum()
        self._warn_if_changed(released)
        self._steps.record(released)
        self._parts.clear()
        self._may_update = True
        if self._step_hook is not None:
            self._step_hook(optimizer)
        self._look_ahead(released)
        if self._live is not None:
            self._live.show()

    def _check_recorded(self, *_: object) -> None:
        """Before the wrapped optimizer updates: only after a step that was recorded, once."""
        if not self._may_update:
            hook = self._optimizer.step_hook
            raise refuse(
                "step_hook", hook, "the hook that watch attached, and steps of the optimizer that make_private returned"
            )
        self._may_update = False

    def _start_iteration(self) -> list[torch.Tensor]:
        """A batch that was left unfinished is not released: which of its records are in the sum depends on others."""
        if any(self._sampling.draws.is_over(draw) for draw, _, _ in self._parts):
            self._drop_sum()
        return self._clipping.start()

    # Details

    def _prepare(self) -> bool:
        """Note what this batch adds to the sum; and if the sum is complete, whether it may be released."""
        for one in self._normalising:
            if one.training:
                raise _refuse_normalising(one)
        if self._note_batch():
            return True
        self._audit_norms = self._norms_of_audit()
        if not self._allowed(self._sum()):
            self._stop()
        return not self.stopped

    def _note_batch(self) -> bool:
        """Add a batch to the sum and note which; whether more of the same draw will follow."""
        if self._optimizer.params[0].summed_grad is None:
            self._parts.clear()
        batches = self._clipping.batches()
        parts = self._sampling.draws.use(batches)
        more = bool(parts) and parts[-1].more
        if more and not self._clipping.in_parts:
            raise refuse("clipping", "adaptive", "flat clipping for BatchMemoryManager: it loses the adaptive count")
        norms, clip = self._clipping.add_to_sum(), self._clipping.clip()
        for part, some in zip(parts, norms.split([len(one) for one in batches]), strict=True):
            real = some if part.draw.records else some[:0]  # without the sample that was invented for an empty batch
            self._parts.append((part.draw, real.detach(), clip))
        # What BatchMemoryManager signals may belong to batches that were drawn ahead, or never came.
        self._optimizer._step_skip_queue[:] = [True] if more else []
        return more

    def _sum(self) -> Sum:
        """What is about to be released."""
        clip = max(clip for _, _, clip in self._parts)
        if self._clipping.own_bound:
            _check_same(clip, float(self._optimizer.max_grad_norm))
        return Sum(
            noise_std=self._clipping.noise_std(),
            clip=clip,
            beside=self._clipping.beside(),
            parts=[(draw, norms) for draw, norms, _ in self._parts],
            audit=self._audit_norms,
            caveats=self._clipping.caveats | self._caveats(),
        )

    def _caveats(self) -> frozenset[str]:
        used: Counter[Draw] = Counter()
        for draw, norms, _ in self._parts:
            used[draw] += len(norms)
        left_out = any(records < draw.records for draw, records in used.items())
        noise = SecureNoise.of(self._optimizer)
        seeded = noise is not None and noise.randomness.reproducible
        return frozenset(["left-out"] * left_out + ["earlier-norms"] * self._earlier + ["seeded"] * seeded)

    def _versions(self) -> list[int]:
        return [one._version for one in self._model._module.parameters()]

    def _drop_sum(self) -> None:
        """Nothing of the sum will be released."""
        for one in self._optimizer.params:
            one.summed_grad = None
        self._optimizer._is_last_step_skipped = False
        self._optimizer._step_skip_queue.clear()
        self._parts.clear()

    def _norms_of_audit(self) -> torch.Tensor | None:
        if self._audit is None:
            return None
        due = self._audit.due()
        self._earlier = not due and self._between == "last"
        if due:
            self._last_norms = self._audit.norms()
        return self._last_norms if due or self._earlier else None

    def _allowed(self, released: Sum) -> bool:
        """Whether the budget allows it."""
        if self._budget is None:
            return True
        costs = self._steps.costs(released)
        if costs.steps == 0:
            return True
        audit = None  # what audit records of an epoch cost is known at its end only: until then it is the clip bound
        if self._budget.gated:
            self.settle()
            if isinstance(self._steps, PoissonSteps) and released.audit is not None:
                audit = numbers("audit", released.whole(released.audit))
        return self._budget.allows(**asdict(costs), audit=audit)

    def _look_ahead(self, released: Sum) -> None:
        """Draw no further batch if another step like this one could not be taken, so that the loop ends."""
        if self._budget is not None and not self._budget.gated:
            draw = self._sampling.draws.next_one(released.parts[-1][0])
            next_one = replace(released, parts=[(draw, torch.zeros(0))])
            if not self._allowed(next_one):
                self._stop()

    def _stop(self) -> None:
        self.stopped = self._sampling.draws.ended = True
        warnings.warn(
            f"The declared budget allows no further step after {self.ledger.steps}: training has ended.",
            BudgetReachedWarning,
            stacklevel=2,
        )

    def _warn_if_changed(self, released: Sum) -> None:
        """At the first step of a run that goes on: Opacus does not keep noise and bound in its checkpoints."""
        if self._resumed:
            last = self.ledger.history.stretches[-1]
            before = last.noise_std / last.clip if last.clip else np.inf
            now = released.noise_std / released.bound
            if not np.isclose(before, now, rtol=1e-6):
                warnings.warn(
                    f"noise_multiplier={now:g} at the first step after resuming, {before:g} at the last step before: "
                    "a schedule may have fallen back to its start. What is used is what is accounted.",
                    stacklevel=2,
                )
        self._resumed = False


def _check_same(clips: float, assumed: float) -> None:
    if not abs(clips - assumed) <= 1e-6 * assumed:
        raise refuse(
            "max_grad_norm",
            assumed,
            f"the bound {clips:g} with which gradients are clipped: noise is scaled by the optimizer's, and a "
            "scheduler changes only that one; set both",
        )


def _couples(module: nn.Module) -> bool:
    """Whether the output for one record depends on the others in its batch, or what is kept is not noisy."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm):  # pyright: ignore[reportPrivateUsage]
        return True
    return isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats  # pyright: ignore[reportPrivateUsage]


def _refuse_normalising(module: nn.Module) -> Exception:
    return refuse(
        "model",
        type(module).__name__,
        "normalisation of each record by itself: opacus.validators.ModuleValidator.fix(model) puts GroupNorm in its "
        "place; or keep it in eval mode",
    )


def _check_model(model: Any) -> None:
    inner = getattr(model, "_module", None)
    for module in inner.modules() if isinstance(inner, nn.Module) else ():
        if _couples(module) and (module.training or any(one.requires_grad for one in module.parameters())):
            raise _refuse_normalising(module)


def _check_no_checkpoint(optimizer: Any) -> None:
    """A new ledger cannot contain the steps of a checkpoint that was loaded."""
    hook = optimizer.step_hook
    if isinstance(hook, AccountantHook) and hook.accountant.resumes:
        raise refuse("ledger", "a new one", "Ledger.open of the ledger that the checkpoint which was loaded belongs to")


def _check_records(ledger: Ledger, audit: AuditNorms | None) -> None:
    if audit is not None and ledger.audit_records not in (0, audit.records):
        raise refuse("len(audit)", audit.records, f"the {ledger.audit_records} audit records of the ledger")
