"""Loss, kernel and similarity matrices against their definitions; descent against the flow."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from nullcline import linear

TIMES = jnp.asarray([0.0, 0.3, 1.0, 2.5])


@pytest.fixture(scope="module")
def case():
    task = linear.random_regression(3, 2, 7, key=jr.key(0))
    network = linear.lambda_balanced(3, 2, 2, -1.0, 0.8, key=jr.key(1))
    return network, task, linear.exact_flow(network, task, TIMES)


def jacobian_kernel(network, x):
    """J Jᵀ of all predictions with respect to all weights, rows (output, sample)."""

    def predict(w1, w2):
        return (w2 @ w1 @ x).ravel()

    parts = jax.jacobian(predict, argnums=(0, 1))(network.w1, network.w2)
    flat = jnp.concatenate([part.reshape(part.shape[0], -1) for part in parts], axis=1)
    return flat @ flat.T


def test_loss_is_the_squared_error_of_the_samples(case):
    network, task, exact = case
    x, y = task.data
    expected = jnp.sum((exact.function @ x[None] - y[None]) ** 2, axis=(1, 2)) / (2 * 7)
    np.testing.assert_allclose(linear.loss(exact, task), expected, rtol=1e-12)
    excess = 0.5 * jnp.sum((exact.function - task.sigma_yx[None]) ** 2, axis=(1, 2))
    np.testing.assert_allclose(linear.loss(exact, task, excess=True), excess, rtol=1e-12)
    np.testing.assert_allclose(linear.loss(network, task), expected[0], rtol=1e-12)
    # Not white: the same definition, by another route.
    skew = linear.Task(jnp.asarray([1.0, 2.0, 3.0])[:, None] * x, y)
    expected = jnp.sum((exact.function @ skew.data[0][None] - y[None]) ** 2, axis=(1, 2)) / (2 * 7)
    assert skew.is_isotropic is False
    np.testing.assert_allclose(linear.loss(exact, skew), expected, rtol=1e-12)


def test_kernel_is_the_gram_matrix_of_the_jacobian(case):
    network, task, exact = case
    later = exact.network_at(2)
    for state in (network, later):
        np.testing.assert_allclose(
            linear.ntk(state, task), jacobian_kernel(state, task.data[0]), rtol=1e-12, atol=1e-12
        )
    np.testing.assert_allclose(linear.ntk(exact, task)[2], linear.ntk(later, task), rtol=1e-12, atol=1e-12)


def test_kernel_distance_without_the_kernel(case):
    network, task, exact = case
    skew = linear.Task(jnp.asarray([1.0, 2.0, 3.0])[:, None] * task.data[0], task.data[1])
    for each in (task, skew):
        k = linear.ntk(exact, each)
        norm = jnp.sqrt(jnp.sum(k**2, axis=(1, 2)))
        expected = 1 - jnp.sum(k[:1] * k, axis=(1, 2)) / (norm[0] * norm)
        np.testing.assert_allclose(linear.ntk_distance(exact, each), expected, atol=1e-14)
        inner = linear.ntk_inner(network, exact.network_at(3), each)
        np.testing.assert_allclose(inner, jnp.sum(k[0] * k[3]), rtol=1e-12)
    assert float(linear.ntk_distance(exact, task)[-1]) > 1e-3
    # White inputs: independent of the samples.
    other = linear.Task(jnp.sqrt(3.0) * jr.orthogonal(jr.key(7), 3), jnp.zeros((2, 3)))
    assert other.is_isotropic
    np.testing.assert_allclose(
        linear.ntk_distance(exact, other), linear.ntk_distance(exact, task), atol=1e-14
    )


def test_what_is_observed_on_the_way_is_what_the_trajectory_shows(case):
    network, task, exact = case

    def seen(network):
        def look(now, task):
            return linear.loss(now, task), linear.ntk_distance(now, task, start=network), now.function

        return linear.observe_flow(network, task, exact.times, look)

    kept = linear.loss(exact, task), linear.ntk_distance(exact, task), exact.function
    # Alone, and among others: one that is not balanced is NaN, where nothing can be inspected.
    skew = linear.Network(2 * network.w1, network.w2)
    many = jax.jit(jax.vmap(seen))(jax.tree.map(lambda *x: jnp.stack(x), network, skew))
    for found in (seen(network), [np.asarray(x)[0] for x in many]):
        for one, other in zip(found, kept, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)
    assert np.isnan(np.asarray(many[0])[1]).all()
    with pytest.raises(ValueError, match="not λ-balanced"):
        linear.observe_flow(skew, task, exact.times, linear.loss)
    with pytest.raises(ValueError, match="start=network"):
        linear.observe_flow(network, task, exact.times, linear.ntk_distance)


def test_observables_of_a_batch_are_those_of_each(case):
    _, task, exact = case
    weaker = eqx.tree_at(lambda flow: (flow.g1, flow.g2), exact, (exact.g1[::-1], 0.5 * exact.g2))
    batch = jax.tree.map(lambda *x: jnp.stack(x), exact, weaker)
    by_place, by_name = jax.jit(
        lambda flow: (linear.ntk_distance(flow, task), linear.ntk_distance(task=task, trajectory=flow))
    )(batch)
    np.testing.assert_array_equal(by_place, by_name)
    for many, alone in zip(by_place, (exact, weaker), strict=True):
        np.testing.assert_allclose(many, linear.ntk_distance(trajectory=alone, task=task), atol=1e-13)
    kernels = linear.ntk(batch, task)
    np.testing.assert_allclose(kernels[1], linear.ntk(weaker, task), atol=1e-13)
    # The bound is on all that is formed, not on one of the batch.
    with pytest.raises(ValueError, match="at 8 times and networks"):
        linear.ntk(batch, task, max_bytes=kernels[0].nbytes)
    assert "2 × 3-2-2, 4 times from 0 to 2.5, float64, status: ok" in repr(batch)


def test_balance_of_a_batch_is_that_of_each():
    """Three networks of three units: axes of one size must not pass for one another."""
    networks = jax.vmap(lambda key: linear.gaussian(3, 3, 3, key=key))(jr.split(jr.key(0), 3))
    for measure in (
        linear.balance,
        linear.fitted_lambda,
        linear.balance_distance,
        linear.balance_residual,
    ):
        one = jax.jit(measure)
        each = [one(jax.tree.map(lambda w, i=i: w[i], networks)) for i in range(3)]
        for many, alone in zip(
            jax.tree.leaves(jax.jit(lambda n, measure=measure: measure(n))(networks)),
            jax.tree.leaves(jax.tree.map(lambda *x: jnp.stack(x), *each)),
            strict=True,
        ):
            np.testing.assert_allclose(many, alone, rtol=1e-12, atol=1e-14)


def test_similarity_matrices(case):
    _, task, exact = case
    x, y = task.data
    similarity = linear.rsm(exact, task)
    np.testing.assert_allclose(similarity.inputs[2], x.T @ exact.input_gram[2] @ x, rtol=1e-11, atol=1e-12)
    inverse = jnp.linalg.pinv(exact.output_gram[2], rtol=1e-10)
    np.testing.assert_allclose(similarity.outputs[2], y.T @ inverse @ y, rtol=1e-9, atol=1e-11)


def test_task_specific_score():
    """The document's value: cos(I, S) = 0.9571 for identity representations of the semantic task."""
    task = linear.semantic_hierarchy()
    lazy = linear.Network(jnp.eye(8), task.target)
    score = linear.task_specific_score(lazy, task)
    assert abs(float(score.inputs) - 0.9571) < 5e-5
    u, s, vt = jnp.linalg.svd(task.target)
    rich = linear.Network(jnp.sqrt(s)[:, None] * vt, u * jnp.sqrt(s)[None])
    for value in linear.task_specific_score(rich, task):
        assert abs(float(value) - 1) < 1e-13
    np.testing.assert_allclose(s, np.sqrt([8, 8, 4, 4, 2, 2, 2, 2]), rtol=1e-14)


