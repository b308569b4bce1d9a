"""The noise of privatizers: read where it is independent, refused where it is not."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax_privacy import noise_addition
from jax_privacy.matrix_factorization import streaming_matrix, toeplitz

from bayesdp import InvalidInputError
from bayesdp.jax_privacy.privatizers import noise_stddev
from jax_runs import gaussian, poisson, watched


def from_matrix(matrix, **settings):
    return noise_addition.matrix_factorization_privatizer(matrix, stddev=2.0, prng_key=jax.random.key(0), **settings)


def test_the_noise_is_what_is_added():
    privatizer = gaussian(1.7)
    gradient = jnp.zeros(200_000)
    noisy, _ = privatizer.update(gradient, privatizer.init(gradient))
    assert noise_stddev(privatizer, None) == 1.7
    assert float(jnp.std(noisy)) == pytest.approx(1.7, rel=0.01)


@pytest.mark.parametrize(
    "privatizer",
    [
        from_matrix(jnp.tril(jnp.ones((20, 20)))),
        from_matrix(toeplitz.inverse_as_streaming_matrix(jnp.array([1.0, 0.5]))),
        from_matrix(streaming_matrix.prefix_sum()),
    ],
    ids=["dense", "banded", "prefix sum"],
)
def test_correlated_noise_is_refused_with_the_reason(privatizer):
    with pytest.raises(InvalidInputError, match=r"noising_matrix=.* expected gaussian_privatizer: correlated noise"):
        watched(privatizer=privatizer)


def test_band_mf_with_one_band_is_independent_noise():
    privatizer = from_matrix(toeplitz.inverse_as_streaming_matrix(jnp.array([1.0])))
    assert noise_stddev(privatizer, 30) == 2.0
    run = watched(privatizer=privatizer, batches=poisson(0.1, 30))
    assert run.ledger.steps == 0
    with pytest.raises(InvalidInputError, match=r"noising_matrix"):  # nobody knows for how many steps
        noise_stddev(privatizer, None)


@pytest.mark.parametrize(
    ("privatizer", "message"),
    [
        (optax.chain(gaussian(), optax.sgd(0.1)), "privatizer=.* expected what gaussian_privatizer returned"),
        (optax.sgd(0.1), "privatizer=.* expected what gaussian_privatizer returned"),
        (gaussian(0.0), "noise_std=0.0: expected a finite number above 0"),
        (gaussian(np.nan), "noise_std=nan"),
        (noise_addition.gaussian_privatizer(stddev=1.0, dtype=jnp.bfloat16), "privatizer.dtype='bfloat16'"),
    ],
    ids=["chain", "optimizer", "no noise", "not a number", "half precision"],
)
def test_what_adds_no_known_noise_is_refused(privatizer, message):
    with pytest.raises(InvalidInputError, match=message):
        watched(privatizer=privatizer)
