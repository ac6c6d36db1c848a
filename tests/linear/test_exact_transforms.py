"""The exact flow under jit, vmap and grad, in float32, and in a program that draws its own weights."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from helpers import environment_of_a_user

from nullcline import linear

TIMES = jnp.asarray([0.0, 0.2, 1.0, 4.0])


def objective(network, task, times=TIMES):
    exact = linear.exact_flow(network, task, times)
    weights = jnp.arange(1.0, exact.qqt.size + 1).reshape(exact.qqt.shape)
    return jnp.sum(jnp.sin(weights) * exact.qqt)


class Derivatives:
    """Forward and reverse derivatives of a function of several arrays: two programs for all directions."""

    def __init__(self, function):
        self.forward = jax.jit(lambda point, direction: jax.jvp(function, point, direction))
        self.reverse = jax.jit(jax.grad(lambda point: function(*point)))

    def check(self, point, direction, step=1e-5):
        """Both against central differences of fourth order."""
        forward = self.forward(point, direction)[1]
        pairs = zip(self.reverse(point), direction, strict=True)
        reverse = sum(float(jnp.vdot(slope, along)) for slope, along in pairs)

        def value(m):
            moved = (p + m * step * d for p, d in zip(point, direction, strict=True))
            return self.forward(tuple(moved), direction)[0]

        values = [value(m) for m in (-2, -1, 1, 2)]
        differences = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * step)
        # Rounding eps/step ≈ 1e-11 of the values dominates.
        scale = max(1.0, float(jnp.abs(values[0])))
        assert abs(float(forward) - reverse) < 1e-9 * scale
        assert abs(float(forward - differences)) < 1e-7 * scale


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(3, 3, 3), (4, 2, 2), (2, 2, 4)])
def test_gradients_in_lambda_the_task_and_the_times(sizes):
    """Each alone: one derivative must not hide behind a larger one."""
    key, sigma = jr.key(2), jr.normal(jr.key(1), (sizes[2], sizes[0]))

    def function(lam, sigma, times):
        network = linear.lambda_balanced(*sizes, lam, 0.7, key=key)
        return objective(network, linear.Task.from_correlation(sigma), times)

    derivatives = Derivatives(function)
    nowhere, still = jnp.zeros_like(sigma), jnp.zeros_like(TIMES)
    one, none = jnp.asarray(1.0), jnp.asarray(0.0)
    for lam in (0.4, -1.2):
        derivatives.check((jnp.asarray(lam), sigma, TIMES), (one, nowhere, still))
    point = (jnp.asarray(-0.8), sigma, TIMES)
    derivatives.check(point, (none, jr.normal(jr.key(3), sigma.shape), still))
    times = jnp.asarray([1e-4, 0.2, 1.0, 30.0])
    derivatives.check((*point[:2], times), (none, nowhere, jnp.asarray([1.0, 1.0, -1.0, 0.5])), 1e-6)
    # At t = 0 only the one-sided derivative exists outside; inside it is the flow.
    start, along = jnp.zeros(4), jnp.asarray([0.0, 0.0, 0.0, 1.0])
    slope = derivatives.reverse((*point[:2], start))[2][3]
    near = [derivatives.forward((*point[:2], t * along), (none, nowhere, still))[0] for t in (1e-7, 0.0)]
    assert abs(float(slope - (near[0] - near[1]) / 1e-7)) < 1e-4 * abs(float(slope))


@pytest.mark.parametrize(
    ("sizes", "rank"),
    [
        ((3, 3, 3), 3),
        # Eigenvalues ±λ/2 that are zero there: directions outside the task, and modes that it does not have.
        ((2, 2, 3), 2),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (((3, 2, 2), 2), ((2, 2, 2), 1), ((3, 2, 2), 0))
        ),
    ],
)
def test_gradient_in_lambda_at_zero(sizes, rank):
    n_in, _, n_out = sizes
    u, s, vt = jnp.linalg.svd(jr.normal(jr.key(1), (n_out, n_in)), full_matrices=False)
    task, key = linear.Task.from_correlation((u * s.at[rank:].set(0)[None]) @ vt), jr.key(2)

    def function(value):
        return objective(linear.lambda_balanced(*sizes, value, 0.7, key=key), task)

    both = jax.jit(jax.value_and_grad(function))
    values = [both(jnp.asarray(value))[0] for value in (-2e-3, -1e-3, 1e-3, 2e-3)]
    differences = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / 12e-3
    # Of fourth order: the step leaves 1e-12 of the fifth derivative, rounding 1e-13 of the value.
    np.testing.assert_allclose(both(jnp.asarray(0.0))[1], differences, rtol=1e-8, atol=1e-8)


@pytest.mark.slow
def test_gradient_in_the_data():
    task = linear.random_regression(3, 2, 7, key=jr.key(0))
    network = linear.lambda_balanced(3, 2, 2, 0.5, 0.7, key=jr.key(2))
    derivatives = Derivatives(lambda y: objective(network, linear.Task(task.x, y, is_isotropic=True)))
    derivatives.check((task.y,), (jr.normal(jr.key(3), task.y.shape),))


def test_vmap_is_a_loop_and_takes_thousands():
    task = linear.Task.from_correlation(jr.normal(jr.key(1), (3, 3)))
    keys = jr.split(jr.key(0), 2000)
    lams = jnp.linspace(-3, 3, 2000)

    @jax.jit
    @jax.vmap
    def losses(key, lam):
        network = linear.lambda_balanced(3, 3, 3, lam, key=key)
        exact = linear.exact_flow(network, task, TIMES)
        return linear.loss(exact, task), exact.status

    values, status = losses(keys, lams)
    assert values.shape == (2000, 4) and not status.any()
    for index in (0, 700, 1999):
        network = linear.lambda_balanced(3, 3, 3, lams[index], key=keys[index])
        alone = linear.loss(linear.exact_flow(network, task, TIMES), task)
        np.testing.assert_allclose(values[index], alone, rtol=1e-11, atol=1e-13)


def test_charts_under_trace_keep_the_accuracy():
    """Traced, the number of charts is fixed: dense times over all of training lose at most two digits."""
    task = linear.Task.from_correlation(jr.normal(jr.key(1), (3, 3)))
    network = linear.lambda_balanced(3, 3, 3, 0.01, 0.05, key=jr.key(3))
    times = jnp.concatenate([jnp.zeros(1), jnp.logspace(-3, 5, 63)])
    traced = jax.jit(lambda n: linear.exact_flow(n, task, times).qqt)(network)
    eager = linear.exact_flow(network, task, times).qqt
    assert float(jnp.max(jnp.abs(traced - eager))) < 1e-12 * float(jnp.max(jnp.abs(eager)))


def test_under_jit_bad_values_show_in_the_result():
    task = linear.random_regression(3, 3, 6, key=jr.key(0))
    traced = jax.jit(lambda n, x, times, tau: linear.exact_flow(n, linear.Task(x, task.y), times, tau))

    def solve(network, x, times=TIMES, tau=1.0):
        return traced(network, x, times, tau)

    exact = solve(linear.gaussian(3, 3, 3, key=jr.key(1)), task.x)
    assert "not balanced" in linear.STATUS[int(exact.status)] and not exact.is_ok
    assert bool(jnp.isnan(exact.qqt).all())
    balanced = linear.lambda_balanced(3, 3, 3, 1.0, key=jr.key(1))
    assert solve(balanced, task.x).is_ok
    stretch = jnp.asarray([1.0, 2.0, 3.0])[:, None]
    exact = solve(balanced, stretch * task.x)
    assert "not isotropic" in linear.STATUS[int(exact.status)]
    wrongs = [{"times": TIMES - 0.1}, {"times": TIMES * jnp.nan}, {"tau": 0.0}, {"tau": -1.0}]
    # Charts serve sorted times: without a status these would be wrong by percents.
    wrongs.append({"times": TIMES[jnp.asarray([3, 0, 2, 1])]})
    integrate = jax.jit(lambda times, tau: linear.integrate_flow(balanced, task, times, tau))
    for wrong in wrongs:
        for result in (
            solve(balanced, task.x, **wrong),
            integrate(wrong.get("times", TIMES), wrong.get("tau", 1.0)),
        ):
            assert "negative or not sorted" in linear.STATUS[int(result.status)]
            assert bool(jnp.isnan(result.qqt).all()) and "not sorted" in repr(result)
    assert integrate(TIMES, 1.0).is_ok
    drawn = jax.jit(lambda lam: linear.lambda_balanced(2, 3, 2, lam, key=jr.key(0)))(1.0)
    assert bool(jnp.isnan(drawn.w1).all())


def test_float32_data_serve_float64_weights():
    """Inputs that are white to single precision do not unbalance weights of double precision."""
    data = linear.random_regression(3, 3, 6, key=jr.key(0))
    task = linear.Task(data.x.astype(jnp.float32), data.y.astype(jnp.float32))
    network = linear.lambda_balanced(3, 3, 3, 1.0, key=jr.key(1))
    exact = linear.exact_flow(network, task, [0.0, 1e3])
    assert exact.is_ok and exact.function.dtype == jnp.float64
    for found, expected in zip(exact.function, (network.w2 @ network.w1, data.target), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_float32_weights_stay_float32():
    arrays = linear.lambda_balanced(3, 3, 2, -30.0, key=jr.key(0))
    network = linear.Network(*(w.astype(jnp.float32) for w in (arrays.w1, arrays.w2)))
    task = linear.Task.from_correlation(jr.normal(jr.key(1), (2, 3)).astype(jnp.float32))
    exact = linear.exact_flow(network, task, TIMES.astype(jnp.float32))
    assert exact.qqt.dtype == jnp.float32 and int(exact.status) == 0
    flow = linear.integrate_flow(network, task, TIMES.astype(jnp.float32))
    assert flow.qqt.dtype == jnp.float32
    assert float(jnp.max(jnp.abs(exact.qqt - flow.qqt)) / jnp.max(jnp.abs(exact.qqt))) < 1e-4


DRAW_AND_SOLVE = """
import jax, jax.numpy as jnp, jax.random as jr
jax.config.update("jax_enable_x64", True)
from nullcline import linear

@jax.jit
@jax.vmap
def final_loss(key):
    task_key, key = jr.split(key)
    task = linear.random_regression(15, 15, 30, key=task_key)
    network = linear.lambda_balanced(15, 15, 15, -1.0, key=key)
    exact = linear.exact_flow(network, task, jnp.linspace(0.0, 5.0, 8))
    scores = linear.task_specific_score(exact, task)
    return linear.loss(exact, task)[-1], scores.inputs[-1]

losses, scores = final_loss(jr.split(jr.key(0), 84))
assert bool(jnp.isfinite(losses).all()) and bool(jnp.isfinite(scores).all())
print("done")
"""


@pytest.mark.slow
def test_batched_decompositions_do_not_deadlock():
    """Independent batched LAPACK calls in one program once hung; no flags are set for the user's process."""
    result = subprocess.run(
        [sys.executable, "-c", DRAW_AND_SOLVE],
        env=environment_of_a_user(),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0 and "done" in result.stdout, result.stderr[-2000:]
