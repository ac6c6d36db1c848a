"""Infinite width: the expansion, the traces and the limit flow, against ODEs, quadrature and Monte Carlo."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from nullcline.recurrent import theory
from nullcline.recurrent.theory._measure import quadrature

INF5 = jnp.full(5, jnp.inf)

# tau_5, |dW|, average gradient to tau_5 and shuffled loss / L_0, to the digits of the published table.
TABLE = {
    (0.5, 0.0): (1.18050, 0.42975, 0.3010, 0.0),
    (0.5, 0.3): (0.957157, 0.38589, 0.3351, 0.0444),
    (0.5, 0.6): (0.431107, 0.25584, 0.5046, 0.4491),
    (0.5, 0.8): (0.110600, 0.12624, 1.0158, 0.8467),
    (2.0, 0.0): (0.368484, 0.85234, 2.2469, 0.0),
    (2.0, 0.3): (0.284532, 0.73703, 2.5437, 0.1767),
    (2.0, 0.6): (0.109454, 0.42930, 3.9820, 0.7442),
    (2.0, 0.8): (0.023741, 0.17884, 7.9277, 0.9527),
}


@pytest.mark.parametrize(("target", "g"), TABLE, ids=str)
def test_table_of_the_limit(target, g):
    tau5 = theory.learning_time(target=target, g=g)
    flow = theory.infinite_width_flow(target, g, jnp.stack([tau5, *INF5[:4]]))
    expected = TABLE[target, g]
    norm = np.linalg.norm(flow.singular_values[-1])
    shuffled = (1 - flow.shuffled_readout[-1] / target) ** 2
    np.testing.assert_allclose(tau5, expected[0], rtol=0, atol=6e-6)
    np.testing.assert_allclose(norm, expected[1], rtol=0, atol=6e-6)
    np.testing.assert_allclose(flow.path[0] / tau5, expected[2], rtol=0, atol=6e-5)
    np.testing.assert_allclose(shuffled, expected[3], rtol=0, atol=6e-5)
    np.testing.assert_allclose(flow.loss[0], 0.05 * target**2 / 2, rtol=1e-10)
    assert flow.status.flags == ()


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "accuracy"), [(4, 1e-6), (8, 1e-10)])
def test_few_nodes_are_enough(nodes, accuracy):
    """A quadrature of 4 nodes gives the learning time to 1e-6, one of 8 to the accuracy of the solver."""
    exact, few = (theory.learning_time(target=2.0, g=0.6, rank=rank) for rank in (12, nodes))
    np.testing.assert_allclose(few, exact, rtol=accuracy)


def test_five_singular_values_of_the_limit():
    """g = 0.6, target 2, converged: schuessler2020, Fig. S3(f), in exact arithmetic."""
    values = theory.infinite_width_flow(2.0, 0.6, INF5).singular_values[-1, :5]
    np.testing.assert_allclose(values, [0.4281, 0.03211, 3.6e-4, 1.8e-6, 5.4e-9], rtol=6e-3)
    np.testing.assert_allclose(values[:2], [0.42809, 0.032106], rtol=2e-5)


@pytest.mark.parametrize(
    ("target", "g", "size"), [(2.0, 0.6, 527), (2.0, 0.8, 7455), (4.0, 0.6, 8060), (4.0, 0.8, 1.27e5)]
)
def test_critical_step_of_the_limit(target, g, size):
    np.testing.assert_allclose(2 / theory.critical_step(target=target, g=g), size, rtol=1e-3)


def test_without_initial_weights_two_vectors_do():
    """g = 0 against the 2 x 2 flow of schuessler2020, Eqs. (68)-(70), by another solver."""
    target = 1.5
    taus = jnp.array([0.0, 0.1, 0.3, 0.6, 1.0])

    def field(_, flat):
        c = np.linalg.inv(np.eye(2) - flat.reshape(2, 2))
        return ((target - c[0, 1]) * np.outer(c.T[:, 0], c[:, 1])).ravel()

    solution = solve_ivp(field, (0, 1), np.zeros(4), method="DOP853", t_eval=taus, rtol=1e-12, atol=1e-14)
    matrices = solution.y.T.reshape(-1, 2, 2)
    flow = theory.infinite_width_flow(target, 0.0, taus)
    readouts = [np.linalg.inv(np.eye(2) - a)[0, 1] for a in matrices]
    np.testing.assert_allclose(flow.readout, readouts, rtol=0, atol=1e-9)
    values = np.linalg.svd(matrices, compute_uv=False)
    np.testing.assert_allclose(flow.singular_values[:, :2], values, rtol=0, atol=1e-10)
    # Shuffling weights that are zero changes nothing.
    np.testing.assert_allclose(flow.shuffled_readout, flow.readout, rtol=1e-12)


@settings(max_examples=15)
@given(st.floats(0.0, 0.95), st.floats(-4.0, 4.0).filter(lambda z: abs(z) > 0.05))
def test_readout_polynomial_is_the_series_of_the_limit(g, target):
    """All five orders, by differences of the polynomial against the power series of the small network."""
    coefficients = theory.series(*theory.infinite_width_network(g, nodes=4), target, 5).readout
    beta = 1 / (1 - g**2)
    # A polynomial of degree 5 is determined by six values: at tt = 0 .. 5.
    tt = np.arange(6.0)
    values = theory.readout(jnp.asarray(tt / beta**2), target, g, order=5)
    polynomial = np.linalg.solve(np.vander(tt, increasing=True), np.asarray(values))
    scaled = np.asarray(coefficients) / beta ** (2 * np.arange(6))
    np.testing.assert_allclose(polynomial, scaled, rtol=1e-9, atol=1e-9 * np.max(np.abs(scaled)))


@pytest.mark.parametrize(("target", "g"), [(0.5, 0.6), (-2.0, 0.3), (2.0, 0.8)])
def test_third_order_of_the_other_quantities(target, g):
    """What the expansions miss falls as the fourth power of time (fifth or more for s2: at least 2**4)."""
    beta = 1 / (1 - g**2)
    tt = 2e-3 / (1 + target**2 * beta) * np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    taus = jnp.asarray(tt / beta**2)
    flow = theory.infinite_width_flow(target, g, taus)
    exact = {
        "readout": flow.readout,
        "s1": flow.singular_values[:, 0],
        "s2": flow.singular_values[:, 1],
        "shuffled": flow.shuffled_readout,
    }
    third = {
        "readout": theory.readout(taus, target, g),
        "s1": theory.singular_values(taus, target, g)[:, 0],
        "s2": theory.singular_values(taus, target, g)[:, 1],
        "shuffled": theory.shuffled_readout(taus, target, g),
    }
    for name in exact:
        gap = np.abs(np.asarray(exact[name] - third[name]))
        assert 12 < gap[4] / gap[3] < 20, name
        # A wrong cubic coefficient (by a tenth) would leave a gap of this size instead.
        assert gap[3] < 0.05 * abs(target) * (1 + target**2) * tt[3] ** 3, name


def test_first_order_and_flag():
    order = theory.first_order(-2.0, 0.6)
    beta = 1 / 0.64
    np.testing.assert_allclose(order.learning_time, 1 / beta**2)
    np.testing.assert_allclose(order.change_norm, 2 / beta)
    np.testing.assert_allclose(order.gradient_norm, 2 * beta)
    np.testing.assert_allclose(order.shuffled_loss, 0.6**4 * (2 - 0.6**2) ** 2)
    # The gradient at the start of the limit flow is the first-order one.
    flow = theory.infinite_width_flow(-2.0, 0.6, 1e-7 * jnp.arange(5.0))
    np.testing.assert_allclose(np.diff(flow.path) / 1e-7, order.gradient_norm, rtol=2e-6)
    tau = jnp.array([0.01, 0.5, 3.0]) / beta**2
    assert theory.beyond_expansion(tau, 2.0, 0.6).tolist() == [False, True, True]


def test_outlier_is_an_estimate():
    """At g = 0.6, target 2, tt = 0.2 the estimate is 0.58, where networks have 0.66 to 0.67."""
    beta = 1 / 0.64
    np.testing.assert_allclose(theory.outlier(0.2 / beta**2, 2.0, 0.6), 0.58, atol=0.005)
    assert np.isnan(theory.outlier(2 / beta**2, 2.0, 0.6))


@pytest.mark.parametrize("g", [0.0, 1e-6, 1e-4, 0.1, 0.6, 0.9, 0.99])
def test_quadrature_has_the_moments_of_the_law(g):
    """Nodes from the density against traces from the generating function: two derivations of one law."""
    s, weights, shuffled = quadrature(g, 12)
    traces = theory.traces(g, 6)
    k = np.arange(1, 7)
    np.testing.assert_allclose(weights.sum(), 1, rtol=1e-12)
    np.testing.assert_allclose(s[None, :] ** (2 * k[:, None]) @ weights, traces.m, rtol=2e-12)
    n = s[None, :] ** (2 * (k[:, None] - 1)) @ (weights * shuffled * s)
    np.testing.assert_allclose(n, traces.n, rtol=2e-12)


def test_traces_in_closed_form():
    g = jnp.array([0.0, 0.3, 0.7])
    beta = 1 / (1 - g**2)
    traces = theory.traces(g, 3)
    np.testing.assert_allclose(traces.m, jnp.stack([beta, beta**4, beta**7 * (1 + 2 * g**2)], 1), rtol=1e-12)
    np.testing.assert_allclose(traces.n, jnp.stack([beta**0, beta**2, beta**5 * (1 + g**2)], 1), rtol=1e-12)


def test_traces_of_random_matrices():
    """Means over 20 matrices of N = 200, g = 0.4, within 4.5 standard errors plus the bias of order 1/N.

    The bias was put at 3/N times the trace; six numbers, so the false-alarm rate is below 1e-4.
    """
    n, g, seeds = 200, 0.4, 20
    samples = []
    for seed in range(seeds):
        w0 = g / np.sqrt(n) * np.asarray(jr.normal(jr.key(seed), (n, n)))
        b = np.linalg.inv(np.eye(n) - w0)
        c = b @ b.T
        samples.append([np.trace(x) / n for x in (c, c @ c, c @ c @ c, b.T, b.T @ c, b.T @ c @ c)])
    mean, error = np.mean(samples, 0), np.std(samples, 0, ddof=1) / np.sqrt(seeds)
    expected = np.concatenate([theory.traces(g, 3).m, theory.traces(g, 3).n])
    assert np.all(np.abs(mean - expected) < 4.5 * error + 3 / n * expected)


def test_rank_two_form_and_its_erratum():
    """Beyond first order the form is off by O(N^-1/2) only; as printed it is off by half at any size."""
    n, g, target, tau = 150, 0.6, 2.0, 0.01
    keys = jr.split(jr.key(1), 3)
    w0 = g / np.sqrt(n) * jr.normal(keys[0], (n, n))
    m, w = (jr.normal(k, (n,)) / np.sqrt(n) for k in keys[1:])
    b = np.linalg.inv(np.eye(n) - w0)
    # No initial readout, as in the limit.
    w = w - (w @ b @ m) / (m @ b.T @ b @ m) * (b @ m)
    w, m = w / jnp.linalg.norm(w), m / jnp.linalg.norm(m)
    u, v = (np.asarray(factor) for factor in theory.change_factors(tau, w0, m, w, target, g))
    exact = np.asarray(theory.series(w0, m, w, target, 3).change)
    second = exact[2] * tau**2 + exact[3] * tau**3

    def gap(v):
        return np.linalg.norm(u @ v.T - exact[1] * tau - second) / np.linalg.norm(second)

    assert gap(v) < 0.2
    # As printed, b w^T B^T instead of b w^T B in Eq. (45): B B w instead of B B^T w.
    beta = 1 / (1 - g**2)
    a2 = target * tau * (1 - beta**2 * tau / 2 + beta**4 * tau**2 / 6)
    coefficient = target**2 * beta * (tau**2 - beta**2 * tau**3) / 2 / np.sqrt(a2)
    printed = v.copy()
    printed[:, 0] += coefficient * (b @ (b @ w) - b @ (b.T @ w))
    assert gap(printed) > 0.4


def test_signs_of_the_rank_two_form():
    keys = jr.split(jr.key(3), 3)
    w0 = 0.5 / np.sqrt(30) * jr.normal(keys[0], (30, 30))
    m, w = (jr.normal(k, (30,)) / np.sqrt(30) for k in keys[1:])
    plus, minus = (theory.change_factors(0.05, w0, m, s * w, s * 1.5, 0.5) for s in (1.0, -1.0))
    np.testing.assert_allclose(plus[0] @ plus[1].T, minus[0] @ minus[1].T, rtol=1e-12, atol=1e-15)
    zero = theory.change_factors(0.0, w0, m, w, 1.5, 0.5)
    assert np.all(zero[0] @ zero[1].T == 0)


@pytest.mark.slow
def test_finite_networks_scatter_around_the_limit():
    """30 networks of 256 neurons, g = 0.5, target 2: learning time, change and shuffled loss.

    Within 4 standard errors of the mean: a false-alarm rate of about 4e-4 (t with 29 degrees) for three
    numbers, plus a finite-size bias of 2 %.
    """
    n, g, target = 256, 0.5, 2.0
    rows = []
    for seed in range(30):
        keys = jr.split(jr.key(seed), 4)
        w0 = g / np.sqrt(n) * jr.normal(keys[0], (n, n))
        m, w = (vector / jnp.linalg.norm(vector) for vector in (jr.normal(k, (n,)) for k in keys[1:3]))
        flow = theory.learning(w0, m, w, target, relative_to="target")
        after = jr.permutation(keys[3], w0.ravel()).reshape(n, n) + flow.change
        shuffled = (target - w @ jnp.linalg.solve(jnp.eye(n) - after, m)) ** 2 / target**2
        rows.append([flow.time, flow.change_norm, shuffled])
    mean, error = np.mean(rows, 0), np.std(rows, 0, ddof=1) / np.sqrt(30)
    limit = theory.infinite_width_flow(target, g, INF5)
    expected = np.array(
        [
            theory.learning_time(target=target, g=g),
            np.linalg.norm(limit.singular_values[-1]),
            (1 - limit.shuffled_readout[-1] / target) ** 2,
        ]
    )
    assert np.all(np.abs(mean - expected) < 4 * error + 0.02 * expected)
