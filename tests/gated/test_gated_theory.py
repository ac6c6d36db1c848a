"""What theory says about trained block networks."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from nullcline import gated

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::nullcline.gated.MaskWarning")]


@pytest.fixture(scope="module")
def trained():
    """A small network from small weights, on a connected mask."""
    mask = gated.nested_mask(4, 9, key=jr.key(1))
    assert bool(gated.connectivity(mask).is_connected)
    network = gated.initialize(4, 3, 3, 1e-3, key=jr.key(0))
    return network, mask, gated.train(network, mask, tolerance=1e-10)


def test_end_state(trained):
    _, _, run = trained
    assert run.status == "converged"
    top = gated.final_singular_value(4)
    stacked = jnp.concatenate(list(run.network.w_out), axis=0)
    for matrix in (run.network.w_hidden, stacked, jnp.concatenate(list(run.network.w_in), axis=1)):
        # Corrections are of the order of the initial scale.
        np.testing.assert_allclose(jnp.linalg.svd(matrix, compute_uv=False), top, rtol=2e-3)


def test_hessian_at_the_end(trained):
    _, mask, run = trained
    flat, unravel = jax.flatten_util.ravel_pytree(run.network)
    hessian = jax.jit(jax.hessian(lambda x: gated.train_loss(unravel(x), mask)))(flat)
    found = np.linalg.eigvalsh(hessian)
    single = np.asarray(gated.final_hessian_eigenvalues(mask, 3))
    expected = np.repeat(single, 9)
    positive = expected[expected > 1e-9]
    assert len(positive) == 9 * (2 * 4 - 1)
    np.testing.assert_allclose(found[-len(positive) :], positive, rtol=5e-3)
    assert np.abs(found[: -len(positive)]).max() < 1e-3 * positive[0]
    slow = float(gated.final_rate(mask, 3)) / 2
    np.testing.assert_allclose(positive[0], slow, rtol=0.05)


def test_final_rate(trained):
    network, mask, run = trained
    earlier = gated.train(network, mask, tolerance=1e-7)
    rate = np.log(1e-7 / 1e-10) / (float(run.time) - float(earlier.time))
    exact = 2 * float(gated.final_hessian_eigenvalues(mask, 3)[-7])
    np.testing.assert_allclose(rate, exact, rtol=0.02)
    ratio = float(run.test_loss / run.train_loss) / float(gated.typical_ratio(mask))
    assert 0.4 < ratio < 1.1


def test_resistance_bounds_the_worst_pair(trained):
    # A single slowest mode comes close to the bound, so a lost factor of two would show.
    _, mask, run = trained
    bound = np.asarray(gated.resistance_bound(mask, run.train_loss))
    share = np.asarray(gated.pair_losses(run.network)) / bound
    assert 0.3 < share.max() <= 1 + 1e-3


def test_cross_pairs_of_many_words():
    # Outputs {0, 1} with input {0}, output {2} with inputs {1, 2}: rho² = 1/2 one way and 2 the other.
    mask = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 1]])
    starts = jax.vmap(lambda k: gated.initialize(3, 8, 8, 0.03, key=k))(jr.split(jr.key(0), 16))
    run = gated.train_batch(starts, mask, max_evaluations=6_000)
    assert run.is_converged.all()
    pairs = np.asarray(jax.vmap(gated.pair_losses)(run.network)).mean(0)
    predicted = np.asarray(gated.small_scale_losses(mask))
    # tr(Q)/D of a random orthogonal matrix has standard deviation 1/8, times rho ≤ √2, over 16 starts: 0.04.
    np.testing.assert_allclose(pairs, predicted, atol=0.15)
