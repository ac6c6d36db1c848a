"""Action, adjoint and composition of K and P against dense matrices from automatic differentiation."""

import cells
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from reference import data, reference

from nullcline import operators


def close(actual, expected, rtol=1e-13):
    """Equal up to rounding on the scale of the largest entry."""
    expected = np.asarray(expected)
    np.testing.assert_allclose(
        np.asarray(actual), expected, rtol=0, atol=rtol * max(1e-300, np.abs(expected).max())
    )


@eqx.filter_jit
def matrices(flow, targets, mask):
    """All operators column by column, in one program: operators are pytrees."""

    def dense(operator):
        space = operator.in_space
        columns = jax.vmap(lambda v: operator.mv(v.reshape(space.shape)))(jnp.eye(space.size))
        return columns.reshape(space.size, -1).T

    P, K = flow.propagator, flow.parameter_operator
    found = {
        "P": P,
        "P*": P.T,
        "P^-1": P.inverse,
        "P^-*": P.inverse.T,
        "K": K,
        "PKP*": P @ K @ P.T,
        "fixed": flow.output_operator(trained_readout=False),
        "trained": flow.output_operator(),
    }
    change = flow.predicted_change(targets, mask)
    return {name: dense(operator) for name, operator in found.items()}, flow.error(targets, mask), change


@pytest.fixture(scope="module", params=cells.SOME)
def case(request):
    flow = cells.flow_of(request.param)
    found, error, change = jax.tree.map(np.asarray, matrices(flow, *data(flow)))
    return flow, reference(request.param), found, error, change


def test_operators_are_those_of_automatic_differentiation(case):
    flow, ref, found, _, _ = case
    close(flow.states, ref.states)
    close(found["P"], ref.propagator)
    sign, logdet = np.linalg.slogdet(found["P"])
    assert sign == 1 and abs(logdet) < 1e-13
    close(found["K"], ref.gram(ref.tangent))
    close(found["PKP*"], ref.gram(ref.unrolled), 1e-12)
    close(found["fixed"], ref.gram(ref.outputs_fixed), 1e-12)
    close(found["trained"], ref.gram(ref.outputs_trained), 1e-12)


def test_adjoints_and_signs(case):
    _, ref, found, _, _ = case
    # The adjoint of P is its plain transpose although the weights differ: P never mixes trials.
    close(found["P*"], ref.propagator.T)
    close(found["P^-1"] @ found["P"], np.eye(len(found["P"])))
    close(found["P^-*"], found["P^-1"].T)
    for name in ("K", "PKP*", "fixed", "trained"):
        white = ref.whiten(found[name])
        close(white, white.T)
        assert np.linalg.eigvalsh(white).min() > -1e-13 * np.trace(white)


def test_one_gradient_step_changes_the_states_as_predicted(case):
    _, ref, _, error, change = case
    close(error, ref.error)
    close(change.reshape(-1), -ref.unrolled @ ref.gradient, 1e-12)
    gaps = [
        np.linalg.norm((after - ref.states) / eta - change)
        for after, eta in zip(ref.stepped, ref.etas, strict=True)
    ]
    # First order: the gap is eta times a constant, up to the next order.
    assert gaps[0] < 0.3 * np.linalg.norm(change)
    assert 1.8 < gaps[0] / gaps[1] < 2.2


@pytest.mark.slow
def test_trained_readout_adds_the_kernel_of_its_features():
    flow = cells.flow_of("lstm")
    h = np.asarray(flow.states[:, :, : cells.HIDDEN]).reshape(-1, cells.HIDDEN)
    kernel = (h @ h.T + 1) * np.repeat(np.asarray(flow.weights), cells.TIME)[None, :]
    added = flow.output_operator().dense() - flow.output_operator(trained_readout=False).dense()
    close(added, np.kron(kernel, np.eye(cells.OUTPUTS)), 1e-12)


def test_trained_initial_state():
    flow, ref = cells.flow_of("lstm"), reference("lstm")
    batch, _, size = flow.states.shape
    close(flow.initial_operator(is_shared=False).dense(), ref.gram(ref.initial), 1e-12)
    shared = ref.initial.reshape(-1, batch, size).sum(axis=1)
    close(flow.initial_operator().dense(), ref.gram(shared), 1e-12)


@pytest.mark.parametrize("name", ["twice_local", "tied"])
def test_terms_add_up(name, key):
    flow = cells.flow_of(name)
    K = flow.parameter_operator
    assert set(K.terms) == set(flow.model.step_names)
    whole = sum(K.terms.values())
    assert whole.is_psd
    close(whole.dense(), K.dense())


