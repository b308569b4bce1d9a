"""Norms of the gradients of single records by the parameters of a layer, without forming more than they need.

A layer sees activations a and receives backprops b, the gradient of a record's loss by the layer's output. The gradient
of a record by the weight of a linear layer is sum_t b_t a_t^T over the T places of its sequence, [out, in], and its
squared norm can be had in two ways:

    |sum_t b_t a_t^T|^2  =  sum_{s,t} <b_s, b_t> <a_s, a_t>          (Goodfellow 2015; Li et al. 2022)

The left side takes T out in multiplications, the right side T^2 (out + in), in more and smaller operations:
``linear_norms`` takes the right side if it has at most half the multiplications, which is about where it begins to be
faster. It is a sum whose terms may cancel, and rounding is relative to the terms: a margin of 8 units in the last place
of (sum_t |b_t| |a_t|)^2 is added, so that a norm comes out too large rather than too small.

What is computed is what Opacus clips by: ``grad_sample`` as its samplers compute it, also where these differ from the
derivative (they count a padding word of an embedding, and take any padding of a convolution for zeros). Layers that
have no function here get gradients from Opacus' own samplers, or by ``torch.func``, as they do in training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.functorch import ft_compute_per_sample_gradient
from opacus.layers.dp_rnn import RNNLinear
from opacus.utils.tensor_utils import unfold2d
from torch import nn
from torch.linalg import vector_norm

Norms = dict[nn.Parameter, torch.Tensor]
"""Norms of the gradients of records by parameters, each [n]."""

Use = tuple[Sequence[torch.Tensor], torch.Tensor]
"""A use of a layer: its inputs, and the gradient by its output, both with a row for each record."""

_MARGIN = 8  # units in the last place


def linear_norms(layer: Any, uses: Sequence[Use]) -> Norms:
    """Return norms by weight and bias of a linear layer; several uses of it are places of one sequence."""
    inputs = _in_one_sequence([activations[0] for activations, _ in uses])
    backprops = _in_one_sequence([received for _, received in uses])
    norms = {layer.weight: outer_product_norms(inputs.to(backprops.dtype), backprops)}
    if layer.bias is not None:
        norms[layer.bias] = vector_norm(backprops.sum(dim=1), dim=1)
    return norms


def embedding_norms(layer: Any, uses: Sequence[Use]) -> Norms:
    """Return norms by the weight of an embedding: what words receive is added up for each record and word."""
    words = _in_one_sequence([activations[0].unsqueeze(-1) for activations, _ in uses]).squeeze(-1)
    backprops = _in_one_sequence([received for _, received in uses])
    records, places = words.shape
    if places == 1:
        return {layer.weight: vector_norm(backprops.squeeze(1), dim=1)}
    first = torch.arange(records, device=words.device).unsqueeze(1) * layer.num_embeddings
    pairs, place_of = torch.unique(words + first, return_inverse=True)
    by_word = backprops.new_zeros(len(pairs), backprops.shape[-1])
    by_word.index_add_(0, place_of.reshape(-1), backprops.reshape(-1, backprops.shape[-1]))
    squares = backprops.new_zeros(records)
    squares.index_add_(0, pairs.div(layer.num_embeddings, rounding_mode="floor"), by_word.square().sum(dim=1))
    return {layer.weight: squares.sqrt()}


def convolution_norms(layer: Any, uses: Sequence[Use]) -> Norms | None:
    """Return norms by weight and bias of a two-dimensional convolution, linear in patches; None if it has groups."""
    if layer.groups != 1 or len(uses) > 1:
        return None
    ((activations, *_), backprops) = uses[0]
    patches = unfold2d(
        activations.to(backprops.dtype),
        kernel_size=layer.kernel_size,
        padding=layer.padding,
        stride=layer.stride,
        dilation=layer.dilation,
    )
    by_place = backprops.flatten(2)
    norms = {layer.weight: outer_product_norms(patches.transpose(1, 2), by_place.transpose(1, 2))}
    if layer.bias is not None:
        norms[layer.bias] = vector_norm(by_place.sum(dim=2), dim=1)
    return norms


def outer_product_norms(inputs: torch.Tensor, backprops: torch.Tensor) -> torch.Tensor:
    """Return |sum_t b_t a_t^T| for each record, [n], from ``inputs`` a [n, T, in] and ``backprops`` b [n, T, out]."""
    places = inputs.shape[1]
    if places == 1:
        return vector_norm(inputs.squeeze(1), dim=1) * vector_norm(backprops.squeeze(1), dim=1)
    size_in, size_out = inputs.shape[2], backprops.shape[2]
    if 2 * places * (size_in + size_out) > size_in * size_out:
        return vector_norm(torch.bmm(backprops.transpose(1, 2), inputs), dim=(1, 2))
    among_inputs = torch.bmm(inputs, inputs.transpose(1, 2))
    among_backprops = torch.bmm(backprops, backprops.transpose(1, 2))
    lengths = among_inputs.diagonal(dim1=1, dim2=2) * among_backprops.diagonal(dim1=1, dim2=2)
    most = lengths.clamp_(min=0).sqrt_().sum(dim=1).square_()
    squares = among_inputs.mul_(among_backprops).sum(dim=(1, 2)).clamp_(min=0)
    return squares.add_(most, alpha=_MARGIN * torch.finfo(squares.dtype).eps).sqrt_()


def sampled_norms(layer: nn.Module, uses: Sequence[Use], *, by_derivative: bool = False) -> Norms:
    """Return norms of gradients that Opacus' sampler forms, or ``torch.func`` if it has none or ``by_derivative``."""
    sampler = GradSampleModule.GRAD_SAMPLERS.get(type(layer))
    sample = ft_compute_per_sample_gradient if sampler is None or by_derivative else sampler
    gradients: dict[nn.Parameter, torch.Tensor] = {}
    for activations, backprops in uses:
        for parameter, gradient in sample(layer, activations, backprops).items():
            gradients[parameter] = gradients[parameter] + gradient if parameter in gradients else gradient
    return {parameter: vector_norm(gradient.flatten(1), dim=1) for parameter, gradient in gradients.items()}


def _in_one_sequence(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the parts, each [n, ..., d], one after the other, [n, T, d]; missing last records have zeros there.

    Packed sequences grow shorter: only the first records are in the later parts.
    """
    if len(parts) == 1:
        return parts[0].reshape(parts[0].shape[0], -1, parts[0].shape[-1])
    lengths = [part.shape[0] for part in parts]
    records = max(lengths)
    if any(part.ndim > 2 for part in parts):
        if min(lengths) < records:
            raise NotImplementedError("a layer that is used for sequences and for packed ones")
        return torch.cat([part.reshape(records, -1, part.shape[-1]) for part in parts], dim=1)
    if min(lengths) == records:
        return torch.stack(list(parts), dim=1)
    sequence = parts[0].new_zeros(records, len(parts), parts[0].shape[-1])
    for place, part in enumerate(parts):
        sequence[: lengths[place], place] = part
    return sequence


SHORT_CUTS: dict[type[nn.Module], Callable[[Any, Sequence[Use]], Norms | None]] = {
    nn.Linear: linear_norms,
    RNNLinear: linear_norms,
    nn.Embedding: embedding_norms,
    nn.Conv2d: convolution_norms,
}
"""The function for each exact type of layer that has one; it returns None where it does not apply."""
