"""What audit records are charged with at each step: their norms, earlier norms, or the clip bound."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bayesdp.opacus.audit import AuditNorms, AuditRecords
from bayesdp.opacus.hidden_draws import borrowed_random_numbers, devices_of, loader_draws, random_layers
from bayesdp.opacus.loss_scale import LossScale, audit_under_way
from bayesdp.opacus.precision import SeenAutocast

_ABOVE = 1 + 1e-6  # so that float32 does not round a norm to below the clip bound


class AuditMeasurement:
    """Asks for the norms of audit records when they are due, and notes what claims from them rest on.

    ``between``: at steps at which norms are not due, the clip bound ("clip") or the last norms ("last").
    ``random_draws``: where training draws random numbers that are not released, norms as they are ("estimate") or the
    clip bound ("clip").
    """

    def __init__(self, audit: AuditNorms, model: Any, loader: Any, between: str, random_draws: str) -> None:
        self.caveats: frozenset[str] = frozenset()
        "What claims from the norms of this step rest on."
        self._audit, self._between, self._random_draws = audit, between, random_draws
        self._model: nn.Module = model._module
        self._last: torch.Tensor | None = None
        self._hooked: Any = model
        self._scale: LossScale | None = None
        "How training scales the loss that was given; None for an audit that answers for its own loss."
        self._in_data = loader_draws(loader)
        self._in_model = isinstance(audit, AuditRecords) and audit.random

    @property
    def records(self) -> int:
        """How many audit records there are."""
        return self._audit.records

    @property
    def rows(self) -> tuple[int, ...]:
        """A digest of the rows that the audit records are of their data set, if that is known."""
        return self._audit.rows if isinstance(self._audit, AuditRecords) else ()

    @property
    def reasons(self) -> tuple[str, ...]:
        """Where training draws random numbers that are not released, as far as that was found; empty if nowhere."""
        layers = random_layers(self._model) or ["the model or the loss"]
        return (*(layers if self._in_model else ()), *(["the training data"] if self._in_data else ()))

    @property
    def passes(self) -> int | None:
        """How many passes the audit makes for a batch; None for one of the user's own, which may do what it likes."""
        return self._audit.passes if isinstance(self._audit, AuditRecords) else None

    def follow(self, autocast: SeenAutocast) -> None:
        """Make passes of audit records as those of training are made."""
        if isinstance(self._audit, AuditRecords):
            self._audit.autocast = autocast
            self._scale = LossScale(self._audit.given_loss, self._hooked)

    def note_loss(self, loss: Any) -> None:
        """Note the loss of a batch, before its backward pass, as ``LossScale.note_batch`` does."""
        if self._scale is not None:
            self._scale.note_batch(loss)

    def check_sizes(self, records: int | None) -> None:
        """Check that training does not scale the loss by its number of ``records``, as ``LossScale`` does."""
        if self._scale is not None:
            self._scale.check_sizes(records)

    def released(self) -> None:
        """Note that a step was recorded."""
        if self._scale is not None:
            self._scale.forget()

    def detach(self) -> None:
        """Leave the loss as it was."""
        if self._scale is not None:
            self._scale.detach()

    def norms(
        self, clip: float, *, several_passes: bool, changed_gradients: bool, empty: bool = False
    ) -> torch.Tensor | None:
        """Return the norms [m] that audit records are charged with at this step; None for the clip bound, if not due.

        ``clip`` is the bound of this step; ``several_passes`` says whether training made other passes than the audit
        does, ``changed_gradients`` whether its loop changed gradients before the step, ``empty`` whether it has no
        records. Random numbers of the run (PyTorch, NumPy, Python) are left as they were.
        """
        due = self._audit.due()
        if due and not self._at_clip_bound:
            with borrowed_random_numbers(devices_of(self._model)) as borrowed, audit_under_way():
                self._last = self._audit.norms()
            self._in_model |= borrowed.drawn or (isinstance(self._audit, AuditRecords) and self._audit.random)
        if self._at_clip_bound:
            self.caveats = frozenset()
            device = next(self._model.parameters()).device
            return torch.full((self.records,), clip * _ABOVE, device=device)
        earlier = not due and self._between == "last"
        if not due and not earlier:
            self.caveats = frozenset()
            return None
        rests_on = {
            "earlier-norms": earlier,
            "random-draws": self._in_model or self._in_data,
            "several-passes": several_passes,
            "changed-gradients": changed_gradients,
            "given-loss": self._scale is not None and self._scale.missed(empty=empty),
        }
        self.caveats = frozenset(name for name in rests_on if rests_on[name])
        if self._scale is None or self._last is None:
            return self._last
        return self._scale.applied_to(self._last, clip * _ABOVE)

    @property
    def _at_clip_bound(self) -> bool:
        return self._random_draws == "clip" and (self._in_model or self._in_data)
