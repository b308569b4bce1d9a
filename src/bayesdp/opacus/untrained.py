"""Notice a run that trains nothing: privacy is spent, and the model stays what it was.

Noise is added to the gradient of every trained parameter, so each of them moves with every update. If one has not
moved, the update went elsewhere (a learning rate of 0, weights that were replaced after the optimizer was made), and if
no audit record has a gradient, the loss does not depend on what is trained. Both are facts about released parameters
and audit records.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from bayesdp.validation import refuse

_STEPS = 8  # a schedule may begin with a learning rate of 0
_SAMPLE = 16  # numbers of each parameter that are compared: noise moves all of them


def check_reached(reached: Sequence[bool]) -> None:
    """Raise InvalidInputError if the loss has ``reached`` some of the trained parameters only."""
    if any(reached) and not all(reached):
        expected = (
            "a loss that depends on each of them: freeze the others, parameter.requires_grad_(False), before "
            "make_private, and unfreeze none later"
        )
        raise refuse("trained parameters", "some without a gradient", expected)


class UntrainedWarning(UserWarning):
    """Updates do not change the model, or no audit record has a gradient."""


class Movement:
    """Whether trained parameters move: looked at once, after eight updates or at the end of a shorter run."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self._model, self._optimizer = model, optimizer
        self._before = {id(parameter): (parameter, _sample(parameter)) for parameter in optimizer.params}
        self._updates = 0
        self._looked = False
        self._above_0: torch.Tensor | None = None
        "Whether an audit record had a gradient; None without audit. It stays on its device until somebody looks."

    def look_when_due(self) -> None:
        """Look before a step is recorded, if eight updates were applied."""
        if self._updates == _STEPS:
            self.look()

    def note(self, audit: torch.Tensor | None) -> None:
        """Note that a step was recorded, whose update will be applied, with norms [m] of audit records if any."""
        if self._looked:
            return
        self._updates += 1
        if audit is not None:
            above = (audit > 0).any()
            self._above_0 = above if self._above_0 is None else self._above_0 | above

    def look(self) -> None:
        """Warn, once, if there was an update and some trained parameter is still what it was."""
        if self._looked or not self._updates:
            return
        self._looked = True
        names = {id(parameter): name for name, parameter in self._model._module.named_parameters()}
        gone = [number for number in self._before if number not in names]
        still = [number for number, (now, before) in self._before.items() if torch.equal(_sample(now), before)]
        said: list[str] = []
        if gone:
            said.append(f"{len(gone)} of the optimizer's parameters are not in the model any more")
        if still:
            first = names.get(still[0], "not in the model")
            said.append(f"{len(still)} of {len(self._before)} trained parameters have not moved (the first is {first})")
        if self._above_0 is not None and not bool(self._above_0):
            said.append("the gradients of all audit records are 0, so that the loss does not depend on what is trained")
        if said:
            after = f"After {self._updates} updates: {'; '.join(said)}."
            warnings.warn(f"{after} Privacy is spent, but the model is not trained.", UntrainedWarning, stacklevel=3)


def check_trained(model: Any, optimizer: Any) -> None:
    """Raise InvalidInputError if the optimizer has nothing to train, or parameters that are not the model's."""
    if not optimizer.params:
        expected = "at least one with requires_grad=True: without it nothing is trained"
        raise refuse("optimizer.param_groups", "no trained parameters", expected)
    own = {id(parameter) for parameter in model._module.parameters()}
    if not all(id(parameter) in own for parameter in optimizer.params):
        expected = "parameters of the model that is watched: updates of others do not train it"
        raise refuse("optimizer.param_groups", "parameters of another model", expected)


def _sample(parameter: torch.Tensor) -> torch.Tensor:
    local = parameter.to_local() if isinstance(parameter, DTensor) else parameter  # of a sharded one, this rank's part
    return local.detach().reshape(-1)[:_SAMPLE].clone()
