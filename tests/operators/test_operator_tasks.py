"""Interference between tasks and alignment, against blocks of dense matrices."""

import cells
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from reference import data, reference

from nullcline import operators

TASKS = ["go", "stop", "go"]


@pytest.fixture(scope="module")
def dense():
    """The GRU case, with dense change by each task from the reference Jacobian."""
    flow, ref = cells.flow_of("gru"), reference("gru")
    targets, mask = data(flow)
    shape = flow.states.shape
    members = np.array([[True, False, True], [False, True, False]])
    jac = ref.unrolled.reshape(*shape, -1)
    weighted = ref.weights[:, None, None] * ref.error
    gradients = np.array([np.einsum("bth,bthp->p", weighted * m[:, None, None], jac) for m in members])
    changes = -np.einsum("bthp,jp->jbth", jac, gradients)
    return flow, targets, mask, members, gradients, changes, ref


def test_interference_is_that_of_the_dense_blocks(dense):
    flow, targets, mask, members, gradients, changes, ref = dense
    found = operators.interference(flow, TASKS, targets, mask)
    assert found.tasks.tolist() == ["go", "stop"]
    np.testing.assert_allclose(found.changes, changes, rtol=0, atol=1e-12 * np.abs(changes).max())
    total = flow.predicted_change(targets, mask)
    np.testing.assert_allclose(np.sum(found.changes, axis=0), total, rtol=0, atol=1e-12 * np.abs(total).max())

    def inner(i, a, b):
        return np.einsum("b,bth,bth->", ref.weights * members[i], a, b)

    expected = [
        [
            inner(i, changes[i], changes[j])
            / np.sqrt(inner(i, changes[i], changes[i]) * inner(i, changes[j], changes[j]))
            for j in range(2)
        ]
        for i in range(2)
    ]
    np.testing.assert_allclose(found.interference, expected, rtol=1e-11)
    np.testing.assert_allclose(np.diagonal(found.interference), 1, rtol=1e-14)
    assert abs(found.interference[0, 1] - found.interference[1, 0]) > 1e-3  # not symmetric
    sizes = np.linalg.norm(gradients, axis=1)
    np.testing.assert_allclose(
        found.gradient_cosine, gradients @ gradients.T / np.outer(sizes, sizes), rtol=1e-11
    )


def test_gradient_cosine_is_the_normalised_bilinear_form(dense):
    flow, targets, mask, members, *_ = dense
    adjoint = flow.adjoint(targets, mask)
    K = flow.parameter_operator
    form = np.zeros((2, 2))
    for i in range(2):
        for j in range(2):
            block = operators.restrict(K, members[i], members[j])
            form[i, j] = block.out_space.inner(block @ adjoint[members[j]], adjoint[members[i]])
    found = operators.interference(flow, [0, 1, 0], targets, mask).gradient_cosine
    size = np.sqrt(np.diagonal(form))
    np.testing.assert_allclose(found, form / np.outer(size, size), rtol=1e-10)


@pytest.mark.slow
def test_states_of_paired_tasks_are_compared_trial_by_trial():
    flow = cells.flow_of("gru", jnp.full(4, 0.25), batch=4)
    z = np.asarray(flow.states)
    a, b = z[[0, 3]].ravel(), z[[1, 2]].ravel()
    expected = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    found = operators.state_cosine(flow, [0, 1, 1, 0])
    np.testing.assert_allclose(found, [[1, expected], [expected, 1]], rtol=1e-12)
    y = jnp.ones((4, cells.TIME, cells.OUTPUTS))
    np.testing.assert_allclose(
        operators.interference(flow, [0, 1, 1, 0], y, y).state_cosine, found, rtol=1e-12
    )
    z = z - z.mean(axis=(0, 1))
    a, b = z[[0, 3]].ravel(), z[[1, 2]].ravel()
    centred = operators.state_cosine(flow, [0, 1, 1, 0], is_centered=True)
    np.testing.assert_allclose(centred[0, 1], a @ b / np.linalg.norm(a) / np.linalg.norm(b), rtol=1e-12)
    # The document's matrix, on blocks of the dense K.
    R = np.asarray(operators.rayleigh_matrix(flow, [0, 1, 1, 0], y, y))
    adjoint = np.asarray(flow.adjoint(y, y))
    blocks = np.asarray(flow.parameter_operator.dense()).reshape(4, 20, 4, 20)
    for i, mine in enumerate(([0, 3], [1, 2])):
        for j, own in enumerate(([0, 3], [1, 2])):
            a = adjoint[own].ravel()
            block = blocks[np.ix_(mine, range(20), own)].reshape(40, 40)
            np.testing.assert_allclose(R[i, j], a @ block @ a / (a @ a), rtol=1e-11)


