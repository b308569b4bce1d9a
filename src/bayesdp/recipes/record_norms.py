"""Gradients of audit records as training clips them: means over the views of a record, masked, one by one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from bayesdp.optional import needs

with needs("demo", "training a network with DP-SGD"):
    import torch
    from torch import nn

from bayesdp.validation import refuse

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Views = Callable[[torch.Tensor], torch.Tensor]
"""Maps records [b, ...] to k fixed variants of each, [b, k, ...]; each record by itself, without randomness."""
_TRIED = 16


def only_view(inputs: torch.Tensor) -> torch.Tensor:
    """Return the records as they are, each as its only view, [b, 1, ...]."""
    return inputs[:, None]


def check_views(views: Views, inputs: torch.Tensor) -> None:
    """Raise InvalidInputError if views of a few records are random, depend on the others, or have another form.

    That views differ when they are asked for twice shows that they are random; that they do not differ for a few
    records is no proof of the contrary.
    """
    few = inputs[:_TRIED]
    found = views(few)
    if found.ndim < 2 or len(found) != len(few) or not found.shape[1]:
        raise refuse("views(inputs).shape", tuple(found.shape), f"a row for each of {len(few)} records, with its views")
    alone = torch.cat([views(record[None]) for record in few]) if len(few) else found
    if not torch.equal(found.nan_to_num(), alone.nan_to_num()):
        raise refuse("views", "views that differ", "fixed views of each record alone, the same at every call")


class RecordNorms:
    """Norms of the gradients of audit records, each the masked mean over the views of a record, with torch.func.

    It has the form of an audit set that ``bayesdp.opacus.watch`` takes (``AuditNorms``).
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        *,
        views: Views,
        masks: Callable[[], Sequence[torch.Tensor] | None],
        at_once: int = 64,
    ) -> None:
        self.records = len(targets)
        self._model, self._loss, self._inputs, self._targets = model, loss, inputs, targets
        self._form = copy.deepcopy(model)  # which stays without the hooks that Opacus puts into the model
        self._views, self._masks, self._at_once = views, masks, at_once

    def due(self) -> bool:
        """Return True: norms are measured at every step."""
        return True

    def norms(self) -> torch.Tensor:
        """Return the norms [m] with the parameters and masks as they are now."""
        everything = dict(self._model.named_parameters())
        parameters = {name: value.detach() for name, value in everything.items() if value.requires_grad}
        rest = {name: value.detach() for name, value in everything.items() if not value.requires_grad}
        buffers = dict(self._model.named_buffers())
        masks = self._masks() or [torch.ones(())] * len(parameters)

        def loss(trained: Any, views: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            output: Any = torch.func.functional_call(self._form, (trained, rest, buffers), (views,))
            return self._loss(output, target.expand(len(views), *target.shape))

        def norm(views: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            gradients = torch.func.grad(loss)(parameters, views, target).values()
            return sum((g * m).square().sum() for g, m in zip(gradients, masks, strict=True)).sqrt()  # type: ignore[union-attr]

        # randomness="different": each record has a dropout of its own
        norms = torch.func.vmap(norm, randomness="different")
        parts = zip(self._inputs.split(self._at_once), self._targets.split(self._at_once), strict=True)
        return torch.cat([norms(self._views(inputs), targets) for inputs, targets in parts])
