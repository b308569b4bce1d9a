"""Ghost clipping of a model whose parameters are sharded over ranks by FSDP2 (``grad_sample_mode="ghost_fsdp"``).

What Opacus releases
    Every rank finds the norms of its own batch and clips by them, as in ghost clipping of one process. FSDP then adds
    the gradients of all ranks up, divides by their number, and leaves each rank its shard. For the noise every rank
    draws a tensor of the whole shape, divides it as well, and uses its own shard of it. So the sum over all ranks has
    noise with standard deviation noise_multiplier * max_grad_norm in each coordinate. Shards are independent whether
    all ranks draw the same tensor (equal seeds) or each its own. Two cases are not, and are refused: the same stream of
    random numbers at different places, where one shard may repeat the noise of another (``noise_stream``; rank_steps.py
    compares); and a mesh on which several ranks hold the same shard, each with noise of its own.

With ``loss_reduction="sum"`` Opacus does not divide the noise, although FSDP divides the gradient: there is more noise
on the sum than is accounted.

What would break this: FSDP dividing by something else than the number of ranks (a divide factor that was set is
refused); another place than ``grad_state`` for the sum, or than ``norm_sample`` of modules for norms.
"""

from __future__ import annotations

from typing import Any

import torch
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping_fsdp import GradSampleHooksFastGradientClippingFSDP
from torch import distributed
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental import implicit_replication

from bayesdp.opacus.ghost_clipping import GhostClipping, refusal_of_change
from bayesdp.opacus.precision import check_norms
from bayesdp.opacus.rank_draws import digest
from bayesdp.opacus.ranks import RanksError
from bayesdp.opacus.sampling import Sampling
from bayesdp.validation import refuse

_EXACT = (None, torch.float32, torch.float64)


class ShardedGhostClipping(GhostClipping):
    """Ghost clipping whose gradients are shards of the sum over all ranks, divided by their number."""

    collective = True

    def __init__(self, model: Any, optimizer: Any, sampling: Sampling) -> None:
        super().__init__(model, optimizer, sampling)
        if not isinstance(model, GradSampleHooksFastGradientClippingFSDP):
            expected = "the model that make_private returned with grad_sample_mode='ghost_fsdp'"
            raise refuse("model", type(model).__name__, expected)
        self._ranks = distributed.get_world_size()
        _check_shards(optimizer, self._ranks)
        _check_reduction(model)

    def _at_second_pass(self, _: torch.Tensor) -> None:
        def after_fsdp() -> None:
            torch.autograd.Variable._execution_engine.queue_callback(self._note_gradient)

        # FSDP writes the last gradients in a callback of its own, which is queued after this one.
        torch.autograd.Variable._execution_engine.queue_callback(after_fsdp)

    def _version_of(self, grad: Any) -> int:
        return grad._version + grad.to_local()._version  # a shard may be changed by way of either

    def add_to_sum(self) -> torch.Tensor:
        """Return the norms [b] of the last backward pass; Opacus adds this rank's shard of its gradient to the sum.

        All ranks learn whether the gradient can be used. Raises InvalidInputError as ghost clipping of one process
        does, and RanksError if another rank did.
        """
        norms, refusal = self._norms, None
        self._norms = None
        self._put_back()
        grads = [parameter.grad.to_local() for parameter in self.optimizer.params if parameter.grad is not None]
        try:
            if norms is None:
                expected = "backward of the criterion that make_private returned, before the step"
                raise refuse("loss", "no backward", expected)
            self._check_passes()
            if self._is_changed():
                raise refusal_of_change()
        except ValueError as error:
            refusal, norms = error, torch.zeros(0)
        squares = sum(float(grad.double().square().sum()) for grad in grads)
        # Broken coordinates, length of the gradient, length it may have, ranks that refuse.
        shown = torch.tensor(
            [
                sum(float((~torch.isfinite(grad)).sum()) for grad in grads),
                squares if squares < float("inf") else 0.0,
                float(norms.clamp(max=self._clip).double().sum()) if len(norms) else 0.0,
                float(refusal is not None),
            ],
            dtype=torch.float64,
            device=self.optimizer.params[0].device,
        )
        distributed.all_reduce(shown)
        broken, squares, allowed, refused = shown.tolist()
        if refusal is not None:
            raise refusal
        if refused:
            raise RanksError("Another rank has refused the step; it says why. Nothing of it was released.")
        if broken:
            for grad in grads:
                grad.zero_()
        elif squares**0.5 * self._ranks > allowed * (1 + 1e-4) + 1e-6:
            what = "one no longer than the clipped gradients of its records together: something else was added to it"
            raise refuse("|gradient|", "too long", what)
        return norms

    def _check_passes(self) -> None:
        self._check_all_clipped()
        modules = list(self._module.iterate_submodules(self._module._module))
        check_norms([norm for module in modules for norm in getattr(module, "norm_sample", [])])
        if any(getattr(module, "_forward_counter", 0) for module in modules):
            raise refuse("model", "a pass without backward", "a backward for each forward pass in training mode")

    def sum_begun(self) -> bool:
        """Return whether something was added to the sum since it was last released or dropped."""
        return self.optimizer.grad_state[self.optimizer.params[0]]["summed_grad"] is not None

    def drop_sum(self) -> None:
        """Forget the sum."""
        for parameter in self.optimizer.params:
            self.optimizer.grad_state[parameter]["summed_grad"] = None

    def noise_stream(self) -> tuple[int, int]:
        """Return which stream of random numbers the noise of this rank comes from, and a digest of the place in it."""
        device = self.optimizer.params[0].device
        generator = self.optimizer.generator
        if generator is None:
            on_gpu = device.type == "cuda"
            generator = torch.cuda.default_generators[device.index or 0] if on_gpu else torch.default_generator
        try:
            seed = generator.initial_seed() & (0xFFFFFFFF if generator.device.type == "cpu" else (1 << 63) - 1)
            return seed, digest(generator.get_state().numpy().tobytes())
        except RuntimeError:  # not a generator with a seed
            return -1, 0


