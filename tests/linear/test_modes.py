"""Aligned modes: closed forms against integration, limits, conserved quantities, derivatives."""

import functools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from jaxtyping import TypeCheckError
from scipy.integrate import quad, solve_ivp

from nullcline import linear

S = jnp.array([1.5, 0.65, 0.6, 0.0, 0.8])
A0 = jnp.array([-4.9, 3.1, 1e-3, 0.4, 0.0])
TIMES = jnp.array([0.0, 0.1, 0.5, 1.0, 3.0, 10.0])


def integrate(field, start, times):
    """Tight reference solve that stops at every time."""
    solution = solve_ivp(
        field, (0, float(times[-1])), start, method="LSODA", rtol=1e-12, atol=1e-15, t_eval=np.asarray(times)
    )
    return solution.y.T


@pytest.mark.parametrize("lam", [0.0, 0.5, -0.5, 1e-6, 30.0, -30.0])
def test_layers_follow_the_flow(lam):
    modes = linear.mode_flow(S, A0, TIMES, lam=lam)
    for j, s in enumerate(np.asarray(S)):
        start = np.array([modes.first[0, j], modes.second[0, j]])
        expected = integrate(lambda t, w, s=s: (s - w[0] * w[1]) * w[::-1], start, TIMES)
        got = np.stack([modes.first[:, j], modes.second[:, j]], axis=1)
        # LSODA at rtol 1e-12 keeps about 1e-10 over these times.
        np.testing.assert_allclose(got, expected, atol=3e-10)


@pytest.mark.parametrize("lam", [0.0, 2.0, -2.0, 1e3, -1e3])
def test_start_and_conservation(lam):
    times = jnp.array([0.0, 1e-6, 1e-2, 1.0, 1e3, 1e6])
    modes = linear.mode_flow(S, A0, times, lam=lam)
    np.testing.assert_allclose(modes.strength[0], A0, rtol=1e-14)
    size = jnp.maximum(1.0, modes.second**2 + modes.first**2)
    assert jnp.max(jnp.abs(modes.second**2 - modes.first**2 - lam) / size) < 1e-14
    if lam != 0:
        np.testing.assert_allclose(modes.strength[-1], S, rtol=1e-13, atol=1e-13)


def test_zero_balance_is_the_sigmoid_and_negative_strength_a_saddle():
    s, a0 = jnp.array([1.3, 1.3]), jnp.array([0.01, -0.01])
    times = jnp.linspace(0.0, 20.0, 40)
    strength = linear.mode_flow(s, a0, times, lam=0.0).strength
    np.testing.assert_allclose(strength[:, 0], 1.3 / (1 + 129 * jnp.exp(-2.6 * times)), rtol=1e-13)
    late = linear.mode_flow(s, a0, jnp.array([1e2, 1e6]), lam=0.0).strength[:, 1]
    assert jnp.all(late <= 0) and jnp.all(late > -1e-100)


def test_balance_per_mode_and_continuity_at_zero():
    lam = jnp.array([0.3, -0.7, 0.0, 2.0, -1.0])
    together = linear.mode_flow(S, A0, TIMES, lam=lam).strength
    for j in range(5):
        alone = linear.mode_flow(S[j : j + 1], A0[j : j + 1], TIMES, lam=lam[j]).strength[:, 0]
        np.testing.assert_allclose(together[:, j], alone, rtol=1e-12)
    near = [linear.mode_flow(S[1:3], A0[1:3], TIMES, lam=lam).strength for lam in (-1e-9, 0.0, 1e-9)]
    np.testing.assert_allclose(near[0], near[1], atol=1e-8)
    np.testing.assert_allclose(near[2], near[1], atol=1e-8)


@pytest.mark.parametrize("lam", [0.4, -3.0])
def test_rate_near_the_target_is_k(lam):
    k = np.hypot(lam, 2 * 0.9)
    times = jnp.array([8.0, 8.5]) / k
    gap = 0.9 - linear.mode_flow(jnp.array([0.9]), jnp.array([0.5]), times, lam=lam).strength[:, 0]
    # Corrections to the pure exponential are of relative size exp(-8).
    np.testing.assert_allclose(jnp.log(gap[0] / gap[1]), 0.5, rtol=1e-3)


