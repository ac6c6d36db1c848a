"""Rounding of many eliminations, charts of many rows, and errors that few of many networks have."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from mp_reference import block_errors

from nullcline import linear
from nullcline.linear import _exact
from nullcline.linear._charts import choose_pivots

N = 128


def make(lam, seed=0, size=N):
    task_key, key = jr.split(jr.key(seed))
    sigma = np.asarray(jr.normal(task_key, (size, size))) / size**0.5
    return linear.lambda_balanced(size, size, size, lam, 0.3, key=key), sigma


@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_late_states_are_converged_and_saddles_stay(lam):
    network, sigma = make(lam)
    for sign in (1.0, -1.0):
        target = np.concatenate([sign * sigma[:1], sigma[1:]])
        u, s, vt = np.linalg.svd(target)
        # Zero-balanced square networks keep the sign of their determinant: the wrong one costs the last mode.
        if lam == 0 and np.linalg.slogdet(target)[0] != np.linalg.slogdet(np.asarray(network.function))[0]:
            s[-1] = 0
        exact = linear.exact_flow(network, linear.Task.from_correlation(target), np.asarray([1e6, 1e12]))
        # Measured 2e-15; an entry is of order 0.1.
        np.testing.assert_allclose(np.asarray(exact.function[-1]), (u * s) @ vt, rtol=0, atol=1e-13)
        assert np.isfinite(np.asarray(exact.qqt)).all()


@pytest.mark.parametrize(
    ("shape", "lam"),
    [
        ((64, 64, 64), 0.0),
        pytest.param((50, 45, 60), 3.0, marks=pytest.mark.slow),
        pytest.param((60, 45, 50), -1e3, marks=pytest.mark.slow),
    ],
)
def test_what_is_learned_is_not_solved_for_again(shape, lam):
    """Columns that are done: as good as solving for all of them, which a traced call does."""
    task_key, key = jr.split(jr.key(5))
    network = linear.lambda_balanced(*shape, lam, 0.3, key=key)
    sigma = np.asarray(jr.normal(task_key, (shape[2], shape[0]))) / shape[0] ** 0.5
    task, times = linear.Task.from_correlation(sigma), np.geomspace(1.0, 1e9, 28)
    exact = linear.exact_flow(network, task, times)
    traced = jax.jit(lambda network: linear.exact_flow(network, task, times))(network)
    for state, reference in zip(np.asarray(exact.qqt), np.asarray(traced.qqt), strict=True):
        # Rounding of two programs; the weaker layer of λ = −1000 is a millionth of the other.
        assert max(block_errors(state, reference, shape[0])) < 1e-13
    # Solving for a column that is done leaves traces of the others, far below rounding.
    left, solved = (np.count_nonzero(np.asarray(flow.g1), axis=(1, 2)) for flow in (exact, traced))
    assert (left <= solved).all() and (left < solved).any()


def test_learning_agrees_with_the_solver():
    """From the start on: early states must not suffer from a chart made for later ones."""
    network, sigma = make(0.0, size=96)
    task, times = linear.Task.from_correlation(sigma), np.asarray([0.0, 0.02, 0.2, 1.0, 5.0, 30.0, 150.0])
    flow = linear.integrate_flow(network, task, times, rtol=1e-12, atol=1e-14)
    traced = jax.jit(lambda network, times: linear.exact_flow(network, task, times).qqt)(network, times)
    q = np.concatenate([network.w1.T, network.w2])
    for states in (np.asarray(linear.exact_flow(network, task, times).qqt), np.asarray(traced)):
        assert max(block_errors(states[0], q @ q.T, 96)) < 2e-14
        for state, reference in zip(states, np.asarray(flow.qqt), strict=True):
            # The solver's own error: 1e-12 a step, some hundred steps.
            assert max(block_errors(state, reference, 96)) < 1e-11


def test_no_pivot_is_rounding_noise():
    """Rows of a low rank, in many units: as many pivots as the rank, whatever the rest would grow to."""
    n, hidden, rank, draws = 300, 200, 150, 50

    def count(key):
        keys = jr.split(key, 3)
        rows = jr.normal(keys[0], (n, rank)) @ jr.normal(keys[1], (rank, hidden))
        scale = 100 * (1 + jr.uniform(keys[2], (n,)))
        return jnp.sum(choose_pivots(rows, scale, jnp.asarray(2.0**-52), jnp.zeros(n))[0] < n)

    counts = jax.jit(lambda keys: jax.lax.map(count, keys))(jr.split(jr.key(0), draws))
    np.testing.assert_array_equal(np.asarray(counts), rank)


@pytest.mark.parametrize(
    ("shape", "active", "lam", "scale", "draws", "times", "bound"),
    [
        pytest.param((30, 60, 60), 40, 100.0, 1.0, 100, (1.0, 30.0, 1e3), 1e-12, marks=pytest.mark.slow),
        # Noise must not outgrow a mode of weak overlap: rounding over the weakest of a thousand overlaps.
        ((22, 3, 12), 2, -1e-3, 0.3, 500, (38.5, 217.0), 1e-9),
    ],
    ids=["many", "weak"],
)
def test_units_at_rest_stay_at_rest(shape, active, lam, scale, draws, times, bound):
    """Balance on a projector: the states of the active units alone, at any growth, in all of many draws."""
    n_in, hidden, n_out = shape

    def states(key):
        key, frame_key, task_key = jr.split(key, 3)
        core = linear.lambda_balanced(n_in, active, n_out, lam, scale, key=key)
        frame = jnp.linalg.qr(jr.normal(frame_key, (hidden, active)))[0]
        wide = linear.Network(frame @ core.w1, core.w2 @ frame.T)
        task = linear.Task.from_correlation(jr.normal(task_key, (n_out, n_in)) / n_in**0.5)
        return [linear.exact_flow(network, task, np.asarray(times)).qqt for network in (core, wide)]

    core, wide = map(np.asarray, jax.jit(jax.vmap(states))(jr.split(jr.key(0), draws)))
    n = n_in + n_out
    for reference, state in zip(core.reshape(-1, n, n), wide.reshape(-1, n, n), strict=True):
        assert max(block_errors(state, reference, n_in)) < bound


def test_float32_keeps_its_precision_at_64_units():
    network, sigma = make(0.0, size=64)
    small = jax.tree.map(lambda w: w.astype(jnp.float32), network)
    task, times = (
        linear.Task.from_correlation(sigma.astype(np.float32)),
        np.asarray([0.0, 1.0, 5.0, 50.0, 1e4]),
    )
    states = np.asarray(linear.exact_flow(small, task, times.astype(np.float32)).qqt)
    assert states.dtype == np.float32
    cast = jax.tree.map(lambda w: w.astype(jnp.float64), small)
    wide = linear.Task.from_correlation(sigma.astype(np.float32).astype(float))
    for state, reference in zip(
        states, np.asarray(linear.exact_flow(cast, wide, times, tolerance=1e-7).qqt), strict=True
    ):
        assert max(block_errors(state, reference, 64)) < 1e-5


def test_a_factorization_that_fails_shows_in_the_status(monkeypatch):
    # No input is known that makes one fail; of this size no other test has compiled the solver.
    factors = _exact.factors
    monkeypatch.setattr(_exact, "factors", lambda *a: tuple(jnp.nan * g for g in factors(*a)))
    network = linear.lambda_balanced(7, 1, 2, 0.0, key=jr.key(0))
    exact = linear.exact_flow(network, linear.Task.from_correlation(np.ones((2, 7))), [0.0, 1.0])
    assert linear.STATUS[int(exact.status)] == "the solver failed" and not bool(exact.is_ok)
