"""What holds for every cell, every weight of the trials and every input, on random ones."""

import cells
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

from nullcline import operators, recurrent

SLOW = pytest.mark.slow
# Cell, batch, time: one program each.
CASES = {
    "rate": (lambda key, g: cells.rate(key, hidden=3, g=g), 2, 4),
    "lstm": (lambda key, g: cells.gates(key, cells.LSTM, 4, hidden=2, g=g), 3, 3),
    "gru": (lambda key, g: cells.gates(key, cells.GRU, 3, hidden=3, g=g), 1, 5),
    "tied": (lambda key, g: cells.make("tied", key), 2, 3),
    "hodgkin_huxley": (lambda key, g: recurrent.hodgkin_huxley_cell(2, 2, 2, dt=0.02, key=key), 2, 3),
}


@eqx.filter_jit
def measure(cell, x, weights, q, r):
    """Actions of the operators, and dense matrices from the Jacobians of single steps."""
    flow = operators.linearize(cell, x, weights=weights)
    P, K, space = flow.propagator, flow.parameter_operator, flow.space
    params, rest = eqx.partition(cell, eqx.is_inexact_array)
    theta, unravel = ravel_pytree(params)
    unravel_state = ravel_pytree(cell.initial_state())[1]

    def step(theta, z, x):
        return ravel_pytree(eqx.combine(unravel(theta), rest).step(unravel_state(z), x))[0]

    jacobians = jax.vmap(jax.vmap(jax.jacrev(step, (0, 1)), (None, 0, 0)), (None, 0, 0))
    G, J = jacobians(theta, flow.states_before, x)
    found = {"Pq": P.mv(q), "P*r": P.rmv(r), "Kq": K.mv(q), "Kr": K.mv(r), "PKP*q": (P @ K @ P.T).mv(q)}
    return found, P.inverse.mv(found["Pq"]), space.inner(found["Kq"], q), G, J


def dense(G, J, weights):
    """P and K, from Jacobians of single steps."""
    batch, time, size, _ = G.shape
    inverse = np.eye(batch * time * size).reshape(batch, time, size, batch, time, size)
    for b in range(batch):
        for t in range(1, time):
            inverse[b, t, :, b, t - 1] -= J[b, t]
    tangent = G.reshape(batch * time * size, -1)
    acting = np.repeat(weights, time * size)
    return np.linalg.inv(inverse.reshape(len(tangent), -1)), tangent, tangent @ (tangent.T * acting)


@pytest.mark.parametrize(
    "name", ["rate", "lstm", *(pytest.param(name, marks=SLOW) for name in ("gru", "tied", "hodgkin_huxley"))]
)
@settings(max_examples=12)
@given(
    seed=st.integers(0, 2**31 - 1),
    g=st.floats(0.0, 3.0),
    scale=st.floats(0.0, 3.0),
    share=st.floats(0.0, 1.0),
)
def test_identities_of_every_cell(name, seed, g, scale, share):
    make, batch, time = CASES[name]
    keys = jr.split(jr.key(seed), 4)
    cell = make(keys[0], g)
    x = scale * cells.inputs_for(keys[1], batch, time)
    # One trial may have all the weight, or none.
    weights = np.array([1.0]) if batch == 1 else np.array([share, *[(1 - share) / (batch - 1)] * (batch - 1)])
    size = ravel_pytree(cell.initial_state())[0].size
    q, r = cells.normal(keys[2], (2, batch, time, size))
    out = jax.tree.map(np.asarray, measure(cell, x, jnp.asarray(weights), q, r))
    found, back, form, G, J = out
    q, r = np.asarray(q), np.asarray(r)
    P, tangent, K = dense(G, J, weights)

    def inner(a, b):
        return np.einsum("b,bth,bth->", weights, a, b)

    def norm(a):
        return np.sqrt(inner(a, a))

    def close(a, matrix, b):
        # Rounding scales with the sizes of matrix and vector, not with a result that may cancel.
        bound = 1e-13 * np.linalg.norm(matrix, 2) * np.linalg.norm(b)
        assert np.linalg.norm(a.ravel() - matrix @ b.ravel()) <= bound

    # Matrix-free is dense.
    close(found["Pq"], P, q)
    close(found["P*r"], P.T, r)
    close(found["Kq"], K, q)
    assert np.linalg.norm(found["PKP*q"].ravel() - P @ K @ P.T @ q.ravel()) <= (
        1e-12 * np.linalg.norm(P, 2) ** 2 * np.linalg.norm(K, 2) * np.linalg.norm(q)
    )
    # Adjoints and signs, in the weighted inner product.
    sizes = np.linalg.norm(P, 2) * norm(q) * norm(r)
    assert abs(inner(found["Pq"], r) - inner(q, found["P*r"])) <= 1e-13 * sizes
    sizes = np.linalg.norm(K, 2) * np.linalg.norm(q) * np.linalg.norm(r)
    assert abs(inner(found["Kq"], r) - inner(q, found["Kr"])) <= 1e-13 * sizes
    assert form >= -1e-13 * sizes
    np.testing.assert_allclose(form, inner(found["Kq"], q), rtol=0, atol=1e-13 * sizes)
    # P has determinant one and an exact inverse.
    assert np.linalg.norm(back - q) <= 1e-12 * np.linalg.cond(P) * np.linalg.norm(q)
    # Rank bounds, in Euclidean coordinates: by the parameters, and kept by P.
    root = np.sqrt(np.repeat(weights, time * size))[:, None]
    white = root * tangent
    values = np.linalg.svd(white, compute_uv=False)
    bound = max(white.shape) * np.finfo(float).eps * (values[0] if values[0] > 0 else 1)
    rank = np.sum(values > 10 * bound)
    assert rank <= min(tangent.shape[1], np.sum(weights > 0) * time * size)
    if np.linalg.cond(P) < 1e3:
        moved = np.linalg.svd(root * (P @ tangent), compute_uv=False)
        gap = values[rank - 1] / values[0] if rank > 0 else 1.0
        # P moves singular values by its condition number at most: ranks agree where a gap is left for that.
        if gap > 1e-8 and (rank == len(values) or values[rank] < 1e-13 * values[0]):
            assert np.sum(moved > 1e-11 * moved[0]) == rank
