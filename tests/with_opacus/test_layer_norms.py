"""Norms of sums of outer products: equal in both ways of computing them, and not below the truth."""

from __future__ import annotations

import pytest
import torch

from bayesdp.opacus.layer_norms import outer_product_norms


def true_norms(inputs: torch.Tensor, backprops: torch.Tensor) -> torch.Tensor:
    return torch.einsum("nti,nto->noi", inputs.double(), backprops.double()).flatten(1).norm(dim=1)


@pytest.mark.parametrize(("places", "size_in", "size_out"), [(1, 5, 7), (3, 40, 50), (40, 3, 5), (64, 384, 384)])
def test_norms_of_sums_of_outer_products(places: int, size_in: int, size_out: int) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(8, places, size_in, generator=generator)
    backprops = torch.randn(8, places, size_out, generator=generator)
    truth = true_norms(inputs, backprops)
    assert torch.allclose(outer_product_norms(inputs, backprops).double(), truth, rtol=1e-4)
    exact = outer_product_norms(inputs.double(), backprops.double())
    assert torch.allclose(exact, truth, rtol=1e-10)


@pytest.mark.parametrize("left", [1e-1, 1e-2, 1e-3, 1e-4, 0.0])
def test_terms_that_cancel_do_not_make_a_norm_too_small(left: float) -> None:
    """Inputs come in pairs of opposite sign: what is left of the sum is a small fraction of its terms."""
    generator = torch.Generator().manual_seed(1)
    half = torch.randn(200, 8, 256, generator=generator)
    inputs = torch.cat([half, -half + left * torch.randn(200, 8, 256, generator=generator)], dim=1)
    backprops = torch.randn(200, 8, 256, generator=generator).repeat(1, 2, 1)
    found, truth = outer_product_norms(inputs, backprops).double(), true_norms(inputs, backprops)
    assert bool((found >= truth * (1 - 1e-6)).all())
    most = (inputs.double().norm(dim=2) * backprops.double().norm(dim=2)).sum(dim=1)
    assert bool((found <= truth + 2e-3 * most).all())
