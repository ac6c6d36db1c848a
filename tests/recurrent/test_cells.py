"""Cells against their equations written out, against PyTorch, and against what is known of the squid axon."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from nullcline import recurrent

torch = pytest.importorskip("torch")

CELLS = {
    "tanh": lambda key: recurrent.rate_cell(2, 5, 3, g=1.2, key=key),
    "relu": lambda key: recurrent.rate_cell(2, 5, 3, nonlinearity="relu", vectors="uniform", key=key),
    "gru": lambda key: recurrent.gru_cell(2, 5, 3, key=key),
    "lstm": lambda key: recurrent.lstm_cell(2, 5, 3, key=key),
    "hodgkin_huxley": lambda key: recurrent.hodgkin_huxley_cell(2, 5, 3, key=key),
}


@pytest.mark.parametrize("name", CELLS)
def test_protocol(name, key):
    cell = CELLS[name](key)
    state = cell.initial_state()
    assert state.shape == (cell.state_size,)
    assert (cell.inputs, cell.hidden, cell.outputs) == (2, 5, 3)
    after = eqx.filter_jit(cell.step)(state, jnp.ones(2))
    assert after.shape == state.shape and after.dtype == state.dtype == cell.dtype
    assert cell.readout(after).shape == (3,)


@pytest.mark.parametrize("name", ["tanh", "relu", "linear"])
@pytest.mark.parametrize("reads", ["rates", "state"])
def test_rate_step_is_equation_17(name, reads):
    rng = np.random.default_rng(0)
    w_in, w, w_out = rng.normal(size=(2, 4)), rng.normal(size=(4, 4)), rng.normal(size=(4, 3))
    b, b_out, x, u = rng.normal(size=4), rng.normal(size=3), rng.normal(size=4), rng.normal(size=2)
    phi = {"tanh": np.tanh, "relu": lambda v: np.maximum(v, 0), "linear": lambda v: v}[name]
    cell = recurrent.RateCell(
        *map(jnp.asarray, (w_in, w, w_out, b, b_out)), dt=0.3, nonlinearity=name, reads=reads
    )
    expected = np.array(
        [
            0.7 * x[i] + 0.3 * (sum(w[i, j] * phi(x[j]) for j in range(4)) + u @ w_in[:, i] + b[i])
            for i in range(4)
        ]
    )
    np.testing.assert_allclose(cell.step(jnp.asarray(x), jnp.asarray(u)), expected, rtol=1e-13)
    seen = phi(expected) if reads == "rates" else expected
    np.testing.assert_allclose(cell.readout(jnp.asarray(expected)), w_out.T @ seen + b_out, rtol=1e-13)


def test_vectors_have_exactly_unit_norm(key):
    cell = recurrent.rate_cell(3, 50, 2, g=0.7, key=key)
    np.testing.assert_allclose(jnp.linalg.norm(cell.w_in, axis=1), np.sqrt(50), rtol=1e-14)
    np.testing.assert_allclose(jnp.linalg.norm(cell.w_out, axis=0), 1 / np.sqrt(50), rtol=1e-14)
    tied = recurrent.rate_cell(1, 50, 1, is_tied=True, key=key)
    np.testing.assert_allclose(tied.w_out, tied.w_in.T / 50, rtol=1e-15)


@pytest.mark.parametrize(("weights", "variance"), [("normal", 1.0), ("uniform", 1 / 3)])
def test_recurrent_weights_have_their_law(weights, variance, key):
    n, g = 300, 1.5
    w = recurrent.rate_cell(1, n, 1, g=g, weights=weights, key=key).w
    # The mean square of n^2 independent entries has a relative standard error below sqrt(2)/n = 0.0047; 4.5
    # of them are exceeded for one key in 1.5e5. The same for the mean, of standard error g/n^1.5.
    assert abs(jnp.mean(w**2) * n / (g**2 * variance) - 1) < 4.5 * np.sqrt(2) / n
    assert abs(jnp.mean(w)) < 4.5 * g / n**1.5
    assert jnp.all(recurrent.rate_cell(1, 10, 1, g=0.0, weights=weights, key=key).w == 0)


def _to_torch(cell, module):
    with torch.no_grad():
        module.weight_ih.copy_(torch.tensor(np.array(cell.w_in.T)))
        module.weight_hh.copy_(torch.tensor(np.array(cell.w)))
        module.bias_ih.copy_(torch.tensor(np.array(cell.b_in)))
        module.bias_hh.copy_(torch.tensor(np.array(cell.b)))
    return module


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_gated_cells_agree_with_torch(kind, key):
    cell = (recurrent.gru_cell if kind == "gru" else recurrent.lstm_cell)(3, 6, 2, g=2.0, key=key)
    module = {"gru": torch.nn.GRUCell, "lstm": torch.nn.LSTMCell}[kind](3, 6, dtype=torch.float64)
    module = _to_torch(cell, module)
    inputs = jr.normal(jr.fold_in(key, 1), (1, 9, 3))
    states, outputs = recurrent.run(cell, inputs)
    hidden = None
    for step in range(9):
        now = torch.tensor(np.array(inputs[:, step]))
        hidden = module(now) if hidden is None else module(now, hidden)
        flat = torch.cat(hidden, dim=1) if kind == "lstm" else hidden
        # Float64 rounding of a nine-step recursion.
        np.testing.assert_allclose(states[:, step], flat.detach().numpy(), rtol=1e-11, atol=1e-14)
    expected = np.array(states[0, -1, :6]) @ np.array(cell.w_out) + np.array(cell.b_out)
    np.testing.assert_allclose(outputs[0, -1], expected, rtol=1e-12)


def _neuron(current, dt=0.01):
    zero = jnp.zeros((1, 1))
    return recurrent.HodgkinHuxleyCell(zero, zero, zero, current=current, dt=dt)


def test_hodgkin_huxley_neuron_rests_and_spikes():
    """At rest without current; 14 spikes in 200 ms under 10 uA/cm^2, the textbook neuron."""
    inputs = jnp.zeros((1, 20_000, 1))
    rest = recurrent.run(_neuron(0.0), inputs)[0][0, :, 0]
    assert jnp.max(jnp.abs(rest + 65)) < 0.1
    voltage = recurrent.run(_neuron(10.0), inputs)[0][0, :, 0]
    assert jnp.sum((voltage[:-1] < 0) & (voltage[1:] >= 0)) == 14


def _velocity(cell, state, inputs):
    return cell.velocity(state, inputs)


_HH_FUNCTIONS = tuple(
    eqx.filter_jit(f) for f in (jax.jacfwd(_velocity, argnums=1), jax.jacrev(_velocity, argnums=1), _velocity)
)


@pytest.mark.parametrize("voltage", [-40.0, -55.0, -65.0, 10.0])
def test_hodgkin_huxley_jacobian_is_finite_and_right(voltage):
    """The gating rates are 0/0 at -40 and -55 mV; there the Jacobian must agree with differences too."""
    cell = recurrent.hodgkin_huxley_cell(1, 2, 1, key=jr.key(3))
    state = jnp.concatenate([jnp.array([voltage, voltage + 3.0]), jnp.full(6, 0.3)])
    exact, reverse, velocity = _HH_FUNCTIONS
    u, step = jnp.ones(1), 1e-5
    exact, reverse = exact(cell, state, u), reverse(cell, state, u)
    columns = [
        (velocity(cell, state + step * e, u) - velocity(cell, state - step * e, u)) / (2 * step)
        for e in jnp.eye(8)
    ]
    # Central differences: truncation about step^2, rounding eps/step relative to currents of about 1e3.
    np.testing.assert_allclose(exact, jnp.stack(columns, axis=1), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(exact, reverse, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"g": -0.1}, "`g` must be nonnegative, got -0.1"),
        ({"dt": 0.0}, r"`dt` must be in \(0, 1\], got 0.0"),
        ({"dt": 1.5}, r"`dt` must be in \(0, 1\], got 1.5"),
        ({"n_hidden": 0}, "`n_hidden` must be an integer of at least 1, got 0"),
        ({"n_out": 2, "is_tied": True}, "`is_tied` needs as many outputs as inputs"),
    ],
)
def test_rate_cell_refuses(arguments, message, key):
    with pytest.raises(ValueError, match=message):
        recurrent.rate_cell(**{"n_in": 1, "n_hidden": 4, "n_out": 1, **arguments}, key=key)


def test_hodgkin_huxley_refuses_a_large_step(key):
    with pytest.raises(ValueError, match="larger Euler step blows up"):
        recurrent.hodgkin_huxley_cell(1, 2, 1, dt=0.5, key=key)