def test_task_specific_score_of_inputs_that_span_a_plane():
    """The same weights have one score, whoever holds them: what no input sees does not count."""
    x = np.concatenate([np.asarray(linear.whiten(jr.normal(jr.key(0), (2, 10)))), np.zeros((1, 10))])
    task = linear.Task(x, jr.normal(jr.key(1), (2, 10)))
    inside = linear.lambda_balanced(2, 2, 2, lam=0.5, key=jr.key(2))
    network = linear.Network(jnp.concatenate([inside.w1, jnp.ones((2, 1))], axis=1), inside.w2)
    flows = [solve(network, task, [0.0, 1.0]) for solve in (linear.exact_flow, linear.integrate_flow)]
    scores = [linear.task_specific_score(flow, task).inputs for flow in flows]
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-8)
    of_seen = linear.task_specific_score(inside, linear.Task(x[:2], task.y)).inputs
    for score in (scores[0][0], linear.task_specific_score(network, task).inputs):
        np.testing.assert_allclose(score, of_seen, rtol=1e-12)


def test_descent_follows_the_flow_and_reports_divergence(case):
    network, task, exact = case
    gaps = []
    for steps in (1000, 2000):
        descent = linear.gradient_descent(network, task, 2.5 / steps, steps, every=steps // 100)
        assert int(descent.status) == 0
        gaps.append(float(jnp.max(jnp.abs(descent.function[-1] - exact.function[-1]))))
    # First order: half the step, half the error.
    assert 1.8 < gaps[0] / gaps[1] < 2.2
    np.testing.assert_allclose(descent.times[-1], 2.5, rtol=1e-14)
    # One step changes D by η²(W1EᵀEW1ᵀ − W2ᵀEEᵀW2) exactly.
    step = linear.gradient_descent(network, task, 0.01, 1).network_at(1)
    e = task.sigma_yx - network.function
    drift = 1e-4 * (network.w1 @ e.T @ e @ network.w1.T - network.w2.T @ e @ e.T @ network.w2)
    np.testing.assert_allclose(linear.balance(step) - linear.balance(network), drift, atol=1e-12)
    for steps in (3, 200):
        wild = linear.gradient_descent(network, task, 5.0, steps)
        assert not bool(wild.is_ok) and "diverged" in linear.STATUS[int(wild.status)]


def test_a_solver_out_of_steps_says_so(case):
    network, task, _ = case
    flow = linear.integrate_flow(network, task, TIMES, max_steps=3)
    assert "too many steps" in linear.STATUS[int(flow.status)]
    assert bool(jnp.isnan(flow.function).all())


def test_balanced_weights_of_every_kind():
    """Admissible signs of both layers' dimensions; the document refuses (2, 2, 4) with λ = −2."""
    for sizes, lam, rank in [((2, 2, 4), -2.0, None), ((4, 2, 2), 2.0, None), ((3, 9, 4), 1e3, 2)]:
        network = linear.lambda_balanced(*sizes, lam, rank=rank, key=jr.key(3))
        seen, residual = linear.balance_residual(network)
        np.testing.assert_allclose(seen, lam, rtol=1e-13)
        assert float(residual) < 1e-14
        active = sizes[1] if rank is None else rank
        np.testing.assert_allclose(linear.fitted_lambda(network), lam * active / sizes[1], rtol=1e-13)
    # Tiny strengths beside a large λ: the smaller layer keeps its digits (a difference of squares would not).
    small = linear.lambda_balanced(2, 2, 2, 1e3, strengths=jnp.asarray([1e-9, 2e-9]), key=jr.key(0))
    np.testing.assert_allclose(jnp.linalg.svd(small.function, compute_uv=False), [2e-9, 1e-9], rtol=1e-9)
    assert float(linear.balance_distance(small)) < 1e-11


def test_aligned_weights_learn_mode_by_mode():
    """Erratum to Algorithm 2, which drops the scale: strengths grow with its square here."""
    task = linear.Task.from_correlation(jr.normal(jr.key(2), (3, 4)))
    u, _, vt = jnp.linalg.svd(task.target, full_matrices=False)
    strengths = [
        jnp.diag(u.T @ linear.aligned(task, 2, -0.5, scale, key=jr.key(1)).function @ vt.T)
        for scale in (1.0, 2.0)
    ]
    np.testing.assert_allclose(strengths[1], 4 * strengths[0], rtol=1e-12, atol=1e-13)
    signed = linear.aligned(task, 3, 0.5, strengths=jnp.asarray([-2.0, 1.0, 0.3]), key=jr.key(1))
    np.testing.assert_allclose(
        u.T @ signed.function @ vt.T, jnp.diag(jnp.asarray([-2.0, 1.0, 0.3])), atol=1e-13
    )


def test_whitening():
    x = linear.whiten(jr.normal(jr.key(0), (3, 9)) + 2.0, center=True)
    np.testing.assert_allclose(x @ x.T / 9, np.eye(3), atol=1e-13)
    np.testing.assert_allclose(jnp.mean(x, axis=1), 0, atol=1e-14)
    task = linear.random_regression(3, 2, 9, scale=0.1, key=jr.key(1))
    x, y = task.data
    # c = (tr(YYᵀ)/P − ‖Σ‖²)/2, with the ½ and the 1/P that the document's 4.40 lacks.
    expected = 0.5 * (jnp.sum(y**2) / 9 - jnp.sum(task.sigma_yx**2))
    np.testing.assert_allclose(task.constant, expected, rtol=1e-12)
    assert linear.Task(x, y).is_isotropic


def test_units_beyond_the_inputs_and_outputs_are_not_lost():
    """Eight units of a 3-8-3 network, of which the factors hold six columns: λ* is a mean over all."""
    network = linear.lambda_balanced(3, 8, 3, lam=2.0, rank=2, key=jr.key(1))
    task = linear.random_regression(3, 3, 9, key=jr.key(0))
    exact = linear.exact_flow(network, task, [0.0, 1.0])
    late = exact.network_at(-1)
    assert "3-8-3" in repr(exact) and exact.n_hidden == late.n_hidden == 8
    np.testing.assert_allclose(linear.fitted_lambda(late), 0.5, rtol=1e-12)
    np.testing.assert_allclose(linear.balance_distance(late), linear.balance_distance(network), rtol=1e-12)
    np.testing.assert_allclose(late.function, exact.function[1], atol=1e-14)
    flow = linear.integrate_flow(network, task, [0.0, 1.0])
    assert flow.n_hidden == 8
    np.testing.assert_allclose(linear.fitted_lambda(flow.network_at(-1)), 0.5, rtol=1e-8)
