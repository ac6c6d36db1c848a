"""Lyapunov exponents, dimensions and the Volterra form against systems with known answers."""

import warnings

import cells
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from nullcline import operators


def linear_flow(w, batch=2, time=12, x=None):
    x = jnp.zeros((batch, time, len(w))) if x is None else x
    return operators.linearize(lambda p, z, x: p @ z + x, x, jnp.ones(len(w)), params=w)


def henon(p, z, x):
    return jnp.stack([1 - p[0] * z[0] ** 2 + z[1] + 0 * x[0], p[1] * z[0]])


def test_exponents_of_the_henon_map():
    # Largest exponent 0.419 (standard literature value), sum exactly log 0.3, dimension 1.258. The mean over
    # 4 x 1500 steps scatters by about 0.005.
    starts = jnp.array([[0.1, 0.1], [0.2, 0.0], [-0.3, 0.2], [0.0, 0.1]])
    flow = operators.linearize(henon, jnp.zeros((4, 1600, 1)), starts, params=jnp.array([1.4, 0.3]))
    found = np.asarray(operators.lyapunov(flow, warmup=100))
    np.testing.assert_allclose(found.sum(axis=1), np.log(0.3), rtol=1e-12)
    np.testing.assert_allclose(found[:, 0].mean(), 0.419, atol=0.015)
    np.testing.assert_allclose(np.mean(operators.kaplan_yorke(jnp.asarray(found))), 1.258, atol=0.015)
    per_time = operators.lyapunov(flow, 1, warmup=100, dt=0.5)
    np.testing.assert_allclose(per_time[:, 0], 2 * found[:, 0], rtol=1e-9)


