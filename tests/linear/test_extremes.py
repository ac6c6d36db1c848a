"""Numbers at the edge of their precision: tiny weights, tiny λ, large λ, directions that nobody explores."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from nullcline import linear


def single(tree):
    return jax.tree.map(lambda x: x.astype(jnp.float32), tree)


def test_a_small_balance_is_not_taken_for_zero():
    """64 units in float32, λ = 0.005: far above the rounding of one weight, below that of all together."""
    network = single(linear.lambda_balanced(64, 64, 64, 5e-3, key=jr.key(3)))
    task = linear.Task.from_correlation(np.asarray(jr.normal(jr.key(4), (64, 64)), np.float32) / 8)
    exact = linear.exact_flow(network, task, np.asarray([0.0, 1.0, 5.0, 50.0, 1e4], np.float32))
    lam = linear.fitted_lambda(linear.Network(jnp.swapaxes(exact.w1t, 1, 2)[-1], exact.w2[-1]))
    assert abs(float(lam) / 5e-3 - 1) < 0.02


def test_the_balance_is_kept_from_task_to_task():
    """Later stages forgive more rounding in the weights, but λ is that of the first."""
    network = single(linear.Network([[0.7]], [[(0.49 + 2e-5) ** 0.5]]))
    tasks = [linear.Task.from_correlation(np.asarray([[s]], np.float32)) for s in (1.5, 0.7)]
    last = linear.exact_sequence(network, tasks, [0.5, 20.0], points=2).stages[-1].network_at(-1)
    assert abs(float(linear.fitted_lambda(last)) / 2e-5 - 1) < 0.2


@pytest.mark.parametrize("weak", [1e-4, 1e-5])
def test_the_limit_is_reached_at_large_balance(weak):
    """Modes part at rates that differ by s²/|λ| only."""
    task = linear.Task.from_correlation(np.diag([1.0, weak, 0.0, 0.0]))
    late = linear.limit(linear.lambda_balanced(4, 2, 4, 1e3, key=jr.key(5)), task)
    state = linear.converged_state(task, lam=1e3, rank=2)
    np.testing.assert_allclose(late.output_gram[0], state.output_gram, atol=1e-9)
    np.testing.assert_allclose(late.function[0], state.function, atol=1e-13)


def test_every_balance_but_zero_converges():
    """λ = 1e-9 is small, and enough to leave the saddle."""
    for seed in range(12):
        task = linear.Task.from_correlation(jr.normal(jr.key(100 + seed), (3, 3)))
        assert linear.can_converge(linear.lambda_balanced(3, 3, 3, 1e-9, key=jr.key(seed)), task)
    one = linear.aligned(
        linear.Task.from_correlation([[2.0]]), 1, 0.0, strengths=jnp.asarray([-1.0]), key=jr.key(0)
    )
    assert not linear.can_converge(one, linear.Task.from_correlation([[2.0]]))


def test_kernel_distance_does_not_depend_on_the_scale_of_the_weights():
    """Norms of kernels are of eighth order in the weights: 1e-48 of those that are 1e-6."""
    task = linear.random_regression(3, 3, 9, key=jr.key(1))
    network = linear.gaussian(3, 3, 3, key=jr.key(0))
    far = linear.gradient_descent(network, task, 0.1, 5)
    expected = linear.ntk_distance(far, task)
    assert float(expected[-1]) > 1e-3
    for scale in (1e-8, 1e8):
        scaled = single(linear.Trajectory(far.times, scale * far.g1, scale * far.g2, None, None, far.status))
        got = linear.ntk_distance(scaled, single(task))
        np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize(("dtype", "scales"), [(jnp.float32, (1e-8, 3e4, 1e8)), (float, (1e-70, 1e70))])
def test_balance_does_not_depend_on_the_scale_of_the_weights(dtype, scales):
    """The residual is of fourth order in the weights: 1e-32 of those that are 1e-8."""
    balanced, not_balanced = (
        jax.tree.map(lambda w: w.astype(dtype), network)
        for network in (
            linear.lambda_balanced(3, 2, 3, 0.7, key=jr.key(2)),
            linear.gaussian(3, 2, 3, key=jr.key(2)),
        )
    )
    task = linear.Task.from_correlation(jr.normal(jr.key(1), (3, 3), dtype))
    times, exact = jnp.asarray([0.0, 1.0], dtype), None
    for scale in (1.0, *scales):
        one, other = (
            jax.tree.map(lambda w, scale=scale: w * jnp.asarray(scale, dtype), network)
            for network in (balanced, not_balanced)
        )
        lam, residual = linear.balance_residual(one)
        # A flow of scaled weights is that of a scaled task at its own times: QQᵀ/a² of Σ/a² at a² t.
        scaled = linear.Task.from_correlation(task.correlation * jnp.asarray(scale, dtype) ** 2)
        flow = linear.exact_flow(one, scaled, times / jnp.asarray(scale, dtype) ** 2)
        got = jnp.asarray([lam, *flow.function.ravel()]) / jnp.asarray(scale, dtype) ** 2
        exact = got if exact is None else exact
        digits = 1e-4 if dtype == jnp.float32 else 1e-12
        np.testing.assert_allclose(got, exact, rtol=digits, atol=digits)
        assert residual < digits < 0.01 < linear.balance_residual(other)[1]
        with pytest.raises(ValueError, match="not λ-balanced"):
            linear.exact_flow(other, scaled, times / jnp.asarray(scale, dtype) ** 2)


def test_tiny_strengths():
    for dtype, scale in ((np.float32, 1e-10), (np.float64, 1e-80)):
        scale = jnp.asarray(scale, dtype)
        network = linear.aligned(
            linear.Task.from_correlation(np.eye(3, dtype=dtype)), 3, scale=scale, key=jr.key(0)
        )
        assert float(np.max(np.abs(network.w1))) > 0.1 * scale
    s, a0, lam, times = (
        jnp.asarray(x, jnp.float32) for x in ([1, 1], [1e-20, -1], [0, 1e-20], [0, 30, 60, 1e6])
    )
    modes = linear.mode_flow(s, a0, times, lam=lam)
    # Both leave their plateaus at t ≈ 23: e^{46} = 1e20.
    np.testing.assert_allclose(modes.strength[1:, 0], 1.0, atol=1e-5)
    np.testing.assert_allclose(modes.strength[2:, 1], 1.0, atol=1e-5)


@pytest.mark.parametrize("point", [(0.0, 0.3, 0.0, 0.7), (1.0, -0.3, 0.0, 0.4), (1.0, -0.3, 0.0, 0.9)])
def test_derivatives_of_a_mode_where_formulas_part(point):
    """No task and no balance; on the saddle: early and late."""

    @jax.jit
    def layers(s, a0, lam, t):
        modes = linear.mode_flow(s[None], a0[None], t[None], lam=lam)
        return jnp.stack([modes.first[0, 0], modes.second[0, 0]])

    point = tuple(map(jnp.asarray, point))
    slopes = jax.jit(jax.jacfwd(layers, argnums=(0, 1, 2, 3)))(*point)
    backward = jax.jit(jax.jacrev(layers, argnums=(0, 1, 2, 3)))(*point)
    step = 1e-5
    for i, slope in enumerate(slopes):
        moved = [layers(*(x + m * step * (i == j) for j, x in enumerate(point))) for m in (0, 1, 2)]
        if i == 0 and point[0] == 0:  # singular values end at zero
            expected = (-3 * moved[0] + 4 * moved[1] - moved[2]) / (2 * step)
        else:
            before = layers(*(x - step * (i == j) for j, x in enumerate(point)))
            expected = (moved[1] - before) / (2 * step)
        # Second order, 1e-10, and the layers have |λ| in their rounding: √ at λ = 0.
        np.testing.assert_allclose(slope, expected, atol=1e-7)
        np.testing.assert_allclose(backward[i], slope, atol=1e-12)


def test_what_no_input_explores_stays_where_it_is():
    x = jr.normal(jr.key(0), (4, 3))
    task = linear.Task(x, jr.normal(jr.key(1), (2, 3)))
    weights = jr.normal(jr.key(2), (2, 4))
    late = linear.shallow_flow(weights, task, jnp.asarray([1e12]))[0]
    outside = np.eye(4) - np.asarray(x) @ np.linalg.pinv(np.asarray(x))
    np.testing.assert_allclose(late @ outside, weights @ outside, atol=1e-13)


def test_descent_that_explodes_has_diverged_before_it_overflows():
    task = linear.random_regression(3, 3, 9, key=jr.key(0))
    network = linear.gaussian(3, 3, 3, key=jr.key(1))
    for steps in (3, 4, 5):  # 1e109, then squares that overflow, then weights
        run = linear.nonlinear_descent(
            network, task, activation="linear", learning_rate=1e3, steps=steps, every=1
        )
        assert not run.is_ok
        values = np.stack([run.loss, run.fitted_lambda, run.distance])
        assert np.isfinite(values).any() and not np.isinf(values).any()


def test_results_of_a_batch_are_those_of_each():
    """As many networks as times: axes of one size must not pass for one another."""
    task = linear.random_regression(3, 3, 9, key=jr.key(0))
    paths = [linear.gradient_descent(linear.gaussian(3, 3, 3, key=jr.key(i)), task, 0.1, 1) for i in range(2)]
    tuned = [linear.LoraFlow(jr.normal(jr.key(i), (3, 3)), path, task) for i, path in enumerate(paths)]
    starts = [linear.aligned(task, 3, 1.0, key=jr.key(i)) for i in range(2)]
    modes = [linear.aligned_flow(start, task, paths[0].times) for start in starts]
    for each in (tuned, modes):
        batch = jax.tree.map(lambda *x: jnp.stack(x), *each)
        np.testing.assert_allclose(batch.function, [one.function for one in each], atol=1e-14)
    stages = jax.tree.map(lambda *x: jnp.stack(x), *paths)
    with pytest.raises(ValueError, match="batch of networks"):
        _ = linear.Sequence((stages,), (task,), (1.0,), 1.0).losses
