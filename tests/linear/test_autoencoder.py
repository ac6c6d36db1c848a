"""Autoencoders and aligned networks on inputs that are not white."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from flow_reference import integrate_weights, stacked

from nullcline import linear

TIMES = jnp.array([0.0, 0.2, 1.0, 5.0])


def check_against_flow(network, task, times=TIMES):
    flow = linear.aligned_flow(network, task, times)
    path = integrate_weights(network.w1, network.w2, task.sigma_yx, task.sigma_xx, times)
    np.testing.assert_allclose(flow.function, np.stack([b @ a for a, b in path]), atol=1e-9)
    # Layer by layer: W1ᵀW1 has the squared strengths of the first layer on its directions.
    gram = (flow.v * flow.modes.first[-1][None] ** 2) @ flow.v.T
    np.testing.assert_allclose(gram, path[-1][0].T @ path[-1][0], atol=1e-9)
    return flow


@pytest.mark.parametrize("lam", [0.4, -0.4, 0.0])
def test_colored_autoencoder(lam):
    x = jr.normal(jr.key(0), (4, 30)) * jnp.array([2.0, 1.3, 1.0, 0.4])[:, None]
    task = linear.autoencoder_task(x)
    assert task.is_isotropic is False
    network = linear.aligned(task, 3, lam=lam, strengths=jnp.array([0.1, -0.3, 0.5]), key=jr.key(1))
    flow = check_against_flow(network, task)
    np.testing.assert_allclose(flow.target, 1.0, rtol=1e-12)
    variances = np.linalg.eigvalsh(np.asarray(task.sigma_xx))
    np.testing.assert_allclose(np.sort(flow.variance), variances, rtol=1e-12)


def test_white_autoencoder_by_the_general_solution():
    x = linear.whiten(jr.normal(jr.key(0), (3, 9)))
    task = linear.autoencoder_task(x)
    network = linear.lambda_balanced(3, 2, 3, lam=0.5, key=jr.key(1))
    exact = linear.exact_flow(network, task, TIMES)
    for got, (a, b) in zip(
        exact.qqt, integrate_weights(network.w1, network.w2, np.eye(3), np.eye(3), TIMES), strict=True
    ):
        np.testing.assert_allclose(got, stacked(a, b), atol=1e-10)


def test_shared_directions_with_other_targets_and_degenerate_variances():
    """Σxx = V diag(ς) Vᵀ with a repeated ς, Σyx = U diag(s) Vᵀ with one s = 0, another λ for each mode."""
    u = jnp.linalg.qr(jr.normal(jr.key(0), (5, 4)))[0]
    v = jnp.linalg.qr(jr.normal(jr.key(1), (4, 4)))[0]
    white = linear.whiten(jr.normal(jr.key(2), (4, 20)))
    variance, s = jnp.array([2.0, 1.0, 1.0, 0.3]), jnp.array([1.5, 0.7, 0.7, 0.0])
    x = v @ (jnp.sqrt(variance)[:, None] * white)
    # Y = U diag(s / ς) Vᵀ X gives Σyx = U diag(s) Vᵀ.
    task = linear.Task(x, (u * (s / variance)[None]) @ v.T @ x)
    frame = jnp.linalg.qr(jr.normal(jr.key(3), (4, 4)))[0]
    c, d = jnp.array([0.2, -0.5, 1.0, 0.4]), jnp.array([0.9, 0.3, 1.0, 0.6])
    network = linear.Network(frame @ (c[:, None] * v.T), (u * d[None]) @ frame.T)
    flow = check_against_flow(network, task)
    np.testing.assert_allclose(jnp.sort(flow.target), jnp.sort(s / variance), atol=1e-12)


def test_agrees_with_the_general_solution_on_white_inputs():
    task = linear.random_regression(4, 3, 12, key=jr.key(0))
    network = linear.aligned(task, 3, lam=-0.6, key=jr.key(1))
    aligned = linear.aligned_flow(network, task, TIMES, tau=2.0)
    np.testing.assert_allclose(
        aligned.function, linear.exact_flow(network, task, TIMES, tau=2.0).function, atol=1e-12
    )
    # Weights in single precision are aligned as well as they can be.
    single = jax.tree.map(lambda w: w.astype(jnp.float32), network)
    flow = linear.aligned_flow(single, task, TIMES, tau=2.0)
    np.testing.assert_allclose(flow.function, aligned.function, atol=1e-6)


def test_unaligned_weights_are_refused():
    x = jr.normal(jr.key(0), (4, 30)) * jnp.array([2.0, 1.3, 1.0, 0.4])[:, None]
    task = linear.autoencoder_task(x)
    network = linear.lambda_balanced(4, 3, 4, lam=0.4, key=jr.key(1))
    with pytest.raises(ValueError, match=r"not aligned .* `integrate_flow`"):
        linear.aligned_flow(network, task, TIMES)
    # Both layers aligned, but their hidden directions do not meet.
    good = linear.aligned(task, 4, lam=0.4, strengths=jnp.array([0.1, 0.2, 0.3, 0.4]), key=jr.key(1))
    turn = jnp.linalg.qr(jr.normal(jr.key(5), (4, 4)))[0]
    with pytest.raises(ValueError, match="not aligned"):
        linear.aligned_flow(linear.Network(turn @ good.w1, good.w2), task, TIMES)
