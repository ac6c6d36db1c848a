"""The cells of the recurrent room under the operators: Hodgkin-Huxley neurons and exact spectra for all."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.optimize import brentq

from nullcline import operators, recurrent

N, DT = 3, 0.02


@pytest.fixture(scope="module")
def neurons():
    cell = recurrent.hodgkin_huxley_cell(2, N, 2, dt=DT, key=jr.key(0))
    # Spread voltages over the spike, with two exactly where the rates have a removable quotient 0/0.
    voltage = jnp.array([[-40.0, -55.0, -65.0], [-20.0, -50.0, 10.0]])
    start = jnp.concatenate([voltage, 0.2 + 0.5 * jr.uniform(jr.key(1), (2, 3 * N))], axis=1)
    return cell, operators.linearize(cell, jr.normal(jr.key(2), (2, 6, 2)), start)


def test_hodgkin_huxley_operator_acts_on_the_voltages_alone(neurons):
    _, flow = neurons
    voltage = np.asarray(flow.states_before)[..., :N].reshape(12, N)
    synapses = 1 / (1 + np.exp(-(voltage + 20) / 5))
    x = np.asarray(flow.inputs).reshape(12, 2)
    kernel = DT**2 / 2 * (x @ x.T + synapses @ synapses.T)
    expected = np.kron(kernel, np.diag([1.0] * N + [0.0] * (3 * N)))
    K = flow.parameter_operator
    assert set(K.terms) == {"w", "w_in"}
    np.testing.assert_allclose(K.dense(), expected, rtol=0, atol=1e-14 * expected.max())
    # Trace over all four components of the state, of which one is moved.
    found = operators.consensus(K)
    assert found.method == "kernel"
    np.testing.assert_allclose(found.matrix, kernel / 4, rtol=0, atol=1e-14 * kernel.max())
    whole = operators.spectrum(K)
    exact = np.repeat(np.linalg.eigvalsh(kernel)[::-1], N)
    assert whole.method == "units" and whole.dimension == 12 * 4 * N
    # Five features, hence five kernel modes of multiplicity N; the rest is zero to rounding.
    np.testing.assert_allclose(whole.values[: 5 * N], exact[: 5 * N], rtol=0, atol=1e-14 * exact[0])
    assert np.sum(np.asarray(whole.values) > 1e-12 * exact[0]) == 5 * N


def test_hodgkin_huxley_jacobian_is_finite_and_that_of_differences(neurons):
    cell, flow = neurons
    J = np.asarray(operators.transition_matrices(flow))[:, 0]
    z, x = flow.initial_state, flow.inputs[:, 0]
    steps = 1e-5 * np.eye(4 * N)
    move = jax.jit(jax.vmap(cell.step))
    differences = [(move(z + h[None], x) - move(z - h[None], x)) / 2e-5 for h in steps]
    # Central differences: third derivatives of the currents, up to 1e5, times h^2/6, and rounding 1e-14/h.
    np.testing.assert_allclose(J, np.stack(differences, axis=2), rtol=1e-6, atol=1e-6)


def test_hodgkin_huxley_step_of_training(neurons):
    cell, flow = neurons
    targets = jnp.ones((2, 6, 2))
    gradient = flow.gradient(targets, jnp.ones_like(targets))
    change = flow.predicted_change(targets, jnp.ones_like(targets))
    gaps = []
    for eta in (1e-1, 5e-2):
        moved = cell.__class__(
            cell.w_in - eta * gradient["w_in"], cell.w - eta * gradient["w"], cell.w_out, dt=DT
        )
        after = operators.linearize(moved, flow.inputs, flow.initial_state).states
        gaps.append(float(jnp.linalg.norm((after - flow.states) / eta - change)))
    assert gaps[0] < 0.1 * float(jnp.linalg.norm(change)) and 1.9 < gaps[0] / gaps[1] < 2.1


def _steady(voltage):
    """Openings and closings of the gates m, n, h, as numbers, by the textbook's formulas."""
    v = voltage
    opening = np.array(
        [
            (v + 40) / 10 / -np.expm1(-(v + 40) / 10),
            (v + 55) / 100 / -np.expm1(-(v + 55) / 10),
            0.07 * np.exp(-(v + 65) / 20),
        ]
    )
    closing = np.array(
        [4 * np.exp(-(v + 65) / 18), 0.125 * np.exp(-(v + 65) / 80), 1 / (1 + np.exp(-(v + 35) / 10))]
    )
    return opening, closing


def _ionic(v, m, n, h):
    return -36 * n**4 * (v + 77) - 120 * m**3 * h * (v - 50) - 0.3 * (v + 54.387)


def test_hodgkin_huxley_rests_where_its_currents_cancel():
    def current(v):
        opening, closing = _steady(v)
        return _ionic(v, *(opening / (opening + closing)))

    rest = brentq(current, -70.0, -60.0, xtol=1e-13)
    np.testing.assert_allclose(rest, -65.0, atol=0.01)  # the textbook's resting potential
    opening, closing = _steady(rest)
    gates = opening / (opening + closing)
    state = jnp.asarray([rest, *gates])
    cell = recurrent.HodgkinHuxleyCell(
        jnp.zeros((1, 1)), jnp.zeros((1, 1)), jnp.ones((1, 1)), dt=DT, current=0.0
    )
    flow = operators.linearize(cell, jnp.zeros((1, 3, 1)), state)
    np.testing.assert_allclose(flow.states[0], np.tile(state, (3, 1)), rtol=0, atol=1e-12)
    # The arrowhead of hazelden2025 (83)-(95), erratum: voltage in the first row and column, gates diagonal.
    m, n, h = gates
    up, down = (np.array([_steady(rest + d)[i] for d in (1e-5, -1e-5)]) for i in (0, 1))
    slope_up, slope_down = (part[0] - part[1] for part in (up / 2e-5, down / 2e-5))
    f = np.zeros((4, 4))
    f[0] = [
        -36 * n**4 - 120 * m**3 * h - 0.3,
        -360 * m**2 * h * (rest - 50),
        -144 * n**3 * (rest + 77),
        -120 * m**3 * (rest - 50),
    ]
    f[1:, 0] = slope_up * (1 - gates) - slope_down * gates
    f[1:, 1:] = -np.diag(opening + closing)
    J = np.asarray(operators.transition_matrices(flow))[0, 0]
    # The slopes of the rates are central differences: 1e-10 from rounding and from h^2.
    np.testing.assert_allclose(J, np.eye(4) + DT * f, rtol=0, atol=1e-9)
    assert np.all(np.abs(np.linalg.eigvals(J)) < 1)  # stable
    exponents = operators.lyapunov(flow)[0]
    np.testing.assert_allclose(np.sum(exponents), np.linalg.slogdet(J)[1], rtol=1e-10)


@pytest.mark.parametrize("make", ["rate_cell", pytest.param("lstm_cell", marks=pytest.mark.slow)])
def test_cells_of_the_recurrent_room_have_exact_spectra(make):
    cell = getattr(recurrent, make)(2, 5, 2, key=jr.key(0))
    flow = operators.linearize(cell, jr.normal(jr.key(1), (2, 4, 2)))
    K = flow.parameter_operator
    whole = operators.spectrum(K)
    assert whole.method == "units"
    exact = np.linalg.eigvalsh(np.asarray(K.whitened()))[::-1][: len(whole.values)]
    np.testing.assert_allclose(whole.values, exact, rtol=0, atol=1e-13 * exact[0])
