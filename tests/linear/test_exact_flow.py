"""The exact flow against integration, against its differential equation and against its symmetries."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from helpers import ARCHITECTURES
from hypothesis import given, settings
from hypothesis import strategies as st

from nullcline import linear

# Few enough times, early enough, for one chart: one compilation per shape.
TIMES = jnp.asarray([0.0, 0.03, 0.4, 1.0, 1.5, 2.5])
LAMBDAS = (-2.0, 0.0, 1.5)


def make(arch, lam, seed=0, scale=0.8):
    task_key, key = jr.split(jr.key(seed))
    sigma = jr.normal(task_key, (arch.n_out, arch.n_in)) / 1.5
    network = linear.lambda_balanced(
        arch.n_in, arch.n_hidden, arch.n_out, lam, scale, rank=arch.rank, key=key
    )
    return network, sigma


def solve(network, sigma, times=TIMES, **options):
    return linear.exact_flow(network, linear.Task.from_correlation(sigma), times, **options)


def gap(a, b):
    a, b = np.asarray(a), np.asarray(b)
    return float(np.max(np.abs(a - b)) / np.max(np.abs(b)))


QUICK = ("funnel", "inverted", "projector")
CASES = [
    pytest.param(arch, lam, id=f"{name}{lam:+g}", marks=() if name in QUICK else pytest.mark.slow)
    for name, arch in ARCHITECTURES.items()
    for lam in LAMBDAS
    if arch.admits(lam)
]


@pytest.mark.parametrize(("arch", "lam"), CASES)
def test_agrees_with_integration(arch, lam):
    network, sigma = make(arch, lam)
    task = linear.Task.from_correlation(sigma)
    exact = linear.exact_flow(network, task, TIMES)
    flow = linear.integrate_flow(network, task, TIMES, rtol=1e-11, atol=1e-13)
    assert int(flow.status) == 0 and bool(exact.is_ok)
    # The solver's own error, 1e-11 a step over some hundred steps.
    assert gap(exact.qqt, flow.qqt) < 2e-9
    assert gap(exact.qqt[0], network.q @ network.q.T) < 1e-14
    # Blocks of the state are what they are called.
    n = arch.n_in
    assert gap(exact.input_gram, exact.qqt[:, :n, :n]) < 1e-14
    assert gap(exact.function, exact.qqt[:, n:, :n]) < 1e-14
    assert gap(exact.output_gram, exact.qqt[:, n:, n:]) < 1e-14
    # Conservation: the flow's own balance never changes.
    later = linear.Network(flow.w1t[-1].T, flow.w2[-1])
    assert np.abs(np.asarray(linear.balance(later)) - np.asarray(linear.balance(network))).max() < 1e-9
    # The state stays positive semidefinite and gains no rank; the loss never rises.
    spectrum = np.linalg.eigvalsh(np.asarray(exact.qqt))
    assert float(spectrum.min()) > -1e-13 * float(spectrum.max())
    rank = arch.n_hidden if arch.rank is None else arch.rank
    tail = spectrum[:, : max(0, arch.n_in + arch.n_out - rank)]
    assert tail.size == 0 or float(np.abs(tail).max()) < 1e-13 * float(spectrum.max())
    assert bool((np.diff(np.asarray(linear.loss(exact, task))) <= 1e-14).all())


@pytest.mark.parametrize("lam", LAMBDAS)
def test_rank_deficient_task(lam):
    network, sigma = make(ARCHITECTURES["funnel"], lam)
    u, s, vt = jnp.linalg.svd(sigma, full_matrices=False)
    sigma = (u * s.at[1:].set(0)[None]) @ vt
    task = linear.Task.from_correlation(sigma)
    flow = linear.integrate_flow(network, task, TIMES, rtol=1e-11, atol=1e-13)
    assert gap(solve(network, sigma).qqt, flow.qqt) < 2e-9


@pytest.mark.parametrize(
    ("name", "lam"),
    [
        ("funnel", -2.0),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("inverted", -2.0), ("square", 0.0), ("wide", 0.0), ("projector", 1.5))
        ),
    ],
)
def test_riccati_equation(name, lam):
    """dM/dt by automatic differentiation is FM + MF − M², with −λ/2 on inputs and +λ/2 on outputs.

    The documents' rate sgn(|N_o − N_i|)λ/2 outside the task has the wrong sign for the funnel.
    """
    arch = ARCHITECTURES[name]
    network, sigma = make(arch, lam)

    def state(t):
        return solve(network, sigma, t[None]).qqt[0]

    f = np.block(
        [
            [-lam / 2 * np.eye(arch.n_in), np.asarray(sigma).T],
            [np.asarray(sigma), lam / 2 * np.eye(arch.n_out)],
        ]
    )
    both = jax.jit(lambda t: jax.jvp(state, (t,), (jnp.ones_like(t),)))
    for t in (0.0, 0.3, 2.0, 40.0):
        m, rate = both(jnp.asarray(t))
        expected = f @ m + m @ f - m @ m
        scale = jnp.max(jnp.abs(f)) * jnp.max(jnp.abs(m))
        assert jnp.max(jnp.abs(rate - expected)) < 1e-12 * scale


@pytest.mark.slow
@settings(max_examples=21)
@given(
    name=st.sampled_from(sorted(ARCHITECTURES)),
    lam=st.floats(-3, 3),
    seed=st.integers(0, 10_000),
    scale=st.floats(0.2, 2.0),
)
def test_symmetries(name, lam, seed, scale):
    arch = ARCHITECTURES[name]
    # The nearest λ that the architecture admits: its sign turned, or none.
    lam = next(value for value in (lam, -lam, 0.0) if arch.admits(value))
    network, sigma = make(arch, lam, seed, scale)
    w1, w2, n = network.w1, network.w2, arch.n_in
    m = solve(network, sigma).qqt
    # Overlaps of random weights may be small; they amplify rounding by their inverse.
    close = 1e-9
    swapped = solve(linear.Network(w2.T, w1.T), sigma.T).qqt
    assert gap(jnp.roll(swapped, (n, n), axis=(1, 2)), m) < close
    a = 1.7
    scaled = solve(linear.Network(a * w1, a * w2), a**2 * sigma, TIMES / a**2).qqt
    assert gap(scaled, a**2 * m) < close
    key = jr.split(jr.key(seed), 3)
    r, o, i = (jr.orthogonal(k, size) for k, size in zip(key, (arch.n_hidden, arch.n_out, n), strict=True))
    turned = solve(linear.Network(r @ w1, w2 @ r.T), sigma).qqt
    assert gap(turned, m) < close
    basis = jax.scipy.linalg.block_diag(i, o)
    moved = solve(linear.Network(w1 @ i.T, o @ w2), o @ sigma @ i.T).qqt
    assert gap(moved, basis[None] @ m @ basis.T[None]) < close
    # Semigroup: going on from t = 1.5 for another 1.0.
    later = solve(solve(network, sigma).network_at(4), sigma, TIMES * 0.4)
    assert gap(later.qqt[-1], m[-1]) < close


@pytest.mark.slow
def test_time_constant_and_isotropic_inputs(key):
    arch = ARCHITECTURES["square"]
    network, _ = make(arch, -1.0)
    x_key, y_key = jr.split(key)
    x, y = linear.whiten(jr.normal(x_key, (3, 8))), jr.normal(y_key, (3, 8))
    reference = linear.integrate_flow(network, linear.Task(2 * x, y), TIMES / 0.7, rtol=1e-11, atol=1e-13)
    exact = linear.exact_flow(network, linear.Task(2 * x, y), TIMES, tau=0.7)
    assert gap(exact.qqt, reference.qqt) < 1e-9
    assert linear.Task(2 * x, y).is_spanning


@pytest.mark.slow
def test_inputs_on_a_subspace(key):
    """Two of four input directions are used: the exact state is that of the weights on their span."""
    e = jr.orthogonal(key, 4)[:, :2]
    x = 1.5 * e @ linear.whiten(jr.normal(key, (2, 6)))
    task = linear.Task(x, jr.normal(jr.key(5), (3, 6)))
    assert task.is_isotropic and not task.is_spanning
    seen = linear.lambda_balanced(2, 2, 3, 1.0, key=jr.key(1))
    outside = jr.normal(jr.key(2), (2, 4)) @ (jnp.eye(4) - e @ e.T)
    network = linear.Network(seen.w1 @ e.T + outside, seen.w2)
    exact = linear.exact_flow(network, task, TIMES)
    flow = linear.integrate_flow(network, task, TIMES, rtol=1e-11, atol=1e-13)
    assert gap(exact.function, flow.function @ (e @ e.T)[None]) < 1e-9
    assert gap(exact.output_gram, flow.output_gram) < 1e-9
    assert gap(linear.loss(exact, task), linear.loss(flow, task)) < 1e-9
    assert gap(linear.ntk_distance(exact, task)[1:], linear.ntk_distance(flow, task)[1:]) < 1e-8


def test_exact_saddle_stays_a_saddle():
    """A mode without overlap is never learned, though rounding of the rotated weights is not zero."""
    task = linear.Task.from_correlation(jr.normal(jr.key(3), (4, 4)))
    s = jnp.linalg.svd(task.target)[1]
    network = linear.aligned(task, 4, 0.0, strengths=jnp.asarray([0.5, 0.0, 0.2, 0.0]), key=jr.key(0))
    times = jnp.asarray([10.0, 1e3, 1e6])
    exact = linear.exact_flow(network, task, times)
    stuck = 0.5 * (s[1] ** 2 + s[3] ** 2)
    np.testing.assert_allclose(linear.loss(exact, task)[1:], stuck, rtol=1e-12)
    # With the tolerance off the rounding noise grows and escapes.
    escaped = linear.exact_flow(network, task, times, tolerance=0.0)
    assert float(linear.loss(escaped, task)[-1]) < 0.1 * float(stuck)
    # Float32 weights in float64 carry noise of their own precision.
    rough = linear.Network(*(w.astype(jnp.float32).astype(float) for w in (network.w1, network.w2)))
    held = linear.exact_flow(rough, task, times, tolerance=1e-6)
    np.testing.assert_allclose(linear.loss(held, task)[1:], stuck, rtol=1e-5)


def test_zero_balanced_square_network_may_end_on_a_saddle():
    """Half of zero-balanced square weights cannot converge (the documents exclude them as "B singular")."""
    sigma = jnp.diag(jnp.asarray([2.0, 1.0, 0.5]))
    network = linear.lambda_balanced(3, 3, 3, 0.0, 0.5, key=jr.key(0))
    flip = jnp.asarray([1.0, 1.0, -1.0])
    both = [network, linear.Network(network.w1, flip[:, None] * network.w2)]
    signs = [float(jnp.linalg.det(n.function)) > 0 for n in both]
    losses = [
        float(linear.loss(solve(n, sigma, jnp.asarray([1e5])), linear.Task.from_correlation(sigma))[0])
        for n in both
    ]
    good, bad = losses[signs.index(True)], losses[signs.index(False)]
    assert good < 1e-25
    assert abs(bad - 0.5 * 0.5**2) < 1e-6


def test_continuous_at_zero_balance():
    arch = ARCHITECTURES["square"]
    key = jr.key(4)
    sigma = jr.normal(jr.key(1), (3, 3))
    state = jax.jit(
        lambda lam: solve(linear.lambda_balanced(3, 3, 3, lam, 0.8, key=key), sigma, TIMES[:5]).qqt
    )
    middle = state(0.0)
    for lam in (1e-9, -1e-9):
        assert gap(state(lam), middle) < 1e-7
    assert arch.admits(-1.0)


@pytest.mark.parametrize("lam", [-1e3, 1e3])
def test_huge_times_and_balances_are_finite(lam):
    network, sigma = make(ARCHITECTURES["square"], lam)
    exact = solve(network, sigma, jnp.asarray([0.0, 1e-9, 1e3, 1e6, 1e9]))
    assert bool(jnp.isfinite(exact.qqt).all())
    assert gap(exact.function[-1], sigma) < 1e-12


def test_zero_weights_stay_zero():
    network = linear.Network(jnp.zeros((2, 3)), jnp.zeros((4, 2)))
    exact = solve(network, jr.normal(jr.key(0), (4, 3)), jnp.asarray([0.0, 1.0, 1e4]))
    assert int(exact.status) == 0 and float(jnp.abs(exact.qqt).max()) == 0
