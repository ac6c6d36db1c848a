"""Running cells: the order of input, step and readout, and the hand-written adjoint against autodiff."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from nullcline import recurrent
from nullcline.recurrent._run import trial_outputs


def test_output_is_read_after_the_input(key):
    cell = recurrent.rate_cell(2, 6, 3, g=1.5, key=key)
    inputs = jr.normal(key, (2, 4, 2))
    states, outputs = recurrent.run(cell, inputs)
    for trial in range(2):
        x = np.zeros(6)
        for step in range(4):
            drive = np.array(cell.w) @ np.tanh(x) + np.array(inputs[trial, step]) @ np.array(cell.w_in)
            x = 0.5 * x + 0.5 * drive
            np.testing.assert_allclose(states[trial, step], x, rtol=1e-12)
            np.testing.assert_allclose(outputs[trial, step], np.tanh(x) @ np.array(cell.w_out), rtol=1e-12)


def test_initial_state_of_each_trial_or_of_all(key):
    cell = recurrent.rate_cell(1, 4, 1, key=key)
    start = jr.normal(key, (3, 4))
    inputs = jnp.zeros((3, 5, 1))
    states, _ = recurrent.run(cell, inputs, start)
    one, _ = recurrent.run(cell, inputs, start[1])
    np.testing.assert_array_equal(states[1], one[1])
    np.testing.assert_array_equal(one[0], one[2])
    with pytest.raises(ValueError, match="`initial_state` must have shape"):
        recurrent.run(cell, inputs, start[0, :3])


@pytest.mark.parametrize(
    ("nonlinearity", "reads", "has_bias"),
    [("tanh", "rates", False), ("tanh", "state", True), ("relu", "rates", True), ("linear", "state", False)],
)
def test_adjoint_is_autodiff(nonlinearity, reads, has_bias):
    """Gradients of the fast path (weights, inputs, initial state) against autodiff of the plain scan."""
    keys = iter(jr.split(jr.key(5), 12))
    w_in, w = jr.normal(next(keys), (2, 7)), jr.normal(next(keys), (7, 7)) / 2
    w_out = jr.normal(next(keys), (7, 3))
    b = jr.normal(next(keys), (7,)) if has_bias else None
    b_out = jr.normal(next(keys), (3,)) if has_bias else None
    cell = recurrent.RateCell(w_in, w, w_out, b, b_out, dt=0.4, nonlinearity=nonlinearity, reads=reads)
    inputs, start = jr.normal(next(keys), (4, 6, 2)), jr.normal(next(keys), (4, 7))
    targets = jr.normal(next(keys), (4, 6, 3))
    mask = (jr.uniform(next(keys), (4, 6, 3)) < 0.7).astype(float)

    def fast(arguments):
        cell, inputs, start = arguments
        trials = recurrent.Trials(inputs, targets, mask, start)
        return recurrent.loss(trial_outputs(cell, trials), trials)

    def plain(arguments):
        cell, inputs, start = arguments
        trials = recurrent.Trials(inputs, targets, mask, start)
        return recurrent.loss(recurrent.run(cell, inputs, start)[1], trials)

    value, gradient = eqx.filter_jit(eqx.filter_value_and_grad(fast))((cell, inputs, start))
    expected, reference = eqx.filter_jit(eqx.filter_value_and_grad(plain))((cell, inputs, start))
    np.testing.assert_allclose(value, expected, rtol=1e-13)
    for ours, theirs in zip(jax.tree.leaves(gradient), jax.tree.leaves(reference), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-13)


@pytest.mark.slow
def test_adjoint_in_float32(key):
    cell = recurrent.rate_cell(2, 20, 2, g=1.2, dtype=jnp.float32, key=key)
    trials = recurrent.FlipFlop(duration=20.0).sample_for(cell, 8, key=key)

    @eqx.filter_jit
    @eqx.filter_grad
    def gradient(cell, trials):
        return recurrent.loss(trial_outputs(cell, trials), trials)

    single = gradient(cell, trials)
    double = gradient(*jax.tree.map(lambda leaf: leaf.astype(jnp.float64), (cell, trials)))
    for ours, theirs in zip(jax.tree.leaves(single), jax.tree.leaves(double), strict=True):
        assert ours.dtype == jnp.float32
        assert jnp.linalg.norm(ours - theirs.astype(jnp.float32)) < 1e-5 * jnp.linalg.norm(ours)


def test_gradient_against_differences(key):
    """An entry of each weight array: a common factor could hide in both paths above."""
    cell = recurrent.rate_cell(2, 5, 2, g=1.2, key=key)
    trials = recurrent.FlipFlop(duration=15.0).sample(4, key=key)

    @eqx.filter_jit
    def value(cell):
        return recurrent.loss(trial_outputs(cell, trials), trials)

    gradient = eqx.filter_jit(eqx.filter_grad(value))(cell)
    for name in ("w_in", "w", "w_out"):

        def moved(by, name=name):
            return eqx.tree_at(lambda c: getattr(c, name), cell, getattr(cell, name).at[1, 1].add(by))

        slope = (value(moved(1e-5)) - value(moved(-1e-5))) / 2e-5
        # Truncation 1e-10 relative to third derivatives of order one, rounding 1e-16 / 1e-5.
        np.testing.assert_allclose(getattr(gradient, name)[1, 1], slope, rtol=1e-6, atol=1e-10)


def test_loss_is_pooled():
    outputs = jnp.array([[[1.0], [2.0]], [[3.0], [4.0]]])
    trials = recurrent.Trials(
        jnp.zeros((2, 2, 1)), jnp.zeros((2, 2, 1)), jnp.array([[[1.0], [1.0]], [[0.0], [1.0]]])
    )
    assert recurrent.loss(outputs, trials) == (1 + 4 + 16) / 6


def test_refusals(key):
    cell = recurrent.rate_cell(2, 4, 1, key=key)
    with pytest.raises(ValueError, match="`inputs` have 3 channels, the cell takes 2"):
        recurrent.run(cell, jnp.zeros((1, 2, 3)))
    with pytest.raises(ValueError, match="`inputs` are float32, the cell is float64"):
        recurrent.run(cell, jnp.zeros((1, 2, 2), jnp.float32))
    with pytest.raises(ValueError, match="`mask` is zero everywhere"):
        recurrent.Trials(jnp.zeros((1, 2, 2)), jnp.zeros((1, 2, 1)), jnp.zeros((1, 2, 1)))
