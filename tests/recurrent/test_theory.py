"""Exact flows of the linear RNN against autodiff, ODE solvers and published numbers."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from nullcline.recurrent import theory

N = 40  # one size and one number of times for (nearly) all tests: one compilation
TIMES = 5


def network(seed: int, g: float, n: int = N, norm: float = 1.0):
    keys = jr.split(jr.key(seed), 3)
    w0 = g / np.sqrt(n) * jr.normal(keys[0], (n, n))
    m, w = (jr.normal(k, (n,)) for k in keys[1:])
    return w0, norm * m / jnp.linalg.norm(m), w / jnp.linalg.norm(w)


def readout_of(weights, m, w):
    return w @ jnp.linalg.solve(jnp.eye(m.shape[0]) - weights, m)


def loss_of(weights, m, w, target):
    return (target - readout_of(weights, m, w)) ** 2 / 2


gradient = jax.jit(jax.grad(loss_of))


def flow_by_autodiff(w0, m, w, target, taus):
    """Weight changes at the times, from SciPy's solver and the gradient that autodiff gives."""
    n = m.shape[0]

    def field(_, weights):
        return -np.asarray(gradient(jnp.asarray(weights.reshape(n, n)), m, w, target)).ravel()

    start = np.asarray(w0).ravel()
    solution = solve_ivp(
        field, (0, float(taus[-1])), start, method="DOP853", t_eval=np.asarray(taus), rtol=1e-12, atol=1e-14
    )
    return solution.y.T.reshape(-1, n, n) - np.asarray(w0)


@pytest.mark.parametrize(
    ("g", "target", "norm"), [(0.6, 2.0, 1.0), (0.8, -1.5, 1.3), (0.0, 0.5, 0.7)], ids=str
)
def test_krylov_flow_is_gradient_flow(g, target, norm):
    """Readout, change, singular values and path against an ODE solver fed by autodiff; z_0 is not 0."""
    w0, m, w = network(1, g, norm=norm)
    tau5 = theory.learning_time(w0, m, w, target)
    taus = tau5 * jnp.array([0.0, 0.2, 0.7, 1.0, 2.0])
    flow = theory.exact_flow(w0, m, w, target, taus)
    changes = flow_by_autodiff(w0, m, w, target, taus)
    assert flow.status.flags == ()
    assert bool(flow.status.is_trusted)
    # The reference keeps a local error of 1e-12 over some hundred steps; its interpolant loses a digit.
    np.testing.assert_allclose(flow.change, changes, rtol=0, atol=2e-9)
    readouts = [readout_of(w0 + change, m, w) for change in changes]
    np.testing.assert_allclose(flow.readout, readouts, rtol=0, atol=2e-8)
    np.testing.assert_allclose(flow.loss, (target - flow.readout) ** 2 / 2, rtol=1e-9, atol=1e-25)
    values = np.linalg.svd(changes, compute_uv=False)[:, : flow.singular_values.shape[1]]
    np.testing.assert_allclose(flow.singular_values, values, rtol=0, atol=2e-9)
    # The initial loss has fallen to 5 % at tau5.
    np.testing.assert_allclose(flow.loss[3] / flow.loss[0], 0.05, rtol=1e-10)


def test_path_grows_with_the_gradient():
    """The slope of the path, by differences of fourth order, is the norm of the autodiff gradient."""
    w0, m, w = network(2, 0.6)
    tau = 0.7 * theory.learning_time(w0, m, w, 2.0)
    h = 1e-3 * tau
    flow = theory.exact_flow(w0, m, w, 2.0, tau + h * jnp.arange(-2.0, 3.0))
    slope = flow.path @ jnp.array([1.0, -8.0, 0.0, 8.0, -1.0]) / (12 * h)
    norm = np.linalg.norm(gradient(w0 + flow.change[2], m, w, 2.0))
    # Rounding 1e-16 / 1e-3 and the solver's 1e-11 between steps, over h.
    np.testing.assert_allclose(slope, norm, rtol=1e-8)


