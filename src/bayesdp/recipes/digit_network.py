"""A small public network that knows digits: trained on drawings that nobody wrote (``drawn_digits.py``).

Three convolutions, each followed by a rectifier and by pooling. What comes out, 128 channels at 3 x 3 places, are the
features of an image. Training runs the same on every machine only up to rounding, which training amplifies. So the
weights are part of the package, as ``digit_network.safetensors``: the same features for everyone who uses a model.
``python -m benchmarks.digit_network`` has written that file.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesdp.optional import needs
from bayesdp.progress import Progress, showing
from bayesdp.recipes.drawn_digits import TEMPLATES, drawn_digits
from bayesdp.recipes.efficientnet import unit_length

with needs("recipes", "the network for digits"):
    import torch
    from safetensors.numpy import load_file, save_file
    from torch import nn
    from torch.nn import functional
    from torch.nn.utils.fusion import fuse_conv_bn_eval

WEIGHTS = Path(__file__).with_name("digit_network.safetensors")
_CHANNELS = (1, 32, 64, 128)
_SIZES = (5, 3, 3)  # of the convolutions, in pixels
_HIDDEN = 128
_BATCH = 128
_LEARNING_RATE = 4e-3


def digit_features() -> Callable[[NDArray[Any]], NDArray[np.float32]]:
    """Return the function from images [n, 28, 28] of bytes to features [n, 1152] of length 1."""
    layers = _layers(norms=False)
    layers.load_state_dict({name: torch.from_numpy(array).float() for name, array in load_file(WEIGHTS).items()})
    layers.eval()

    def compute(images: NDArray[Any]) -> NDArray[np.float32]:
        with torch.inference_mode():
            return unit_length(layers(_pixels(images)).flatten(1)).numpy()

    return compute


def train_network(digits: int, epochs: int, path: Path, track: Progress = iter) -> None:
    """Train the network to tell ``digits`` drawn digits apart, and write its convolutions to ``path`` in float16.

    Batch norms are folded into the convolutions. Two layers behind them are for training only. The global generator of
    PyTorch is left as it was.
    """
    drawn, classes = drawn_digits(digits)
    images, targets = _pixels(drawn), torch.from_numpy(classes)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = _layers(norms=True)
        head = nn.Sequential(nn.Flatten(), nn.LazyLinear(_HIDDEN), nn.ReLU(), nn.Dropout(0.3))
        head.append(nn.Linear(_HIDDEN, len(TEMPLATES)))
        whole = nn.Sequential(layers, head)
        whole(images[:2])  # gives the lazy layer its size
        steps = epochs * (digits // _BATCH)
        optimizer = torch.optim.AdamW(whole.parameters(), lr=_LEARNING_RATE, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _LEARNING_RATE, total_steps=steps)
        order = torch.arange(digits)
        with showing(track, range(steps)) as numbers:
            for number in numbers:
                if number % (digits // _BATCH) == 0:
                    order = torch.randperm(digits)
                drawn_rows = order[number % (digits // _BATCH) * _BATCH :][:_BATCH]
                scores = whole(_varied(images[drawn_rows]))
                loss = functional.cross_entropy(scores, targets[drawn_rows], label_smoothing=0.05)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
        folded = _layers(norms=False)
    layers.eval()
    for place, convolution in enumerate(module for module in folded if isinstance(module, nn.Conv2d)):
        with_norm = fuse_conv_bn_eval(layers[4 * place], layers[4 * place + 1])  # type: ignore[arg-type]
        convolution.load_state_dict(with_norm.state_dict())
    save_file({name: array.half().numpy() for name, array in folded.state_dict().items()}, path)


def _layers(*, norms: bool) -> nn.Sequential:
    modules: list[nn.Module] = []
    for inputs, outputs, size in zip(_CHANNELS, _CHANNELS[1:], _SIZES, strict=False):
        modules.append(nn.Conv2d(inputs, outputs, size, padding=size // 2))
        modules += [nn.BatchNorm2d(outputs)] if norms else []
        modules += [nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*modules)


def _pixels(images: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(images.astype(np.float32) / 255)[:, None]


def _varied(images: torch.Tensor) -> torch.Tensor:
    """Return images [n, 1, 28, 28] moved, stretched and turned a little, with more or less ink."""
    count = len(images)
    moves = torch.zeros(count, 2, 3)
    moves[:, :, :2] = torch.diag_embed(torch.exp(0.06 * torch.randn(count, 2)))
    moves[:, 0, 1], moves[:, 1, 0] = 0.08 * torch.randn(2, count)
    moves[:, :, 2] = 0.05 * torch.randn(count, 2)
    grid = functional.affine_grid(moves, list(images.shape), align_corners=False)
    ink = torch.empty(count, 1, 1, 1).uniform_(0.9, 1.6)
    return (functional.grid_sample(images, grid, align_corners=False) * ink).clamp(max=1)
