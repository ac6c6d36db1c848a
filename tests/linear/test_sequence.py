"""Tasks one after the other: exact states, forgetting and rates."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from flow_reference import integrate_weights, stacked

from nullcline import linear

TASKS = [linear.random_regression(4, 3, 12, key=jr.key(seed)) for seed in (1, 2, 3)]
DURATIONS = [2.0, 2.0, 1e6]


@pytest.fixture(scope="module")
def sequence():
    network = linear.lambda_balanced(4, 3, 3, lam=-0.7, key=jr.key(0))
    return network, linear.exact_sequence(network, TASKS, DURATIONS, points=4)


def test_states_follow_the_flow(sequence):
    network, result = sequence
    w1, w2 = np.asarray(network.w1), np.asarray(network.w2)
    for task, stage in zip(TASKS[:2], result.stages, strict=False):
        path = integrate_weights(w1, w2, task.sigma_yx, task.sigma_xx, stage.times)
        for got, (a, b) in zip(stage.qqt, path, strict=True):
            np.testing.assert_allclose(got, stacked(a, b), atol=1e-10)
        w1, w2 = path[-1]
    np.testing.assert_allclose(result.times[4:8], 2.0 + jnp.linspace(0, 2, 4), rtol=1e-14)
    np.testing.assert_array_equal(result.stage, np.repeat([0, 1, 2], 4))


def test_losses_and_forgetting(sequence):
    _, result = sequence
    losses = result.losses
    assert losses.shape == (3, 12)
    # The loss by its definition from the data.
    f, task = np.asarray(result.function[7]), TASKS[0]
    direct = np.sum((f @ task.x - task.y) ** 2) / (2 * 12)
    np.testing.assert_allclose(losses[0, 7], direct, rtol=1e-12)
    forgetting = result.forgetting
    np.testing.assert_allclose(forgetting[:, 4], 0.0, atol=0)
    np.testing.assert_allclose(forgetting[1, 11], losses[1, 11] - losses[1, 8], rtol=1e-12)
    # Fully learned: half the squared distance between the tasks.
    sigma = [np.asarray(task.sigma_yx) for task in TASKS]
    learned = 0.5 * np.sum((sigma[2] - sigma[0]) ** 2) + TASKS[0].constant
    np.testing.assert_allclose(losses[0, 11], learned, rtol=1e-8)
    between = linear.forgetting(TASKS[0], TASKS[1].sigma_yx, TASKS[2].sigma_yx)
    expected = 0.5 * (np.sum((sigma[2] - sigma[0]) ** 2) - np.sum((sigma[1] - sigma[0]) ** 2))
    np.testing.assert_allclose(between, expected, rtol=1e-12)


@pytest.mark.slow
def test_rates_are_derivatives_of_losses():
    """Central differences of the exact loss, on the training task and on another, with tau and κ ≠ 1."""
    white, other = TASKS[:2]
    training = linear.Task(0.5 * white.x, white.y)
    network = linear.lambda_balanced(4, 3, 3, lam=0.4, key=jr.key(4))
    h, tau = 1e-4, 2.0
    centers = np.array([0.5])
    times = jnp.asarray(np.sort(np.concatenate([centers - h, centers, centers + h])))
    flow = linear.exact_flow(network, training, times, tau=tau)
    for task in (training, other):
        loss = linear.function_loss(flow.function, task)
        rate = linear.loss_rate(flow, training, task, tau=tau)[1::3]
        # Third derivatives of order one: truncation h²/6 ~ 2e-9, rounding 1e-16/h ~ 1e-12.
        np.testing.assert_allclose(rate, (loss[2::3] - loss[::3]) / (2 * h), atol=1e-7)
    own = linear.loss_rate(flow, training, tau=tau)
    assert jnp.all(own < 0)
    residual = training.sigma_yx[None] - flow.function @ training.sigma_xx
    squares = jnp.sum((jnp.swapaxes(flow.w2, -1, -2) @ residual) ** 2, (-2, -1))
    squares += jnp.sum((residual @ flow.w1t) ** 2, (-2, -1))
    np.testing.assert_allclose(own, -squares / tau, rtol=1e-12)


def test_rates_of_the_sequence(sequence):
    _, result = sequence
    rates = result.loss_rates
    for stage in range(3):
        own = linear.loss_rate(result.stages[stage], TASKS[stage])
        np.testing.assert_allclose(rates[stage, 4 * stage : 4 * stage + 4], own, rtol=1e-13)
    assert jnp.all(rates[2, 8:] <= 0)


@pytest.mark.slow
def test_reversal_without_balance_stays_at_zero_and_with_it_recovers():
    task = TASKS[0]
    reverse = linear.Task(task.x, -task.y)
    outcome = {}
    for lam in (0.0, 0.5):
        network = linear.lambda_balanced(4, 3, 3, lam=lam, key=jr.key(0))
        if lam == 0:
            network = linear.aligned(task, 3, lam=0.0, scale=0.5, key=jr.key(0))
        result = linear.exact_sequence(network, [task, reverse], [200.0, 2000.0], points=3)
        outcome[lam] = result.function[-1]
    np.testing.assert_allclose(outcome[0.0], 0.0, atol=1e-9)
    np.testing.assert_allclose(outcome[0.5], -task.sigma_yx, atol=1e-9)


@pytest.mark.slow
def test_under_jit():
    @jax.jit
    def final_loss(lam):
        network = linear.lambda_balanced(4, 3, 3, lam=lam, key=jr.key(0))
        return linear.exact_sequence(network, TASKS[:2], (1.0, 1.0), points=2).losses[0, -1]

    network = linear.lambda_balanced(4, 3, 3, lam=0.3, key=jr.key(0))
    eager = linear.exact_sequence(network, TASKS[:2], (1.0, 1.0), points=2).losses[0, -1]
    np.testing.assert_allclose(final_loss(0.3), eager, rtol=1e-10)


def test_a_layer_that_a_task_does_not_see_is_not_lost_in_silence():
    """Inputs in a plane, then in the whole space: the state in between lacks what the plane does not see."""
    network = linear.Network(1.3 * jnp.eye(3, 4), jnp.zeros((3, 3)))
    plane = linear.Task(TASKS[0].x.at[2:].set(0), TASKS[0].y)
    assert plane.is_isotropic and not plane.is_spanning
    with pytest.raises(ValueError, match=r"`tasks\[0\]` span a part .*integrate_flow"):
        linear.exact_sequence(network, [plane, TASKS[1]], DURATIONS[:2], points=4)


def test_bad_arguments():
    network = linear.lambda_balanced(4, 3, 3, key=jr.key(0))
    with pytest.raises(ValueError, match="3 tasks and 1 durations"):
        linear.exact_sequence(network, TASKS, [1.0])
    with pytest.raises(ValueError, match="`durations` must be positive"):
        linear.exact_sequence(network, TASKS[:1], [-1.0])
    with pytest.raises(ValueError, match="`points` must be an integer of at least 2, got 1"):
        linear.exact_sequence(network, TASKS[:1], [1.0], points=1)
    wrong = linear.random_regression(3, 3, 9, key=jr.key(0))
    with pytest.raises(ValueError, match="`task` has 3 inputs"):
        linear.exact_sequence(network, [wrong], [1.0])