@pytest.mark.parametrize("g", [0.6, 0.8])
def test_krylov_against_full(g):
    """The two methods share only the solver; the basis of 24 is exact to rounding here."""
    w0, m, w = network(3, g)
    tau5 = theory.learning_time(w0, m, w, 2.0)
    taus = tau5 * jnp.array([0.0, 0.3, 1.0, 100.0, jnp.inf])
    krylov = theory.exact_flow(w0, m, w, 2.0, taus)
    full = theory.exact_flow(w0, m, w, 2.0, taus, method="full")
    np.testing.assert_allclose(krylov.readout, full.readout, rtol=0, atol=2e-11)
    scale = np.linalg.norm(full.change[-1])
    np.testing.assert_allclose(krylov.change, full.change, rtol=0, atol=1e-10 * scale)
    np.testing.assert_allclose(krylov.path, full.path, rtol=1e-10)
    # Long after convergence the readout is the target and the weights stand still.
    np.testing.assert_allclose(readout_of(w0 + full.change[-1], m, w), 2.0, rtol=1e-10)
    np.testing.assert_allclose(full.change[3], full.change[4], rtol=0, atol=1e-12)
    assert krylov.readout[-1] == 2.0 and krylov.loss[-1] == 0.0


def test_small_basis_is_flagged():
    w0, m, w = network(3, 0.8)
    exact = theory.exact_flow(w0, m, w, 2.0, jnp.full(TIMES, jnp.inf))
    rough = theory.learning(w0, m, w, 2.0, rank=1)
    assert "krylov_truncated" in rough.status.flags and not bool(rough.status.is_trusted)
    assert np.linalg.norm(exact.change[-1] - rough.change) > 1e-8
    assert exact.status.flags == ()


def test_symmetry_of_the_signs():
    """(ẑ, w) -> (-ẑ, -w) leaves the change alone and flips the readout."""
    w0, m, w = network(4, 0.5)
    taus = jnp.array([0.0, 0.1, 0.2, 0.5, jnp.inf])
    plus = theory.exact_flow(w0, m, w, 1.0, taus)
    minus = theory.exact_flow(w0, m, -w, -1.0, taus)
    np.testing.assert_allclose(plus.change, minus.change, rtol=0, atol=1e-12)
    np.testing.assert_allclose(plus.readout, -minus.readout, rtol=1e-10, atol=1e-14)


def test_target_met_at_the_start():
    """Nothing changes when the network already solves the task."""
    w0, m, w = network(5, 0.5)
    flow = theory.exact_flow(w0, m, w, readout_of(w0, m, w), jnp.array([0.0, 0.1, 1.0, 10.0, jnp.inf]))
    assert np.max(np.abs(flow.change)) < 1e-14
    assert np.all(np.isfinite(flow.path)) and np.all(flow.loss < 1e-28)


