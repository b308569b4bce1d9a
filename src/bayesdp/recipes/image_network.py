"""Networks for images that are trained from their first weight by DP-SGD, for data without public features.

What helps such training is known (De et al., 2022, arXiv:2204.13650; Papernot et al., 2021, arXiv:2007.14191): large
batches, few weights, standardised filters, normalised activations, gradients that are averaged over views of an image
before they are clipped, and weights that are averaged over the last steps. The networks here are small enough for two
processors.

Views are fixed, not random, so that the contribution of a record is a function of the weights: ``fit_model`` says why.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesdp.optional import needs

with needs("demo", "training a network with DP-SGD"):
    import torch
    from torch import nn

from bayesdp.recipes.choices import ImageNetworkChoice
from bayesdp.recipes.datasets import Dataset, Rows
from bayesdp.recipes.descent import SgdSettings
from bayesdp.recipes.dp_sgd import fit_model, settings_for
from bayesdp.recipes.recipe_run import Fitted, RecipeRun
from bayesdp.recipes.record_norms import Views, only_view
from bayesdp.recipes.standardised_convolution import StandardisedConvolution

_VIEWS_AT_ONCE = 128
_ROWS_AT_ONCE = 500


def mirrored(images: torch.Tensor) -> torch.Tensor:
    """Return images [b, c, h, w] and their mirror images, [b, 2, c, h, w]."""
    return torch.stack([images, images.flip(-1)], dim=1)


def shifted(images: torch.Tensor) -> torch.Tensor:
    """Return images [b, c, h, w] as they are and moved by a pixel up, down, left and right, [b, 5, c, h, w]."""
    padded = nn.functional.pad(images, (1, 1, 1, 1), mode="replicate")
    height, width = images.shape[-2:]
    corners = ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2))
    return torch.stack([padded[..., top : top + height, left : left + width] for top, left in corners], dim=1)


VIEWS: dict[str, Views] = {"plain": only_view, "mirrored": mirrored, "shifted": shifted}
"""The views of an image by the name that ``ImageNetworkChoice.views`` has for them."""


def fit_recipe(run: RecipeRun, choice: ImageNetworkChoice) -> Fitted:
    """Train the network on development rows, images [n, c, h, w], within ``run.target_epsilon`` for everyone."""
    dataset, views = run.dataset, VIEWS[choice.views]
    settings = settings_for(run, choice, choice.average)
    model, (inputs, targets) = network(choice.network, dataset.classes), _tensors(dataset.development)
    start = copy.deepcopy(model)
    fit_model(
        model,
        nn.CrossEntropyLoss(),
        inputs,
        targets,
        settings,
        ledger=run.ledger,
        randomness=run.randomness,
        audit=_tensors(dataset.audit),
        views=views,
        at_once=_VIEWS_AT_ONCE // views(inputs[:1]).shape[1],
        checkpoint=run.checkpoint({**settings.to_dict(), "network": choice.network, "views": choice.views}),
        track=run.track,
    )
    return Fitted(
        arrays={name: value.numpy() for name, value in model.state_dict().items()},
        classify=f"argmax of scores of bayesdp.recipes.image_network.network({choice.network!r}, {dataset.classes}) "
        f"with this state, averaged over the {choice.views} views of images [n, c, h, w], each normalised by itself",
        accuracy=float(_hits(model, views, dataset.judged).mean()),
        baseline=lambda: _baseline(start, views, dataset, settings),
        hits=lambda: (_hits(model, views, dataset.development), _hits(model, views, dataset.audit)),
    )


def network(name: str, classes: int) -> nn.Module:
    """Return a network of this name with its initial weights, which come from a fixed seed and know nothing."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return _NETWORKS[name](classes)


def _grey(convolution: Callable[..., nn.Module], classes: int) -> nn.Module:
    """Return the network for images [n, 1, 28, 28]: 20,746 weights for ten classes."""
    layers = (*_halving(convolution, 1, 16, 5), *_halving(convolution, 16, 32, 3))
    return nn.Sequential(*layers, *_linear(32 * 7 * 7, classes))


def _colour(convolution: Callable[..., nn.Module], classes: int) -> nn.Module:
    """Return the network for images [n, 3, 32, 32]: 31,178 weights for ten classes."""
    layers = (*_halving(convolution, 3, 32, 5), *_halving(convolution, 32, 64, 3), nn.AvgPool2d(2))
    return nn.Sequential(*layers, *_linear(64 * 4 * 4, classes))


def _halving(convolution: Callable[..., nn.Module], inputs: int, outputs: int, size: int) -> tuple[nn.Module, ...]:
    """Return a convolution to half the width and height, its norm in groups of four channels, and a rectifier.

    The norm is of one image alone and has no weights: noise on weights that scale whole channels does harm.
    """
    halved = convolution(inputs, outputs, size, stride=2, padding=size // 2)
    return halved, nn.GroupNorm(outputs // 4, outputs, affine=False), nn.ReLU()


def _linear(features: int, classes: int) -> tuple[nn.Module, ...]:
    return nn.Flatten(), nn.GroupNorm(1, features, affine=False), nn.Linear(features, classes)


_NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "two-convolutions-grey": partial(_grey, nn.Conv2d),
    "two-convolutions-colour": partial(_colour, nn.Conv2d),
    "standardised-grey": partial(_grey, StandardisedConvolution),
    "standardised-colour": partial(_colour, StandardisedConvolution),
}


def _tensors(rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(rows.x), torch.from_numpy(rows.y)


def _scores(model: nn.Module, views: Views, inputs: torch.Tensor) -> torch.Tensor:
    """Return the scores of each image, averaged over its views, [b, classes]."""
    seen = views(inputs)
    return model(seen.flatten(0, 1)).unflatten(0, seen.shape[:2]).mean(1)


def _hits(model: nn.Module, views: Views, rows: Rows) -> NDArray[np.bool_]:
    model.eval()
    with torch.inference_mode():
        parts = torch.from_numpy(rows.x).split(_ROWS_AT_ONCE)
        return torch.cat([_scores(model, views, part).argmax(1) for part in parts]).numpy() == rows.y


def _baseline(model: nn.Module, views: Views, dataset: Dataset, settings: SgdSettings) -> float:
    """Return the accuracy of the same network after as many passes over the rows without noise and clipping.

    It is not private.
    """
    inputs, targets = _tensors(dataset.development)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    loss: Any = nn.CrossEntropyLoss()
    generator = torch.Generator().manual_seed(0)
    for _ in range(math.ceil(settings.steps * settings.sample_rate)):
        for rows in torch.randperm(len(targets), generator=generator).split(_VIEWS_AT_ONCE):
            optimizer.zero_grad()
            loss(_scores(model, views, inputs[rows]), targets[rows]).backward()
            optimizer.step()
    return float(_hits(model, views, dataset.judged).mean())
