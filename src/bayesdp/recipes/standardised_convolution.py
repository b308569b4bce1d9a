"""A convolution whose filters are standardised: what private training of deeper networks relies on.

Weight standardisation (Qiao et al., 2019, arXiv:1903.10520) replaces each filter w by (w - mean) / (sd sqrt(n)), n the
number of its weights: its mean is 0 and its length 1. Noise that is added to all weights of a filter alike, or along
the filter, then changes nothing. De et al. (2022, arXiv:2204.13650) name it among what helps DP-SGD.

The filter is a function of the weights alone, so the gradient of a record by the weights is that by the standardised
filter, taken back through the standardisation. Opacus finds it by the sampler that is registered here.
"""

from __future__ import annotations

import math
from typing import Any

from bayesdp.optional import needs

with needs("demo", "training a network with DP-SGD"):
    import torch
    from opacus.grad_sample import register_grad_sampler
    from torch import nn

_LEAST = 1e-8
"""Added to the variance of a filter: one whose weights are all alike has no direction."""
_AXES = (-3, -2, -1)


class StandardisedConvolution(nn.Conv2d):
    """A convolution [b, inputs, h, w] -> [b, outputs, h', w'] with standardised filters, without groups or dilation."""

    def __init__(self, inputs: int, outputs: int, size: int, *, stride: int = 1, padding: int = 0) -> None:
        super().__init__(inputs, outputs, size, stride=stride, padding=padding)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return what the standardised filters give."""
        directions, _ = self.standardised()
        return self._conv_forward(input, directions / math.sqrt(self.weight[0].numel()), self.bias)

    def standardised(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return filters with mean 0 and variance 1, and the standard deviations by which they were divided."""
        centred = self.weight - self.weight.mean(_AXES, keepdim=True)
        deviations = (centred.square().mean(_AXES, keepdim=True) + _LEAST).sqrt()
        return centred / deviations, deviations


@register_grad_sampler(StandardisedConvolution)
def _gradients_by_record(
    layer: StandardisedConvolution, activations: list[torch.Tensor], backprops: torch.Tensor
) -> dict[torch.Tensor, torch.Tensor]:
    """Return the gradients of each record, [b, ...], by weight and bias.

    With u the filter of variance 1 and s its deviation, dL/dw = (g - mean(g) - u mean(g u)) / s, g = dL/du.
    """
    padding: Any = layer.padding
    inputs = nn.functional.unfold(activations[0], layer.kernel_size, padding=padding, stride=layer.stride)
    given = backprops.flatten(2)
    by_direction = torch.einsum("bop,bwp->bow", given, inputs) / math.sqrt(layer.weight[0].numel())
    by_direction = by_direction.unflatten(2, layer.weight.shape[1:])
    directions, deviations = layer.standardised()
    along = (by_direction * directions).mean(_AXES, keepdim=True)
    by_weight = (by_direction - by_direction.mean(_AXES, keepdim=True) - directions * along) / deviations
    assert layer.bias is not None
    return {layer.weight: by_weight.detach(), layer.bias: given.sum(2)}