def test_refusals_of_interference(dense):
    flow, targets, mask, *_ = dense
    found = operators.interference(flow, TASKS, targets, mask)
    traced = jax.eval_shape(
        lambda flow: operators.interference(flow, TASKS, targets, mask).interference, flow
    )
    assert traced.shape == found.interference.shape  # also where nothing can be looked at
    with pytest.raises(ValueError, match=r"needs equally many trials of each; the tasks have \[2, 1\]"):
        _ = found.state_cosine
    with pytest.raises(ValueError, match=r"the tasks have \[2, 1\]"):
        operators.state_cosine(flow, TASKS)
    with pytest.raises(ValueError, match=r"the tasks have \[2, 1\]"):
        operators.rayleigh_matrix(flow, TASKS, targets, mask)
    with pytest.raises(ValueError, match=r"one label per trial, shape \(3,\), got \(2,\)"):
        operators.interference(flow, [0, 1], targets, mask)
    with pytest.raises(ValueError, match=r"at least two tasks, each with a trial, got \[0\]"):
        operators.interference(flow, [0, 0, 0], targets, mask)
    with pytest.raises(ValueError, match="integers or names, got float64"):
        operators.interference(flow, [0.0, 1.0, 0.0], targets, mask)
    with pytest.raises(ValueError, match="need a `mask`"):
        operators.interference(flow, TASKS, targets)
    with pytest.raises(ValueError, match="The error of task 'stop' does not change"):
        operators.interference(flow, TASKS, targets, mask.at[1].set(0))


def test_rayleigh_quotient_of_the_adjoint_is_the_gradient(dense):
    flow, targets, mask, _, gradients, _, ref = dense
    adjoint = flow.adjoint(targets, mask)
    squared = np.einsum("b,bth,bth->", ref.weights, adjoint, adjoint)
    found = operators.rayleigh(flow.parameter_operator, adjoint)
    np.testing.assert_allclose(found, np.sum(gradients.sum(axis=0) ** 2) / squared, rtol=1e-11)
    top = np.linalg.eigvalsh(ref.whiten(ref.gram(ref.tangent)))[-1]
    relative = operators.rayleigh(flow.parameter_operator, adjoint, relative=True)
    np.testing.assert_allclose(relative, found / top, rtol=1e-11)
    with pytest.raises(ValueError, match="`q` is zero"):
        operators.rayleigh(flow.parameter_operator, jnp.zeros_like(adjoint))


@pytest.mark.slow
def test_misdirection_against_dense_matrices(dense, monkeypatch):
    flow, targets, mask, *_, ref = dense
    ours = ref.whiten(ref.gram(ref.unrolled))
    free = ref.propagator @ ref.propagator.T
    error = (np.sqrt(ref.weights)[:, None, None] * ref.error).ravel()
    a, b = ours @ error, free @ error
    found = operators.misdirection(flow, targets, mask)
    np.testing.assert_allclose(found, a @ b / np.linalg.norm(a) / np.linalg.norm(b), rtol=1e-11)
    exact = np.sum(ours * free) / np.linalg.norm(ours) / np.linalg.norm(free)
    np.testing.assert_allclose(operators.operator_misdirection(flow).value, exact, rtol=1e-11)
    u, s, _ = np.linalg.svd(ref.propagator)
    inside = u[:, :5].T @ ours @ u[:, :5]
    cosine = np.sum(np.diagonal(inside) * s[:5] ** 2) / np.linalg.norm(inside) / np.linalg.norm(s[:5] ** 2)
    np.testing.assert_allclose(operators.operator_misdirection(flow, 5).value, cosine, rtol=1e-10)
    monkeypatch.setattr("nullcline.operators._alignment.DENSE_LIMIT", 10)
    sampled = operators.operator_misdirection(flow, probes=400, key=jr.key(0))
    # Four standard errors: missed by fewer than 1 key in 10^4.
    assert 0 < sampled.standard_error < 0.1
    assert abs(sampled.value - exact) < 4 * sampled.standard_error


def test_dimension_of_the_activity(key):
    basis = jnp.linalg.qr(cells.normal(key, (6, 6)))[0][:2]
    rows = cells.normal(jr.fold_in(key, 1), (3, 40, 2)) @ basis + 5.0  # the mean does not count
    assert operators.activity_dimension(rows) == 2
    np.testing.assert_allclose(operators.participation_ratio(jnp.array([3.0, 3.0, 0.0])), 2)
