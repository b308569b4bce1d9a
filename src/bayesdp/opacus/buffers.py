"""Notice buffers that a pass in training changes: they become part of the model, without noise.

A running mean of the inputs, a codebook or the range of a quantiser tells what was in the batches; the vectors of
spectral normalisation depend on weights alone. Which it is cannot be seen, so claims name it as an assumption.
"""

from __future__ import annotations

from typing import Any

import torch

from bayesdp.opacus.handed_out import PassNote


class Buffers:
    """The buffers that are saved with a model, and whether one changed between a pass in training and its step.

    Counters, single whole numbers, are left out.
    """

    def __init__(self, model: Any) -> None:
        self._owners = [
            (module, name)
            for module in model._module.modules()
            for name, buffer in module.named_buffers(recurse=False)
            if name not in module._non_persistent_buffers_set and (buffer.is_floating_point() or buffer.ndim)
        ]
        self._at_pass: list[tuple[torch.Tensor | None, int]] | None = None
        self.changed = False
        "Whether one was seen to change."
        self.hook = model._module.register_forward_pre_hook(PassNote(self), with_kwargs=True)
        "The handle of the hook, to remove it."

    def note_pass(self, inputs: Any) -> None:
        """Note the buffers before a pass."""
        self.look()
        self._at_pass = self._now()

    def look(self) -> None:
        """Note whether a buffer is not what it was before the last pass."""
        before, self._at_pass = self._at_pass, None
        if before is not None and not self.changed:
            self.changed = any(
                now is not then or version != number
                for (now, version), (then, number) in zip(self._now(), before, strict=True)
            )

    def _now(self) -> list[tuple[torch.Tensor | None, int]]:
        buffers = [getattr(module, name, None) for module, name in self._owners]
        return [(buffer, 0 if buffer is None else buffer._version) for buffer in buffers]