@pytest.mark.slow
def test_preconditioner_scales_the_terms():
    flow = cells.flow_of("rate")
    terms = flow.parameter_operator.terms
    rates = {"w": 0.3, "b": 0.0}
    expected = 0.3 * terms["w"].dense() + terms["w_in"].dense()
    close(flow.preconditioned(rates).dense(), expected)
    each = jr.uniform(jr.key(0), flow.model.params["w"].shape)
    scaled = flow.preconditioned({"w": each, "b": 0.0, "w_in": 0.0})
    tangent = operators.restrict(scaled, [0, 1, 2]).left  # G of w alone, column by column
    G = np.asarray(tangent.dense())[:, 4:20]  # b has 4 columns, then w
    close(scaled.dense(), reference("rate").gram(G * np.sqrt(np.ravel(each))), 1e-12)
    assert operators.spectrum(scaled).method == "dense"
    close(operators.spectrum(scaled).values[:3], np.linalg.eigvalsh(scaled.whitened())[::-1][:3], 1e-12)


def test_blocks_of_tasks_keep_the_weights_of_the_batch():
    flow, ref = cells.flow_of("rate"), reference("rate")
    K, P = flow.parameter_operator, flow.propagator
    i, j = [0, 2], [1]
    size = cells.TIME * cells.HIDDEN
    k, p = (m.reshape(3, size, 3, size) for m in (ref.gram(ref.tangent), ref.propagator))

    def block(matrix, rows, columns):
        return matrix[np.ix_(rows, range(size), columns, range(size))].reshape(size * len(rows), -1)

    between, within = operators.restrict(K, i, j), operators.restrict(K, np.array([True, False, True]))
    close(between.dense(), block(k, i, j))
    close(between.T.dense(), block(k, j, i))
    close(within.dense(), block(k, i, i))
    assert within.is_psd and not between.is_psd
    own = operators.restrict(P, i)
    close(own.dense(), block(p, i, i))
    change = own @ between @ operators.restrict(P, j).T
    assert change.in_space.shape[0] == 1 and change.out_space.shape[0] == 2


def test_operators_are_pytrees_and_sums_and_multiples_work(key):
    flow = cells.flow_of("rate")
    P, K = flow.propagator, flow.parameter_operator
    q = cells.normal(key, flow.states.shape)
    inside = jax.jit(lambda f, q: (f.propagator @ f.parameter_operator @ f.propagator.T) @ q)(
        jax.tree.map(lambda leaf: leaf, flow), q
    )
    close(inside, (P @ K @ P.T) @ q)
    close((2.0 * P - P + K) @ q, P @ q + K @ q)
    # The continuous-time normalisation of a model with step dt changes nothing in the end.
    dt = 0.4
    close(((dt * P) @ ((1 / dt) * K) @ (dt * P).T) @ (q / dt), (P @ K @ P.T) @ q)
    # What is positive semi-definite is known from how it was made.
    assert K.is_psd and (P @ K @ P.T).is_psd and ((dt * P) @ K @ (dt * P).T).is_psd and (P @ P.T).is_psd
    assert not (P.is_psd or (P @ K).is_psd or (-1.0 * K).is_psd or (P @ P.inverse.T).is_psd)
    assert (P.inverse @ P.inverse.T).is_psd
    close(P.inverse.inverse @ q, P @ q)


def test_linear_cell_propagates_its_inputs(key):
    # z' = W z + x from zero: Phi(t, s) = W^(t-s), so that P x is the trajectory itself.
    w = 0.5 * cells.normal(key, (4, 4))
    x = cells.normal(jr.fold_in(key, 1), (2, 6, 4))
    flow = operators.linearize(lambda p, z, x: p @ z + x, x, jnp.zeros(4), params=w)
    close(flow.propagator @ x, flow.states)
    P = np.asarray(flow.propagator.dense()).reshape(2, 6, 4, 2, 6, 4)
    close(P[1, 5, :, 1, 2], np.linalg.matrix_power(np.asarray(w), 3))
    assert not P[1, 5, :, 0].any() and not P[0, 2, :, 0, 3].any()


@pytest.mark.slow
def test_flow_is_traceable_and_follows_float32():
    cell = cells.make("gru")
    x = cells.inputs_for(jr.key(1))
    targets = jnp.ones((cells.BATCH, cells.TIME, cells.OUTPUTS))

    def change(cell, x, targets):
        return operators.linearize(cell, x).predicted_change(targets, jnp.ones_like(targets))

    inside = jax.jit(change)(cell, x, targets)
    close(inside, change(cell, x, targets), 1e-12)
    low = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), cell)
    flow = operators.linearize(low, x.astype(jnp.float32), jnp.zeros(cells.HIDDEN, jnp.float32))
    assert flow.states.dtype == jnp.float32
    delta = flow.predicted_change(targets.astype(jnp.float32), jnp.ones_like(targets, jnp.float32))
    assert delta.dtype == jnp.float32
    close(delta, inside, 1e-5)