def test_derivatives_match_finite_differences():
    @jax.jit
    def value(x):
        return linear.mode_flow(jnp.array([0.8]), x[1:2], x[2:], lam=x[0]).strength[0, 0]

    point, steps = jnp.array([-0.6, 0.2, 1.1]), 1e-5 * jnp.eye(3)
    expected = [(value(point + h) - value(point - h)) / 2e-5 for h in steps]
    np.testing.assert_allclose(jax.jit(jax.grad(value))(point), jnp.stack(expected), rtol=1e-8)


def test_tau_and_float32():
    slow = linear.mode_flow(S, A0, 5.0 * TIMES, lam=0.5, tau=5.0)
    exact = linear.mode_flow(S, A0, TIMES, lam=0.5)
    np.testing.assert_allclose(slow.strength, exact.strength, rtol=1e-13)
    single = linear.mode_flow(*(x.astype(jnp.float32) for x in (S, A0, TIMES)), lam=0.5)
    assert single.strength.dtype == jnp.float32
    np.testing.assert_allclose(single.strength, exact.strength, atol=5e-6)


def test_times_in_single_precision_cost_modes_in_double_none():
    single = TIMES.astype(jnp.float32)
    for flow in (
        lambda t: linear.mode_flow(S, A0, t, lam=0.5, tau=0.3).strength,
        lambda t: linear.deep_mode_flow(S, A0, t, depth=3, tau=0.3),
    ):
        np.testing.assert_array_equal(flow(single), flow(single.astype(float)))


def deep_field(t, u, s, depth):
    return depth * np.abs(u) ** (2 - 2 / depth) * (s - u)


@pytest.mark.parametrize("depth", [2, 3, 4, 7])
def test_deep_modes_follow_the_flow(depth):
    s, u0 = jnp.array([1.5, 0.65, 0.6, 0.0, 2.0, 1.0]), jnp.array([1e-2, 3.1, -0.5, 0.4, 2.0, 0.0])
    got = linear.deep_mode_flow(s, u0, TIMES, depth=depth)
    for j in range(6):
        field = functools.partial(deep_field, s=float(s[j]), depth=depth)
        expected = integrate(field, [float(u0[j])], TIMES)
        np.testing.assert_allclose(got[:, j], expected[:, 0], atol=1e-9)


def test_deep_modes_join_the_other_closed_forms():
    s, u0 = jnp.array([1.2, 0.4]), jnp.array([0.05, 0.9])
    two = linear.mode_flow(s, u0, TIMES, lam=0.0).strength
    np.testing.assert_allclose(linear.deep_mode_flow(s, u0, TIMES, depth=2), two, rtol=1e-12)
    one = linear.deep_mode_flow(s, u0, TIMES, depth=1)
    np.testing.assert_allclose(one, np.asarray(s) + np.exp(-TIMES)[:, None] * np.asarray(u0 - s), rtol=1e-14)
    late = linear.deep_mode_flow(s, u0, jnp.array([1e4, 1e6]), depth=5)
    np.testing.assert_allclose(late, jnp.stack([s, s]), rtol=1e-13)


def test_deep_modes_at_great_depth():
    """L t tends to ln[u (s - u0) / (u0 (s - u))] / s^2 + (1/u0 - 1/u) / s as the depth L grows."""
    s, u0, depth = 1.3, 0.2, 4000
    u = float(
        linear.deep_mode_flow(jnp.array([s]), jnp.array([u0]), jnp.array([4.0 / depth]), depth=depth)[0, 0]
    )
    limit = np.log(u * (s - u0) / (u0 * (s - u))) / s**2 + (1 / u0 - 1 / u) / s
    # The next term is of relative order 1 / depth.
    np.testing.assert_allclose(limit, 4.0, rtol=5e-3)


def deep_error(s, u0, t, u, depth):
    """Relative error of u at time t: the error of the time to get there, times the rate of change."""
    s, u0, t, u = (mpmath.mpf(float(x)) for x in (s, u0, t, u))
    p, sign = 2 - mpmath.mpf(2) / depth, mpmath.sign(u0)

    def clock(ratio):  # antiderivative of r^(p-1) / (1 - sign r)
        if sign * ratio > 1:
            return -(ratio ** (p - 1)) / (p - 1) * mpmath.hyp2f1(1, 1 - p, 2 - p, 1 / ratio)
        return ratio**p / p * mpmath.hyp2f1(1, p, p + 1, sign * ratio)

    if s == 0:
        return float(abs(u / u0 * (1 + p * depth * abs(u0) ** p * t) ** (1 / p) - 1))
    start, now = s / abs(u0), s / abs(u)
    off = clock(now) - clock(start) - depth * s**p * t
    return float(abs(off * (1 - sign * now) / now**p))


