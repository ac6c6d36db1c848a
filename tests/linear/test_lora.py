"""Exact low-rank fine-tuning, against integration of the adapter's own flow."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from nullcline import linear

TIMES = jnp.array([0.0, 0.5, 2.0, 8.0])


def adapter_flow(frozen, a, b, task, gamma, times):
    """Flow of (A, B) under the loss of W0 + γBA, written from the loss itself."""
    frozen, a, b = (np.asarray(x) for x in (frozen, a, b))
    x, y = np.asarray(task.x), np.asarray(task.y)

    def field(t, state):
        a_t, b_t = state[: a.size].reshape(a.shape), state[a.size :].reshape(b.shape)
        error = ((frozen + gamma * b_t @ a_t) @ x - y) @ x.T / x.shape[1]
        return -gamma * np.concatenate([(b_t.T @ error).ravel(), (error @ a_t.T).ravel()])

    start = np.concatenate([a.ravel(), b.ravel()])
    path = solve_ivp(field, (0, times[-1]), start, method="LSODA", rtol=1e-11, atol=1e-13, t_eval=times).y.T
    return [frozen + gamma * s[a.size :].reshape(b.shape) @ s[: a.size].reshape(a.shape) for s in path]


def test_standard_start_follows_the_flow():
    gamma = 0.25
    task = linear.random_regression(4, 3, 12, key=jr.key(1))
    frozen = jr.normal(jr.key(2), (3, 4))
    adapter = linear.lambda_balanced(4, 2, 3, lam=-1.44, scale=0.0, key=jr.key(3))
    # B = 0 and orthogonal rows of norm 1.2.
    np.testing.assert_allclose(adapter.w2, 0.0, atol=0)
    np.testing.assert_allclose(adapter.w1 @ adapter.w1.T, 1.44 * jnp.eye(2), atol=1e-12)
    flow = linear.lora_flow(frozen, adapter, task, TIMES, gamma=gamma)
    expected = adapter_flow(frozen, adapter.w1, adapter.w2, task, gamma, np.asarray(TIMES))
    np.testing.assert_allclose(flow.function, np.stack(expected), atol=1e-9)
    np.testing.assert_allclose(flow.loss, linear.function_loss(jnp.stack(expected), task), rtol=1e-8)


def test_converges_to_the_best_low_rank_correction():
    task = linear.Task.from_correlation(jr.normal(jr.key(1), (3, 4)))
    frozen = jr.normal(jr.key(2), (3, 4))
    adapter = linear.lambda_balanced(4, 2, 3, lam=-1.0, scale=0.0, key=jr.key(3))
    flow = linear.lora_flow(frozen, adapter, task, jnp.array([1e6]), gamma=2.0, tau=3.0)
    u, s, vt = np.linalg.svd(np.asarray(task.sigma_yx - frozen))
    np.testing.assert_allclose(flow.function[0] - frozen, (u[:, :2] * s[:2]) @ vt[:2], atol=1e-10)
    np.testing.assert_allclose(flow.loss[0], 0.5 * np.sum(s[2:] ** 2), rtol=1e-10)


@pytest.mark.slow
def test_scaled_inputs_and_no_frozen_part():
    """With W0 = 0 and γ = 1 fine-tuning is training; κ ≠ 1 changes nothing in that."""
    white = linear.random_regression(4, 3, 12, key=jr.key(1))
    task = linear.Task(2.0 * white.x, white.y)
    network = linear.lambda_balanced(4, 2, 3, lam=0.3, key=jr.key(3))
    flow = linear.lora_flow(jnp.zeros((3, 4)), network, task, TIMES)
    np.testing.assert_allclose(flow.function, linear.exact_flow(network, task, TIMES).function, rtol=1e-12)


def test_gaussian_adapter_is_refused_and_shapes_are_checked():
    task = linear.random_regression(4, 3, 12, key=jr.key(1))
    gaussian = linear.Network(jr.normal(jr.key(0), (2, 4)), jnp.zeros((3, 2)))
    with pytest.raises(ValueError, match="not λ-balanced"):
        linear.lora_flow(jnp.zeros((3, 4)), gaussian, task, TIMES)
    good = linear.lambda_balanced(4, 2, 3, lam=-1.0, scale=0.0, key=jr.key(3))
    with pytest.raises(ValueError, match=r"`frozen` must have shape \(outputs, inputs\) = \(3, 4\)"):
        linear.lora_flow(jnp.zeros((4, 3)), good, task, TIMES)
    with pytest.raises(ValueError, match="`gamma` must be positive"):
        linear.lora_flow(jnp.zeros((3, 4)), good, task, TIMES, gamma=0.0)