def test_constant_linear_map_has_its_log_eigenvalues(key):
    # A normal matrix, so that singular values are eigenvalues at any time; the frame needs a while to turn.
    turn = jnp.linalg.qr(cells.normal(key, (3, 3)))[0]
    w = turn @ jnp.diag(jnp.array([1.3, 0.8, -0.5])) @ turn.T
    expected = np.log([1.3, 0.8, 0.5])
    np.testing.assert_allclose(operators.lyapunov(linear_flow(w, time=80), warmup=60)[0], expected, atol=1e-8)
    flow = linear_flow(w)
    for found in (
        operators.finite_time_exponents(flow).exponents[0],
        operators.consensus_exponents(flow).exponents,
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_sum_rule_of_the_rate_network(key):
    # dt = 1: J = W diag(phi'), so the exponents add up to log |det W| plus the mean of sum log phi'.
    cell = cells.rate(key, dt=1.0)
    flow = operators.linearize(cell, cells.inputs_for(jr.key(2)))
    slopes = np.log(1 - np.tanh(np.asarray(flow.states_before)) ** 2).sum(axis=2).mean(axis=1)
    expected = np.linalg.slogdet(np.asarray(cell.w))[1] + slopes
    found = np.asarray(operators.lyapunov(flow))
    np.testing.assert_allclose(found.sum(axis=1), expected, rtol=1e-12)
    np.testing.assert_allclose(operators.lyapunov(flow, 2), found[:, :2], rtol=1e-12)


def test_dead_start_of_relu_is_minus_infinity_and_warmup_leaves_it_out():
    step = lambda p, z, x: jnp.maximum(p @ z + x, 0)  # noqa: E731
    x = jnp.concatenate([-5 * jnp.ones((1, 1, 2)), jnp.ones((1, 6, 2))], axis=1)
    w = jnp.array([[0.5, 0.2], [0.1, 0.4]])
    flow = operators.linearize(step, x, jnp.zeros(2), params=w)
    assert np.all(np.isneginf(operators.lyapunov(flow)))
    np.testing.assert_allclose(
        np.sum(operators.lyapunov(flow, warmup=1)), np.linalg.slogdet(np.asarray(w))[1], rtol=1e-12
    )
    with pytest.warns(UserWarning, match=r"= inf, beyond the range of 30 that float64 resolves"):
        found = operators.finite_time_exponents(flow)
    assert not found.is_reliable[0] and np.all(np.isneginf(found.exponents))


def test_a_constant_map_forgets_everything():
    flow = operators.linearize(
        lambda p, z, x: p + 0 * z, jnp.zeros((2, 3, 1)), jnp.ones(2), params=jnp.ones(2)
    )
    assert np.all(np.isneginf(operators.lyapunov(flow)))
    assert np.all(np.asarray(operators.kaplan_yorke(operators.lyapunov(flow))) == 0)
    np.testing.assert_array_equal(flow.propagator.dense(), np.eye(12))
    with pytest.raises(ValueError, match=r"singular, cond\(U\) = inf"):
        operators.volterra_form(flow)


@pytest.mark.slow
def test_identical_trials_have_the_consensus_of_one():
    x = jnp.repeat(cells.inputs_for(jr.key(4), 1, 4), 3, axis=0)
    for name in ("torch_rnn", "gru"):
        flow = operators.linearize(cells.make(name), x, weights=cells.WEIGHTS)
        one = operators.finite_time_exponents(flow).exponents
        np.testing.assert_allclose(one[0], one[2], rtol=1e-12)
        np.testing.assert_allclose(operators.consensus_exponents(flow).exponents, one[0], rtol=1e-9)


def test_consensus_is_a_second_moment_of_the_trials():
    flow = operators.linearize(cells.make("gru"), cells.inputs_for(jr.key(4)))
    top = operators.finite_time_exponents(flow).exponents[:, 0].max()
    found = np.asarray(operators.consensus_exponents(flow).exponents)
    assert top - np.log(cells.BATCH) / (2 * cells.TIME) <= found[0] <= top
    phi = np.asarray(operators.transition_matrices(flow))[:, -1]
    second = np.einsum("b,bij,bkj->ik", flow.weights, phi, phi)
    expected = np.log(np.linalg.eigvalsh(second)[::-1]) / (2 * cells.TIME)
    np.testing.assert_allclose(found, expected, rtol=1e-7)


def test_finite_time_exponents_of_the_lstm_are_those_of_the_product():
    # Three steps: the spread stays far inside the range, and every exponent is resolved.
    flow = operators.linearize(cells.make("lstm"), cells.inputs_for(jr.key(4), 2, 3))
    found = operators.finite_time_exponents(flow)
    phi = np.asarray(operators.transition_matrices(flow))[:, -1]
    expected = np.log(np.linalg.svd(phi, compute_uv=False)) / 3
    np.testing.assert_allclose(found.exponents, expected, atol=1e-10)
    assert np.all(found.is_reliable)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        long = operators.finite_time_exponents(
            operators.linearize(cells.make("lstm"), cells.inputs_for(jr.key(4), 2, 60))
        )
    assert not np.any(long.is_reliable) and np.all(np.asarray(long.rounding)[:, -1] > 1e-4)


def test_transition_matrices_are_powers(key):
    w = 0.5 * cells.normal(key, (3, 3))
    flow = linear_flow(w, time=5)
    found = np.asarray(operators.transition_matrices(flow, 1))
    assert found.shape == (2, 3, 3, 3)
    for n in range(3):
        np.testing.assert_allclose(found[1, n], np.linalg.matrix_power(np.asarray(w), n + 1), rtol=1e-13)
    np.testing.assert_allclose(
        operators.transition_matrices(flow)[0, 4], np.linalg.matrix_power(w, 5), rtol=1e-12
    )


@pytest.mark.parametrize(
    ("exponents", "dimension"),
    [
        ([-0.1, -0.5], 0.0),
        ([0.0, -1.0], 1.0),
        ([0.5, -1.0], 1.5),
        ([-1.0, 0.5], 1.5),  # order does not matter
        ([0.5, 0.0, -0.25, -1.0], 3.25),
        ([0.5, 0.2], 2.0),  # nothing contracts: all of them
        ([0.5, -0.5], 2.0),  # partial sum exactly zero is not negative
        ([0.0, 0.0, 0.0], 3.0),
        ([1.0, -np.inf], 1.0),
        ([-np.inf, -np.inf], 0.0),
        ([0.3], 1.0),
        ([-0.3], 0.0),
    ],
)
def test_kaplan_yorke(exponents, dimension):
    np.testing.assert_allclose(operators.kaplan_yorke(jnp.array(exponents)), dimension, rtol=1e-14)


def test_kaplan_yorke_of_a_batch_and_of_nonsense():
    exponents = jnp.array([[0.5, -1.0], [-0.1, -0.5]])
    both = operators.kaplan_yorke(exponents)
    # Known values inside a compiled program.
    np.testing.assert_array_equal(jax.jit(lambda: operators.kaplan_yorke(exponents))(), both)
    np.testing.assert_allclose(both, [1.5, 0.0])
    with pytest.raises(ValueError, match=r"NaN or \+inf"):
        operators.kaplan_yorke(jnp.array([0.1, jnp.nan]))


def test_volterra_form_is_p_where_it_exists(key):
    w = jnp.eye(3) + 0.2 * cells.normal(key, (3, 3))
    flow = linear_flow(w, time=6)
    q = cells.normal(jr.fold_in(key, 1), flow.states.shape)
    form = operators.volterra_form(flow)
    assert np.all(np.asarray(form.condition) < 1e4)
    np.testing.assert_allclose(form.propagate(q), flow.propagator @ q, rtol=0, atol=1e-10)
    powers = [np.linalg.matrix_power(np.asarray(w), n + 1) for n in range(6)]
    values = np.concatenate([np.linalg.svd(p, compute_uv=False) for p in powers])
    np.testing.assert_allclose(form.condition[0], values.max() / values.min(), rtol=1e-9)


@pytest.mark.parametrize(("time", "rank"), [(10, 4), (30, 4), (90, 5)])
def test_singular_values_of_the_running_sum(time, rank):
    values = operators.volterra_singular_values(time)
    exact = np.linalg.svd(np.tril(np.ones((time, time))), compute_uv=False)
    np.testing.assert_allclose(values, exact, rtol=1e-11)
    assert operators.effective_rank(values, power=2).rank == rank