@pytest.mark.parametrize("depth", [3, 10])
def test_deep_modes_at_any_ratio_of_strength_and_task(depth):
    s = jnp.array([0.0, 1e-300, 1e-17, 1e-12, 1e-12, 1e-6, 1e-6, 0.01, 0.9, 1.1, 1.0, 3.0, 1e3, 1e3])
    u0 = jnp.array([-1.0, 1.0, 1.0, 1.0, -1.0, 1.0, -1.0, 1e3, 1.0, 1.0, 1e-3, -1e-3, 1e-12, -10.0])
    times = jnp.array([1e-6, 1e-3, 0.3, 30.0])
    with mpmath.workdps(50):
        got = np.asarray(linear.deep_mode_flow(s, u0, times, depth=depth))
        errors = [
            deep_error(s[j], u0[j], times[i], got[i, j], depth)
            for i, j in np.ndindex(got.shape)
            if abs(got[i, j] / s[j] - 1) > 1e-9  # nearer to the end, rounding of u takes forever
        ]
    assert len(errors) > 45
    assert max(errors) < 1e-13


def deep_value(x):
    return linear.deep_mode_flow(x[:1], x[1:2], x[2:], depth=3)[0, 0]


deep_gradient = jax.jit(jax.vmap(jax.grad(deep_value)))


def test_deep_derivatives_where_differences_vanish():
    learned, late = jnp.array([[1.0, 1, 1], [1, 0, 1]]), jnp.array([[1.0, 0.3, 1e5], [2, 2, 1e5]])
    without_task = jnp.array([[0.0, 0.5, 1], [0, -0.5, 1], [1e-14, 0.5, 1]])
    got = deep_gradient(jnp.concatenate([learned, late, without_task]))
    np.testing.assert_allclose(got[:2], [[1 - np.exp(-3), np.exp(-3), 0], [0, 1, 0]], rtol=1e-14)
    np.testing.assert_allclose(got[2:4], [[1, 0, 0]] * 2, rtol=1e-14, atol=1e-300)
    power = (1 + 4 * 0.5 ** (4 / 3)) ** -1.75  # (u / u0)^(7/3)
    falling, rising = ([(1 - power) / (7 / 3), power, sign * 3 * 0.5 ** (7 / 3) * power] for sign in (-1, 1))
    np.testing.assert_allclose(got[4:], [falling, rising, falling], rtol=1e-12)


def test_deep_second_derivatives_match_finite_differences():
    points = [
        [1, 0.1, 1],
        [1, 1, 1],
        [1.1, 2.3, 0.7],
        [1.1, -0.3, 0.7],
        [0.02, 0.5, 1],
        [1, 2, 9],
        [1, -3, 1e5],
    ]
    points = jnp.array(points)
    got = jax.jit(jax.vmap(jax.jacrev(jax.jacfwd(deep_value))))(points)
    steps = 1e-5 * jnp.eye(3)[:, None]
    expected = [(deep_gradient(points + h) - deep_gradient(points - h)) / 2e-5 for h in steps]
    # Differences are off by the square of the step over that of the smallest argument, and by rounding.
    np.testing.assert_allclose(got, jnp.stack(expected, axis=2), rtol=1e-5, atol=1e-8)


def test_deep_derivative_matches_finite_differences():
    @jax.jit
    def value(x):
        return linear.deep_mode_flow(x[:1], x[1:2], x[2:], depth=3)[0, 0]

    gradient = jax.jit(jax.grad(value))
    for point in ([1.1, 0.3, 0.7], [1.1, 2.3, 0.7], [1.1, -0.3, 0.7]):
        point = jnp.array(point)
        steps = 1e-5 * jnp.eye(3)
        expected = [(value(point + h) - value(point - h)) / 2e-5 for h in steps]
        np.testing.assert_allclose(gradient(point), jnp.stack(expected), rtol=1e-7)