def _check_shards(optimizer: Any, ranks: int) -> None:
    """Raise InvalidInputError unless each parameter has one shard on each rank."""
    expected = f"one shard on each of the {ranks} ranks, as FSDP2Wrapper(model) makes them"
    for parameter in optimizer.params:
        if not isinstance(parameter, DTensor):
            raise refuse("parameter", "not sharded", expected)
        sharded = all(isinstance(placement, Shard) for placement in parameter.placements)
        if not sharded or parameter.device_mesh.size() != ranks:
            raise refuse("parameter", str(parameter.placements), expected)
        if parameter.shape[0] < ranks and not _keeps_shards(parameter):
            shape = tuple(parameter.shape)
            raise refuse(
                "parameter.shape", shape, f"a first axis of at least {ranks}: Opacus cannot add noise to fewer"
            )


def _keeps_shards(parameter: DTensor) -> bool:
    """Return whether shards and a whole tensor of noise, added up as Opacus does it, are sharded as before."""
    with implicit_replication(), torch.no_grad():
        noisy: Any = parameter + torch.zeros(parameter.shape, dtype=parameter.dtype, device=parameter.device)
    return noisy.placements == parameter.placements


def _check_reduction(model: Any) -> None:
    """Raise InvalidInputError if FSDP does not divide the sum of gradients by the number of ranks, exactly enough."""
    for module in model._module.modules():
        if not isinstance(module, FSDPModule):
            continue
        state: Any = module._get_fsdp_state()  # pyright: ignore[reportPrivateUsage]
        policy = state._mp_policy
        for dtype in (policy.param_dtype, policy.reduce_dtype):
            if dtype not in _EXACT:
                raise refuse("mp_policy", dtype, "float32 or float64: norms and sums of less are not exact enough")
        for group in state._fsdp_param_groups:
            if group.gradient_divide_factor is not None:
                expected = "the number of ranks, by which noise is divided too: leave set_gradient_divide_factor alone"
                raise refuse("gradient_divide_factor", group.gradient_divide_factor, expected)