def test_series_against_flow():
    """Order 8 meets the flow at a small time, and the error of order K falls as the power K + 1."""
    w0, m, w = network(6, 0.6)
    tau = 1e-2 * theory.learning_time(w0, m, w, 2.0)
    coefficients = theory.series(w0, m, w, 2.0, 8)
    flow = theory.exact_flow(w0, m, w, 2.0, tau * jnp.array([1.0, 2.0, 4.0, 0.5, 0.0]))
    powers = np.asarray(tau) ** np.arange(9.0)
    np.testing.assert_allclose(coefficients.readout @ powers, flow.readout[0], rtol=1e-12)
    change = np.tensordot(powers, coefficients.change, 1)
    np.testing.assert_allclose(change, flow.change[0], rtol=0, atol=1e-13)
    third = [
        abs(coefficients.readout[:4] @ (k * tau) ** np.arange(4.0) - flow.readout[i])
        for i, k in ((0, 1), (1, 2))
    ]
    assert 14 < third[1] / third[0] < 18  # 2**4, up to the next term
    w1 = -gradient(w0, m, w, 2.0)
    np.testing.assert_allclose(coefficients.change[1], w1, rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(coefficients.readout[0], readout_of(w0, m, w), rtol=1e-12)


def test_critical_step_is_two_over_curvature():
    """The largest eigenvalue of the Hessian of the loss at the converged weights, by autodiff."""
    w0, m, w = network(7, 0.5)
    step = theory.critical_step(w0, m, w, 1.0)
    weights = w0 + theory.exact_flow(w0, m, w, 1.0, jnp.full(TIMES, jnp.inf)).change[-1]

    @jax.jit
    def curvature(direction):
        return jax.jvp(lambda at: jax.grad(loss_of)(at, m, w, 1.0), (weights,), (direction,))[1]

    # At the solution the Hessian has rank one: a power iteration from anywhere is there after one product.
    direction = curvature(jr.normal(jr.key(0), (N, N)))
    direction = direction / jnp.linalg.norm(direction)
    along = curvature(direction)
    np.testing.assert_allclose(along, jnp.sum(direction * along) * direction, rtol=0, atol=1e-9)
    np.testing.assert_allclose(step, 2 / jnp.linalg.norm(along), rtol=1e-9)


def test_descent_is_gradient_descent():
    """The small map against descent on the N x N weights with the autodiff gradient."""
    w0, m, w = network(8, 0.6)
    step = 0.3 * theory.critical_step(w0, m, w, 2.0)
    result = theory.descent(w0, m, w, 2.0, step, 60)
    weights = w0
    for k in range(60):
        if k % 20 == 0:
            np.testing.assert_allclose(result.readout[k], readout_of(weights, m, w), rtol=1e-10)
        weights = weights - step * gradient(weights, m, w, 2.0)
    np.testing.assert_allclose(w0 + result.change[60], weights, rtol=0, atol=1e-11)
    assert result.status.flags == ()


def test_descent_flags():
    """Above the critical step the flag is up; far above it the network loses its stability."""
    w0, m, w = network(8, 0.6)
    step = theory.critical_step(w0, m, w, 2.0)
    above = theory.descent(w0, m, w, 2.0, 1.5 * step, 60)
    assert "unstable_step" in above.status.flags
    assert abs(above.readout[-1] - 2) > 1e-4  # it does not settle
    assert "unstable_step" not in theory.descent(w0, m, w, 2.0, 0.9 * step, 60).status.flags
    far = theory.descent(w0, m, w, 2.0, 300 * step, 60)
    assert "lost_stability" in far.status.flags
    at = int(far.status.unstable_at)
    largest = [np.max(np.linalg.eigvals(np.asarray(w0 + far.change[k])).real) for k in (at - 1, at)]
    assert largest[0] < 1 < largest[1]


def test_descent_divergence_keeps_the_finite_part():
    w0, m, w = network(8, 0.6)
    result = theory.descent(w0, m, w, 2.0, 1e308, 60)
    at = int(result.status.diverged_at)
    assert "diverged" in result.status.flags and 0 < at <= 60
    assert np.all(np.isfinite(result.readout[:at])) and np.all(np.isnan(result.readout[at:]))
    assert np.all(np.isfinite(result.core))


def test_learning_time_relative_to_target():
    """5 % of half the squared target instead of the own initial loss; 0 for a network that starts below."""
    w0, m, w = network(9, 0.7)
    tau = theory.learning_time(w0, m, w, -0.5, fraction=0.1, relative_to="target")
    flow = theory.exact_flow(w0, m, w, -0.5, tau * jnp.array([0.0, 0.5, 1.0, 2.0, 3.0]))
    np.testing.assert_allclose(flow.loss[2], 0.1 * 0.5**2 / 2, rtol=1e-9)
    near = 1.01 * readout_of(w0, m, w)
    assert theory.learning_time(w0, m, w, near, relative_to="target") == 0


@pytest.mark.slow
def test_vmap_jit_and_grad():
    """A batch of networks is the networks one by one; the derivative in the target is that of differences."""
    many = [network(seed, 0.6) for seed in (10, 11)]
    batch = [jnp.stack(parts) for parts in zip(*many, strict=True)]
    taus = jnp.array([0.0, 0.05, 0.1, 0.2, jnp.inf])

    def final_norm(target, w0, m, w):
        flow = theory.exact_flow(w0, m, w, target, taus)
        return jnp.sum(flow.singular_values[-1] ** 2), flow.readout

    both = jax.jit(jax.vmap(jax.value_and_grad(final_norm, has_aux=True)))
    (norms, readouts), slopes = both(jnp.ones(2), *batch)
    h = 1e-4
    for i, parts in enumerate(many):
        values = [final_norm(jnp.asarray(1 + by), *parts) for by in (-h, 0.0, h)]
        np.testing.assert_allclose(norms[i], values[1][0], rtol=1e-9)
        np.testing.assert_allclose(readouts[i], values[1][1], rtol=1e-9)
        np.testing.assert_allclose(slopes[i], (values[2][0] - values[0][0]) / (2 * h), rtol=1e-6)


@pytest.mark.slow
def test_single_precision_is_flagged_and_close():
    w0, m, w = (part.astype(jnp.float32) for part in network(12, 0.6))
    taus = jnp.array([0.0, 0.05, 0.1, 0.2, jnp.inf], jnp.float32)
    flow = theory.exact_flow(w0, m, w, 2.0, taus)
    double = theory.exact_flow(
        *(part.astype(jnp.float64) for part in (w0, m, w)), 2.0, taus.astype(jnp.float64)
    )
    assert flow.readout.dtype == jnp.float32
    assert flow.status.flags == ("single_precision",) and not bool(flow.status.is_trusted)
    np.testing.assert_allclose(flow.readout, double.readout, rtol=0, atol=5e-4)


GOOD = network(0, 0.5, n=3)
BAD = [
    (
        lambda: theory.exact_flow(2.5 * jnp.eye(3), *GOOD[1:], 1.0, jnp.ones(1)),
        "`w0` .* real part below 1, got 2.5",
    ),
    (lambda: theory.exact_flow(GOOD[0], 0 * GOOD[1], GOOD[2], 1.0, jnp.ones(1)), "`m` is zero"),
    (lambda: theory.exact_flow(*GOOD, 1.0, -jnp.ones(1)), "`taus` must be"),
    (lambda: theory.exact_flow(*GOOD, float("nan"), jnp.ones(1)), "`target` must be finite"),
    (lambda: theory.exact_flow(*GOOD, 1.0, jnp.ones(1), rank=0), "`rank` must be an integer of at least 1"),
    (lambda: theory.exact_flow(jnp.nan * GOOD[0], *GOOD[1:], 1.0, jnp.ones(1)), "`w0` .* got 9 of 9 entries"),
    (lambda: theory.series(*GOOD, 1.0, -1), "`order` must be at least 0"),
    (lambda: theory.series(1.5 * jnp.eye(3), *GOOD[1:], 1.0, 2), "`w0` must have eigenvalues"),
    (lambda: theory.readout(0.1, 1.0, 1.0), "`g` must be below 1"),
    (lambda: theory.readout(0.1, 1.0, -0.1), "`g` must be at least 0"),
    (lambda: theory.readout(0.1, 1.0, 0.5, order=6), "`order` must be 1 to 5"),
    (lambda: theory.readout(-0.1, 1.0, 0.5), "`tau` must be"),
    (lambda: theory.singular_values(0.1, 1.0, 1.2), "`g` must be below 1"),
    (lambda: theory.shuffled_readout(0.1, 1.0, float("nan")), "`g` must be at least 0"),
    (lambda: theory.traces(1.0), "`g` must be below 1"),
    (lambda: theory.infinite_width_flow(1.0, 1.0, jnp.ones(1)), "`g` must be below 1"),
    (
        lambda: theory.infinite_width_flow(1.0, 0.5, jnp.ones(1), nodes=0),
        "`nodes` must be an integer of at least 1",
    ),
    (lambda: theory.learning_time(*GOOD, 1.0, fraction=1.0), "`fraction` must be between"),
    (lambda: theory.learning_time(*GOOD, 0.0, relative_to="target"), "`target` must not be 0"),
    (lambda: theory.learning_time(target=0.0, g=0.5), "`target` must not be 0"),
    (lambda: theory.first_order(0.0, 0.5), "`target` must not be 0"),
    (lambda: theory.learning_time(*GOOD, 1.0, g=0.5), "not both"),
    (lambda: theory.learning_time(target=1.0), "Give a network"),
    (lambda: theory.critical_step(*GOOD), "`target` is missing"),
    (lambda: theory.critical_step(target=1.0, g=1.0), "`g` must be below 1"),
    (lambda: theory.descent(*GOOD, 1.0, 0.0, 5), "`step` must be positive"),
    (lambda: theory.descent(*GOOD, 1.0, 0.1, 0), "`steps` must be an integer of at least 1"),
    (lambda: jax.jit(lambda g: theory.infinite_width_flow(1.0, g, jnp.ones(1)).readout)(0.5), "traced"),
]


@pytest.mark.parametrize(("call", "message"), BAD, ids=[message[:24] for _, message in BAD])
def test_bad_input_is_refused(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_a_strongly_inhibited_network_is_stable():
    """Only the real part counts: an eigenvalue of -5 is fine although the spectral radius exceeds 1."""
    w0, m, w = -5 * jnp.eye(3) + 0.1 * GOOD[0], GOOD[1], GOOD[2]
    flow = theory.exact_flow(w0, m, w, 1.0, jnp.full(TIMES, jnp.inf))
    np.testing.assert_allclose(readout_of(w0 + flow.change[0], m, w), 1.0, rtol=1e-10)