@pytest.mark.slow
def test_unequal_layers():
    s = jnp.array([1.0, 0.5, 1.0])
    w0 = jnp.array([[0.1, -0.2, 0.7], [0.5, 0.3, 0.7], [0.9, 0.4, 0.7]])
    times = jnp.array([0.5, 2.0, 50.0])
    flow = linear.layer_flow(s, w0, times)
    assert bool(jnp.all(flow.is_solved))
    squares, start = flow.layers**2, w0**2
    conserved = jnp.stack([start[1:] - start[:1]] * 3)
    np.testing.assert_allclose(squares[:, 1:] - squares[:, :1], conserved, atol=1e-7)
    # Time by quadrature over the square of the first layer, an independent route to the same curve.
    shifts = np.asarray(start[:, 0] - start[0, 0])

    def slowness(q):
        u = np.sqrt(np.prod(q + shifts))
        return 1 / (2 * u * (1 - u))

    elapsed = quad(slowness, float(start[0, 0]), float(squares[1, 0, 0]), epsabs=1e-12)[0]
    np.testing.assert_allclose(elapsed, 2.0, rtol=1e-7)
    # A negative start crosses zero where some layer's square is smaller than the others', and is learned.
    np.testing.assert_allclose(flow.strength[-1, :2], s[:2], rtol=1e-3)
    equal = linear.deep_mode_flow(s[2:], jnp.array([0.7**3]), times, depth=3)
    np.testing.assert_allclose(flow.strength[:, 2:], equal, rtol=1e-7)


def test_bad_times_of_unequal_layers_show_in_the_result():
    """Inside a compiled program nothing can raise, and the solver must not abort it."""
    flow = jax.jit(lambda t: linear.layer_flow(jnp.array([1.0]), jnp.array([[0.1], [0.2]]), t))
    assert flow(jnp.array([0.5, 1.0])).is_solved.all()
    for times in ([1.0, 0.5], [-1.0, 0.5], [0.0, jnp.nan]):
        bad = flow(jnp.array(times))
        assert not bad.is_solved.any() and np.isnan(bad.layers).all()


def test_a_mode_at_rest_without_a_task_stays_there():
    flow = linear.layer_flow(
        jnp.array([0.0, 1.0]), jnp.array([[0.0, 0.5], [0.0, 0.5]]), jnp.array([0.0, 1.0])
    )
    np.testing.assert_array_equal(flow.strength[:, 0], 0)
    assert flow.is_solved.all()


@pytest.mark.slow
def test_layers_from_small_strengths_of_a_batch_in_single_precision():
    """Two equal layers: from w0 half of the strength is reached at ln(1 / w0)."""
    w0 = jnp.array([1e-3, 1e-10], jnp.float32)

    def flow(w0):
        start = jnp.stack([jnp.zeros_like(w0), w0])
        times = jnp.stack([-jnp.log(w0), jnp.full_like(w0, 200)])
        return linear.layer_flow(jnp.ones_like(start), jnp.stack([start, start]), times)

    batch = jax.vmap(flow)(w0)
    assert batch.strength.dtype == jnp.float32 and bool(jnp.all(batch.is_solved))
    # The error of the rate, about the tolerance of 1e-5, acts for up to 23 units of time.
    np.testing.assert_allclose(batch.strength[:, :, 1], [[0.5, 1]] * 2, rtol=5e-4)
    np.testing.assert_array_equal(batch.strength[:, :, 0], 0)


def test_bad_arguments():
    one = jnp.array([1.0])
    with pytest.raises(ValueError, match=r"`s` must hold singular values, not negative, got -1\.0"):
        linear.mode_flow(-one, one, one)
    with pytest.raises(ValueError, match="`a0` must be finite"):
        linear.mode_flow(one, one / 0, one)
    with pytest.raises(ValueError, match=r"`times` must be at least 0, got -1\.0"):
        linear.mode_flow(one, one, -one)
    with pytest.raises(ValueError, match="`tau`"):
        linear.mode_flow(one, one, one, tau=0.0)
    with pytest.raises((ValueError, TypeCheckError)):
        linear.mode_flow(one, jnp.ones(2), one)
    with pytest.raises(ValueError, match="`depth` must be an integer of at least 1, got 0"):
        linear.deep_mode_flow(one, one, one, depth=0)
    with pytest.raises(ValueError, match="sorted"):
        linear.layer_flow(one, jnp.ones((3, 1)), jnp.array([2.0, 1.0]))
