"""The weights themselves along the exact flow, against integration."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from flow_reference import integrate_weights

from nullcline import linear

TIMES = jnp.array([0.6, 1.2])


def error(network, task, steps, times=TIMES, tau=1.0):
    got = linear.exact_weights(network, task, times, steps=steps, tau=tau)
    path = integrate_weights(network.w1, network.w2, task.sigma_yx, task.sigma_xx, np.asarray(times) / tau)
    first = max(np.abs(got.w1[i] - w1).max() for i, (w1, _) in enumerate(path))
    second = max(np.abs(got.w2[i] - w2).max() for i, (_, w2) in enumerate(path))
    return max(first, second)


@pytest.mark.slow
def test_weights_follow_the_flow():
    task = linear.random_regression(4, 3, 12, key=jr.key(1))
    network = linear.lambda_balanced(4, 3, 3, lam=0.7, key=jr.key(0))
    coarse, fine = error(network, task, 4), error(network, task, 16)
    # Four times the steps: 256 times the accuracy, up to higher orders.
    assert fine < 1e-6 and 100 < coarse / fine < 500
    weights, exact = (
        linear.exact_weights(network, task, TIMES, steps=16),
        linear.exact_flow(network, task, TIMES),
    )
    # The steps can spoil the rotation only; the Gram matrices are exact.
    np.testing.assert_allclose(weights.w2 @ weights.w1, exact.function, atol=1e-13)
    np.testing.assert_allclose(weights.w2 @ jnp.swapaxes(weights.w2, 1, 2), exact.output_gram, atol=1e-13)
    start = linear.exact_weights(network, task, 0 * TIMES, steps=16)
    np.testing.assert_allclose(start.w1[1], network.w1, atol=1e-13)
    # What the steps did is told: an upper estimate, and a warning where it is large.
    path = integrate_weights(network.w1, network.w2, task.sigma_yx, np.eye(4), np.asarray(TIMES))
    for i, (w1, w2) in enumerate(path):
        off = np.hypot(np.linalg.norm(weights.w1[i] - w1), np.linalg.norm(weights.w2[i] - w2))
        assert off < weights.error[i] * np.hypot(np.linalg.norm(w1), np.linalg.norm(w2)) < 1e-3
    with pytest.warns(UserWarning, match="Give more `steps`"):
        linear.exact_weights(network, task, 20 * TIMES, steps=16)
    # The factor of the exact solution alone, turned as near to the initial weights as it gets, is not them.
    (w1, w2), start = integrate_weights(network.w1, network.w2, task.sigma_yx, np.eye(4), [3.0])[0], network.q
    q = np.concatenate([w1.T, w2])
    left, _, right = np.linalg.svd(q.T @ np.asarray(start))
    assert np.linalg.norm(q @ left @ right - q) / np.linalg.norm(q) > 5e-3


@pytest.mark.slow
def test_inputs_on_a_subspace():
    """What no input explores keeps its weights."""
    basis = jnp.linalg.qr(jr.normal(jr.key(0), (4, 2)))[0]
    x = basis @ linear.whiten(jr.normal(jr.key(1), (2, 10)))
    task = linear.Task(x, jr.normal(jr.key(2), (3, 10)))
    inside = linear.lambda_balanced(2, 2, 3, lam=0.5, key=jr.key(3))
    outside = jr.normal(jr.key(4), (2, 4)) @ (jnp.eye(4) - basis @ basis.T)
    network = linear.Network(inside.w1 @ basis.T + outside, inside.w2)
    assert error(network, task, 16) < 1e-6


def test_wide_networks():
    """More hidden units than inputs and outputs: the exact factors have fewer columns than the weights."""
    task = linear.random_regression(2, 2, 8, key=jr.key(1))
    for network in (
        linear.lambda_balanced(2, 6, 2, lam=0.0, key=jr.key(0)),
        linear.lambda_balanced(2, 6, 2, lam=1.0, rank=2, key=jr.key(0)),
    ):
        assert error(network, task, 16) < 1e-6


@pytest.mark.filterwarnings("ignore:.*too few")
def test_steps_that_overflow_lose_the_rotation_alone():
    task = linear.random_regression(3, 3, 8, key=jr.key(1))
    network = linear.lambda_balanced(3, 2, 3, lam=1.0, key=jr.key(0))
    times = jnp.array([0.5, 1e12])
    weights, exact = linear.exact_weights(network, task, times), linear.exact_flow(network, task, times)
    assert weights.error[0] < 1e-3 and weights.error[1] == jnp.inf
    np.testing.assert_allclose(weights.w2 @ weights.w1, exact.function, atol=1e-13)


def test_bad_arguments():
    task = linear.random_regression(4, 3, 12, key=jr.key(1))
    network = linear.lambda_balanced(4, 3, 3, lam=0.7, key=jr.key(0))
    with pytest.raises(ValueError, match="`steps` must be an integer of at least 1"):
        linear.exact_weights(network, task, TIMES, steps=0)
