"""Read from Opacus' optimizer how it clips: the norms of a batch, the bound it used, the noise it adds.

There is a class for each way of clipping. Bound and noise are read anew at each step, because schedulers change them.

Why Opacus' clip is replaced by a no-op (``FlatClipping.attach``)
    ``DPOptimizer.pre_step`` clips, adds the batch to ``summed_grad``, draws noise and calls the step hook, all in one
    go, and the hook can only say no by raising. Whether a sum may be released must be decided when the sum is complete
    and before noise is drawn, and a run that has reached its budget must end quietly. So ``add_to_sum`` calls Opacus'
    own ``clip_and_accumulate`` a moment earlier, and ``pre_step`` then finds nothing left to clip. Our own version of
    ``pre_step`` would do as well, but would have to follow every version of Opacus and each of its subclasses (adaptive
    clipping updates its bound at the end of ``pre_step``).

Why norms are picked up while Opacus computes them (``_SeenNorms``)
    The norms are local variables of ``clip_and_accumulate``. Computing them once more means reading all gradients of
    the batch again, as many bytes as clipping itself reads. A TorchFunctionMode sees every call of ``Tensor.norm`` in
    between, and the first results (for each parameter, a vector with an entry for each record) are the norms we need.
    That is an assumption about somebody else's code, so it is tested: on the first batch we compute the norms ourselves
    as well, and go on doing so if they differ.

What would break this: norms by another function than ``Tensor.norm`` (then they are computed twice, and stay right);
``pre_step`` that clips by another method than ``clip_and_accumulate`` (a sum would then hold its batch twice: the
comparison with a hand-written loop, tests/with_opacus/test_counts.py, would tell). ghost_clipping.py has
the way of clipping that never sees gradients by record.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from bayesdp.opacus import precision
from bayesdp.opacus.sampling import Sampling
from bayesdp.opacus.untrained import check_reached
from bayesdp.validation import refuse

_LIKELY_EMPTY = 1e-9  # the probability of an empty batch in an epoch that adaptive clipping may have


class FlatClipping:
    """One bound for the whole gradient. Other ways of clipping derive from it."""

    own_bound = False
    "Whether gradients are clipped with another bound than the one that scales the noise, so that the two may differ."
    in_parts = True
    "Whether a sum may be made of several physical batches."
    repeatable = True
    "Whether a batch may be clipped again, because clipping it changes nothing but the sum."

    collective = False
    "Whether all ranks must take part in each pass and each audit, so that a rank that fails can only leave."

    def __init__(self, model: Any, optimizer: Any, sampling: Sampling) -> None:
        self.optimizer = optimizer
        self._clip_and_accumulate = optimizer.clip_and_accumulate
        precision.check_parameters(optimizer.params)
        self._rounded = False
        "Whether gradients of the last batch were in bfloat16."
        self._sees_norms: bool | None = None
        "Whether the norms that Opacus computes while it clips are those we need; None before the first batch."

    def add_to_sum(self) -> torch.Tensor:
        """Let Opacus clip a batch and add it to the sum; return norms of its records before clipping, [b].

        A record whose gradient is not finite, or too long for its norm to be, contributes nothing and has norm 0: one
        that broke the sum, or stopped the run, would be known to be there. No step waits for a device to find it.
        Raises InvalidInputError for gradients in half precision, except bfloat16 in flat clipping (precision.py).
        """
        check_reached([getattr(each, "grad_sample", None) is not None for each in self.optimizer.params])
        grads: list[torch.Tensor] = self.optimizer.grad_samples
        self._rounded = precision.in_bfloat16(grads)
        if self._rounded and type(self) is not FlatClipping:
            raise refuse("grad_sample.dtype", torch.bfloat16, "flat clipping, or gradients in float32")
        if not self.repeatable or grads[0].device.type != "cpu":
            norms = _norms_by_parameter(grads)
            self._silence(_broken(norms, self.together(norms)))
            return self._clip_batch()[0]
        before = [None if p.summed_grad is None else p.summed_grad.clone() for p in self.optimizer.params]
        norms, broken = self._clip_batch()
        if not bool(broken.any()):
            return norms
        for parameter, summed in zip(self.optimizer.params, before, strict=True):
            parameter.summed_grad = summed
        self._silence(broken)
        return self._clip_batch()[0]

    def _silence(self, broken: torch.Tensor) -> None:
        """Set the gradients of broken records [b] to 0, as if they had not been clipped yet."""
        for parameter in self.optimizer.params:
            given = parameter.grad_sample if isinstance(parameter.grad_sample, list) else [parameter.grad_sample]
            for grad, rows in zip(given, broken.split([len(grad) for grad in given]), strict=True):
                grad.masked_fill_(rows.to(grad.device).reshape(-1, *[1] * (grad.ndim - 1)), 0)
                if hasattr(grad, "_processed"):
                    del grad._processed

    def _clip_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Let Opacus clip; return norms [b], and which records are broken, [b]."""
        grads: list[torch.Tensor] = self.optimizer.grad_samples
        with _SeenNorms() as seen:
            self._clip_and_accumulate()
        if not len(grads[0]):
            return torch.zeros(0), torch.zeros(0, dtype=torch.bool)
        by_parameter = seen.of(grads)
        if not by_parameter or not self._sees_norms or self._rounded:
            own = _norms_by_parameter(grads)
            if self._sees_norms is None and not self._rounded:
                self._sees_norms = bool(by_parameter) and torch.allclose(
                    self.together(by_parameter), self.together(own), rtol=1e-5, equal_nan=True
                )
            by_parameter = own
        norms = self.together(by_parameter)
        return norms, _broken(by_parameter, norms)

    def batches(self) -> list[torch.Tensor]:
        """Return, for each batch that is about to be added to the sum, a tensor with a row for each record."""
        grads = getattr(self.optimizer.params[0], "grad_sample", None)
        return grads if isinstance(grads, list) else [] if grads is None else [grads]

    @property
    def caveats(self) -> frozenset[str]:
        """What the last batch that was added rests on."""
        return precision.LOW_PRECISION if self._rounded else frozenset()

    def start(self) -> list[torch.Tensor]:
        """Return the batches of earlier iterations that may be in the next sum, when a new iteration begins."""
        return [grad for grad in self.batches() if not hasattr(grad, "_processed")]

    def together(self, norms: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return one norm for each record, [b], from the norms of its gradients by parameter, each [b]."""
        return norms_together(norms)

    def planned_clip(self) -> float:
        """Return the clip bound of the steps to come, as it is set now."""
        return self.clip()

    def clip(self) -> float:
        """Return how long a gradient may be after clipping: the bound, or a little more for those in bfloat16."""
        return float(self.optimizer.max_grad_norm) * (precision.CLIPPED if self._rounded else 1.0)

    def noise_std(self) -> float:
        """Return the standard deviation of the noise on the sum."""
        return float(self.optimizer.noise_multiplier) * float(self.optimizer.max_grad_norm)

    def extra_norm(self) -> float:
        """Return the norm of what else is released about each record with this noise, orthogonal to its gradient."""
        return 0.0

    def sum_begun(self) -> bool:
        """Return whether something was added to the sum since it was last released or dropped."""
        return self.optimizer.params[0].summed_grad is not None

    def drop_sum(self) -> None:
        """Forget the sum."""
        for parameter in self.optimizer.params:
            parameter.summed_grad = None

    def noise_stream(self) -> tuple[int, int]:
        """Return which stream of random numbers the noise comes from, and the place in it; (-1, 0) if one rank adds it.

        Ranks that add noise to different parts of the sum must not take the same random numbers for it.
        """
        return -1, 0

    def attach(self) -> None:
        """Make Opacus clip when ``add_to_sum`` is called, a moment earlier than it would."""
        self.optimizer.clip_and_accumulate = lambda: None

    def detach(self) -> None:
        """Undo ``attach``."""
        del self.optimizer.clip_and_accumulate


class PerLayerClipping(FlatClipping):
    """A bound for each parameter. The clipped pieces form one vector, whose norm and bound are accounted."""

    own_bound = True

    def __init__(self, model: Any, optimizer: Any, sampling: Sampling) -> None:
        super().__init__(model, optimizer, sampling)
        for parameter in optimizer.params:
            if parameter.ndim == 0:
                raise refuse("parameter.ndim", 0, "parameters with an axis: Opacus clips others by the batch together")

    def together(self, norms: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the norm of the clipped pieces of each record, [b]."""
        bounds = self.optimizer.max_grad_norms
        clipped = [piece.clamp(max=float(bound)) for piece, bound in zip(norms, bounds, strict=True)]
        return norms_together(clipped)

    def clip(self) -> float:
        """Return the bound of the clipped pieces together."""
        return math.hypot(*map(float, self.optimizer.max_grad_norms))


class AdaptiveClipping(FlatClipping):
    """A bound that follows a noisy count of records that were not clipped, which is released as well.

    By Theorem 1 of Andrew et al. (2021, arXiv:1905.03871) a record is worth 1/2 in that count. Opacus divides the count
    by the number of records that were drawn, which the theorem does not cover: a caveat.
    """

    repeatable = False
    in_parts = False  # the count is lost between them

    def __init__(self, model: Any, optimizer: Any, sampling: Sampling) -> None:
        super().__init__(model, optimizer, sampling)
        if sampling.empty_probability / (sampling.rate or 1.0) > _LIKELY_EMPTY and not sampling.draws.invents:
            raise refuse(
                "clipping",
                "adaptive",
                "batches that are never empty, on which adaptive clipping fails: larger ones, or rand_on_empty=True",
            )

    @property
    def caveats(self) -> frozenset[str]:
        """What the last batch that was added rests on: also that the number of records it divides by is public."""
        return super().caveats | {"drawn-size-public"}

    def noise_std(self) -> float:
        """Return the noise on the gradient: more than the noise multiplier says, to pay for the count."""
        multiplier, count_std = float(self.optimizer.noise_multiplier), float(self.optimizer.unclipped_num_std)
        return (multiplier**-2 - (2 * count_std) ** -2) ** -0.5 * float(self.optimizer.max_grad_norm)

    def extra_norm(self) -> float:
        """Return 1/2, what a record is worth in the count, scaled from the noise of the count to ``noise_std``."""
        return 0.5 / float(self.optimizer.unclipped_num_std) * self.noise_std()


class _SeenNorms(TorchFunctionMode):
    """The results of ``Tensor.norm`` while this mode is active."""

    def __init__(self) -> None:
        super().__init__()
        self._norms: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.Tensor.norm:
            self._norms.append(result)
        return result

    def of(self, grads: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the norms by parameter, each [b], if the first results have their shapes; else an empty list."""
        first = self._norms[: len(grads)]
        return first if [tuple(norm.shape) for norm in first] == [(len(grad),) for grad in grads] else []


def norms_together(norms: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the norm of each whole gradient, [b], from the norms of its pieces by parameter, each [b]."""
    device = norms[0].device
    return torch.stack([by_parameter.to(device) for by_parameter in norms], dim=1).norm(2, dim=1)


def _norms_by_parameter(grads: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the norms of gradients, each [b], in float32 at least."""
    exact = [grad.float() if grad.dtype == torch.bfloat16 else grad for grad in grads]
    return [grad.reshape(len(grad), -1).norm(2, dim=-1) if len(grad) else grad.new_zeros(0) for grad in exact]


def _broken(by_parameter: Sequence[torch.Tensor], norms: torch.Tensor) -> torch.Tensor:
    """Return which records [b] have a norm, or a norm by some parameter, that is not finite."""
    finite = [torch.isfinite(each).to(norms.device) for each in (norms, *by_parameter)]
    return ~torch.stack(finite).all(dim=0)
