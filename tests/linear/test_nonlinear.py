"""Nonlinear networks by descent: gradients, conserved quantities, divergence."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from nullcline import linear

TASK = linear.random_regression(5, 5, 10, key=jr.key(1))


def numpy_descent(network, task, activation, learning_rate, steps):
    """The textbook back-propagation."""
    w1, w2, x, y = (np.asarray(m) for m in (network.w1, network.w2, task.x, task.y))
    for _ in range(steps):
        z = w1 @ x
        phi = np.maximum(z, 0) if activation == "relu" else np.tanh(z)
        slope = (z > 0) if activation == "relu" else 1 - phi**2
        error = (w2 @ phi - y) / x.shape[1]
        back = (w2.T @ error) * slope
        w1, w2 = w1 - learning_rate * back @ x.T, w2 - learning_rate * error @ phi.T
    return w1, w2


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_descent_is_back_propagation(activation):
    network = linear.lambda_balanced(5, 5, 5, lam=1.0, key=jr.key(0))
    run = linear.nonlinear_descent(
        network, TASK, activation=activation, learning_rate=0.05, steps=20, every=10
    )
    w1, w2 = numpy_descent(network, TASK, activation, 0.05, 20)
    np.testing.assert_allclose(run.network.w1, w1, atol=1e-12)
    np.testing.assert_allclose(run.network.w2, w2, atol=1e-12)
    np.testing.assert_array_equal(run.steps, [0, 10, 20])
    d = w2.T @ w2 - w1 @ w1.T
    np.testing.assert_allclose(run.fitted_lambda[-1], np.trace(d) / 5, rtol=1e-10)
    np.testing.assert_allclose(run.distance[-1], np.linalg.norm(d - np.trace(d) / 5 * np.eye(5)), rtol=1e-10)
    phi = np.maximum(w1 @ TASK.x, 0) if activation == "relu" else np.tanh(w1 @ TASK.x)
    np.testing.assert_allclose(run.loss[-1], np.sum((w2 @ phi - TASK.y) ** 2) / 20, rtol=1e-10)
    assert bool(run.is_ok)


def test_what_each_activation_conserves():
    """Drift over the same stretch of flow with two step sizes: it vanishes with the step iff conserved."""
    network = linear.lambda_balanced(5, 5, 5, lam=2.0, key=jr.key(0))

    def drifts(activation, learning_rate, steps):
        run = linear.nonlinear_descent(
            network, TASK, activation=activation, learning_rate=learning_rate, steps=steps, every=steps
        )
        d = linear.balance(run.network) - linear.balance(network)
        return float(jnp.abs(jnp.diagonal(d)).max()), float(jnp.abs(d).max()), run

    for activation, conserves_diagonal, conserves_all in (
        ("linear", True, True),
        ("relu", True, False),
        ("tanh", False, False),
    ):
        coarse, fine = drifts(activation, 4e-2, 100), drifts(activation, 1e-2, 400)
        for kind, conserved in ((0, conserves_diagonal), (1, conserves_all)):
            if conserved:
                # Drift is first order in the step: a quarter of the step, a quarter of the drift.
                assert 3 < coarse[kind] / fine[kind] < 5, (activation, kind)
            else:
                assert fine[kind] > 0.05, (activation, kind)
                assert 0.8 < coarse[kind] / fine[kind] < 1.2, (activation, kind)
        if activation == "tanh":
            assert fine[2].fitted_lambda[-1] < 2.0


def test_divergence_is_reported():
    network = linear.lambda_balanced(5, 5, 5, lam=50.0, key=jr.key(0))
    run = linear.nonlinear_descent(network, TASK, activation="relu", learning_rate=5.0, steps=100, every=20)
    assert int(run.status) != 0 and linear.STATUS[int(run.status)] == "the weights diverged"
    assert not bool(run.is_ok)
    assert bool(jnp.isfinite(run.loss[0])) and bool(jnp.all(jnp.isnan(run.loss[1:])))
    assert bool(jnp.all(jnp.isfinite(run.network.w1)))


def test_vmap_over_networks():
    networks = [linear.lambda_balanced(5, 5, 5, lam=1.0, key=jr.key(seed)) for seed in (0, 3)]

    def run(network):
        return linear.nonlinear_descent(
            network, TASK, activation="tanh", learning_rate=0.05, steps=20, every=10
        )

    batched = jax.vmap(run)(jax.tree.map(lambda *w: jnp.stack(w), *networks))
    np.testing.assert_allclose(batched.loss[1], run(networks[1]).loss, rtol=1e-12)


def test_bad_arguments():
    network = linear.lambda_balanced(5, 5, 5, key=jr.key(0))
    with pytest.raises(ValueError, match="multiple of `every`"):
        linear.nonlinear_descent(network, TASK, steps=15, every=10)
    with pytest.raises(ValueError, match="needs the samples themselves"):
        linear.nonlinear_descent(network, linear.Task.from_correlation(jnp.eye(5)), steps=10, every=10)
    with pytest.raises(ValueError, match="`learning_rate` must be positive"):
        linear.nonlinear_descent(network, TASK, learning_rate=0.0)
