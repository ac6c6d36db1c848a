"""Corrections to anguita2024 and domine2025: the exact solution, and which weights it is for.

Like those of ``test_errata``: printed and corrected formulas beside an independent measurement.
"""

import math

import jax.numpy as jnp
import jax.random as jr
import mpmath as mp
import numpy as np
import pytest
import scipy.linalg
from flow_reference import balanced_weights, integrate_weights, off, stacked
from scipy.optimize import minimize

from nullcline import linear


def riccati(sigma, lam):
    """F of the Riccati equation, anguita2024 (3.38)."""
    n_out, n_in = sigma.shape
    return np.block([[-lam / 2 * np.eye(n_in), sigma.T], [sigma, lam / 2 * np.eye(n_out)]])


def rotation(sigma, lam, is_printed=False, factor=1.0):
    """O of anguita2024 (3.52) for a square task, or of its Theorem 3.3.1 (2); and the singular values."""
    u, s, vt = np.linalg.svd(sigma)
    x = factor * lam / (np.sqrt(lam**2 + 4 * s**2) + 2 * s)
    a = 1 / np.sqrt(2 * (1 + x**2))
    less, more = a - x * a, a + x * a
    lower = [u * less, -u * more] if is_printed else [u * more, -u * less]
    return np.block([[vt.T * less, vt.T * more], lower]), s


def state(p, rates, q, t, power=2.0, invert=True):
    """QQᵀ by domine2025, Theorem A.3, in a basis of eigenvectors."""
    y = p.T @ q
    inner = np.eye(q.shape[1]) + y.T @ ((np.expm1(power * rates * t) / (2 * rates))[:, None] * y)
    grown = p @ (np.exp(rates * t)[:, None] * y)
    return grown @ (np.linalg.inv(inner) if invert else inner) @ grown.T


def test_rotation_of_the_square_solution():
    """anguita2024, Theorem 3.3.1 (2), and domine2025 (14) print a lower row (Ũ(A−XA), −Ũ(A+XA)).

    It is (Ũ(A+XA), −Ũ(A−XA)), as in anguita2024 (3.52) and domine2025 (7).
    """
    lam, sigma = 0.8, np.asarray(jr.normal(jr.key(3), (3, 3)))
    f, grown = riccati(sigma, lam), scipy.linalg.expm(0.7 * riccati(sigma, lam))
    o, s = rotation(sigma, lam)
    rates = np.concatenate([np.hypot(s, lam / 2), -np.hypot(s, lam / 2)])
    np.testing.assert_allclose(o.T @ o, np.eye(6), atol=1e-14)
    np.testing.assert_allclose((o * rates) @ o.T, f, atol=1e-14)
    np.testing.assert_allclose((o * np.exp(0.7 * rates)) @ o.T, grown, atol=1e-13)
    # The theorem has the wrong row on both sides, (14) on its left only.
    printed, _ = rotation(sigma, lam, is_printed=True)
    assert off((printed * rates) @ printed.T, f) > 0.3
    assert off((printed * np.exp(0.7 * rates)) @ o.T, grown) > 0.2
    # (15) prints O e^Λ O, without the transpose.
    assert off((o * np.exp(0.7 * rates)) @ o, grown) > 1
    # Equation 3.49 prints an X without its factor 2.
    halved, _ = rotation(sigma, lam, factor=0.5)
    assert off((halved * rates) @ halved.T, f) > 0.1


def test_ratio_of_the_rotation_at_zero_balance():
    """X = (√(λ² + 4s²) − 2s)/λ, as printed, is 0/0 at λ = 0 and has no digits near it; λ/(√ + 2s) has."""
    s = np.array([2.0, 1.0, 0.5])

    def printed(lam):
        with np.errstate(invalid="ignore"):
            return (np.sqrt(lam**2 + 4 * s**2) - 2 * s) / np.float64(lam)

    def stable(lam):
        return lam / (np.sqrt(lam**2 + 4 * s**2) + 2 * s)

    assert np.all(np.isnan(printed(0.0))) and np.all(stable(0.0) == 0)
    with mp.workdps(50):
        lam = mp.mpf(1e-9)
        exact = [float((mp.sqrt(lam**2 + 4 * mp.mpf(x) ** 2) - 2 * mp.mpf(x)) / lam) for x in s]
    np.testing.assert_allclose(stable(1e-9), exact, rtol=1e-14)
    # λ² is lost beside 4s²: every digit is.
    assert off(printed(1e-9), exact) == 1
    o, _ = rotation(np.diag(s), 0.0)
    np.testing.assert_allclose((o * np.concatenate([s, -s])) @ o.T, riccati(np.diag(s), 0.0), atol=1e-14)


def test_bracket_is_inverted_and_exponents_are_twice_the_rates():
    """Theorem 3.3.1 (3) lacks the inverse; 3.67-3.76 and domine2025 (30) print e^{Λt}; 3.60-3.61 ŨᵀŨ = I."""
    lam, t = 0.8, 0.7
    network = linear.lambda_balanced(3, 3, 3, lam=lam, key=jr.key(4))
    w1, w2, q = (np.asarray(x) for x in (network.w1, network.w2, network.q))
    sigma = np.asarray(jr.normal(jr.key(3), (3, 3)))
    task = linear.Task.from_correlation(jnp.asarray(sigma))
    exact = np.asarray(linear.exact_flow(network, task, jnp.array([t])).qqt[0])
    np.testing.assert_allclose(
        exact, stacked(*integrate_weights(w1, w2, sigma, np.eye(3), [t])[0]), atol=1e-8
    )
    o, s = rotation(sigma, lam)
    rates = np.concatenate([np.hypot(s, lam / 2), -np.hypot(s, lam / 2)])
    np.testing.assert_allclose(state(o, rates, q, t), exact, rtol=1e-11, atol=1e-12)
    assert off(state(o, rates, q, t, power=1.0), exact) > 2

    # W2(0) = U S2 Rᵀ, W1(0) = R S1 Vᵀ; (A − XA, A + XA) is √2 of what the blocks of O hold.
    u, strength, vt = np.linalg.svd(w2 @ w1)
    s1, s2 = (np.sqrt((np.hypot(lam, 2 * strength) + sign * lam) / 2) for sign in (-1, 1))
    r = w2.T @ u / s2
    np.testing.assert_allclose((r * s1) @ vt, w1, atol=1e-13)
    task_u, _, task_vt = np.linalg.svd(sigma)
    less, more = (math.sqrt(2) * np.diag(task_vt @ o[:3, k : k + 3]) for k in (0, 3))

    def theorem(turned, is_inverted=True):
        """B, C with `turned` for S2 UᵀŨ, then Z and QQᵀ by Theorem 3.3.1 (3)."""
        b = turned * more + s1[:, None] * (vt @ task_vt.T) * less
        c = turned * less - s1[:, None] * (vt @ task_vt.T) * more
        rate, decay, inverse = rates[:3], np.exp(-rates[:3] * t), np.linalg.inv(b)
        turn = (decay[:, None] * c.T) @ (inverse.T * decay)
        z = np.concatenate(
            [
                task_vt.T @ (np.diag(less) - more[:, None] * turn),
                task_u @ (np.diag(more) + less[:, None] * turn),
            ]
        )
        left = decay[:, None] * inverse
        middle = 4 * left @ left.T + np.diag((1 - decay**2) / rate)
        middle -= left @ c @ np.diag((decay**2 - 1) / rate) @ c.T @ left.T
        return b, c, z, z @ (np.linalg.inv(middle) if is_inverted else middle) @ z.T

    b, c, z, right = theorem(s2[:, None] * (u.T @ task_u))
    np.testing.assert_allclose(np.concatenate([b.T, -c.T]) @ r.T / math.sqrt(2), o.T @ q, atol=1e-13)
    np.testing.assert_allclose(right, exact, atol=1e-11)
    assert off(theorem(s2[:, None] * (u.T @ task_u), is_inverted=False)[-1], exact) > 1
    # 3.77 prints e^{S̃t} C Bᵀ e^{−S̃t} for e^{−S̃t} Cᵀ B⁻ᵀ e^{−S̃t} in Z, and a minus in its lower row.
    growth, grown = np.exp(rates[:3] * t), scipy.linalg.expm(riccati(sigma, lam) * t) @ q
    np.testing.assert_allclose((z * growth) @ b.T @ r.T / 2, grown, atol=1e-12)
    # (3.65 has Bᵀ and e^{S̃t} behind it in the wrong order.)
    assert off((z @ b.T * growth) @ r.T / 2, grown) > 0.3
    turn = (growth[:, None] * c) @ (b.T / growth)
    upper, lower = np.diag(less) - more[:, None] * turn, np.diag(more) - less[:, None] * turn
    printed = np.concatenate([task_vt.T @ upper, task_u @ lower])
    assert off((printed * growth) @ b.T @ r.T / 2, grown) > 1.5
    b, c, _, wrong = theorem(np.diag(s2) @ task_u.T @ task_u)
    assert off(np.concatenate([b.T, -c.T]) @ r.T / math.sqrt(2), o.T @ q) > 1
    assert off(wrong, exact) > 0.4


def test_zero_balanced_solution():
    """Equation 2.30 lacks the inverse of its bracket, and prints e^{−S̃t} − I where e^{−2S̃t} − I belongs."""
    w1, w2 = balanced_weights((3, 3, 3), 0.0, 3)
    u, s, vt = np.linalg.svd(w2 @ w1)
    sigma, t = np.asarray(jr.normal(jr.key(3), (3, 3))), 0.7
    # The determinants agree in sign, or B would be singular.
    sigma = sigma * np.sign(np.linalg.det(sigma) * np.linalg.det(w2 @ w1))
    task_u, rate, task_vt = np.linalg.svd(sigma)
    b, c = u.T @ task_u + vt @ task_vt.T, u.T @ task_u - vt @ task_vt.T
    decay, inverse = np.exp(-rate * t), np.linalg.inv(b)
    turn = (decay[:, None] * c.T) @ (inverse.T * decay)
    z = np.concatenate([task_vt.T @ (np.eye(3) - turn), task_u @ (np.eye(3) + turn)])

    def bracket(power):
        left = decay[:, None] * inverse
        middle = 4 * (left / s) @ left.T + np.diag((1 - decay**2) / rate)
        return middle - left @ c @ np.diag((decay**power - 1) / rate) @ c.T @ left.T

    network, task = linear.Network(jnp.asarray(w1), jnp.asarray(w2)), jnp.asarray(sigma)
    exact = linear.exact_flow(network, linear.Task.from_correlation(task), jnp.array([t])).qqt[0]
    reference = stacked(*integrate_weights(w1, w2, sigma, np.eye(3), [t])[0])
    np.testing.assert_allclose(exact, reference, atol=1e-8)
    np.testing.assert_allclose(z @ np.linalg.inv(bracket(2)) @ z.T, exact, atol=1e-11)
    assert off(z @ bracket(1) @ z.T, exact) > 50
    assert off(z @ np.linalg.inv(bracket(1)) @ z.T, exact) > 0.015


@pytest.mark.parametrize(("sizes", "rank", "lam"), [((2, 3, 5), 3, 0.7), ((3, 5, 3), 2, -0.7)])
def test_riccati_solution_needs_no_full_rank(sizes, rank, lam):
    """Theorem 2.2.4 prints F with n_h + n_o rows and n_h + n_i columns, and asks for Q(0) of full rank."""
    n_in, n_hidden, n_out = sizes
    w1, w2 = balanced_weights(sizes, lam, rank)
    sigma, q, t = np.asarray(jr.normal(jr.key(5), (n_out, n_in))), np.concatenate([w1.T, w2]), 0.7
    assert np.linalg.matrix_rank(q) == rank
    rates, p = np.linalg.eigh(riccati(sigma, lam))
    reference = stacked(*integrate_weights(w1, w2, sigma, np.eye(n_in), [t])[0])
    np.testing.assert_allclose(state(p, rates, q, t), reference, atol=1e-8)
    with pytest.raises(ValueError, match="mismatch"):
        np.matmul(np.zeros((n_hidden + n_out, n_hidden + n_in)), q @ q.T)


def test_wide_networks_are_balanced_on_a_projector():
    """domine2025, A2 and Algorithm 1: D = λI cannot hold for λ ≠ 0 if N_h exceeds N_i and N_o."""
    network = linear.lambda_balanced(3, 5, 3, lam=1.0, rank=3, key=jr.key(0))
    d, q = np.asarray(linear.balance(network)), np.asarray(network.q)
    np.testing.assert_allclose(q @ d, q, atol=1e-13)
    # The solution holds all the same.
    sigma = np.asarray(jr.normal(jr.key(3), (3, 3)))
    rates, p = np.linalg.eigh(riccati(sigma, 1.0))
    reference = stacked(*integrate_weights(network.w1, network.w2, sigma, np.eye(3), [0.7])[0])
    np.testing.assert_allclose(state(p, rates, q, 0.7), reference, atol=1e-8)


@pytest.mark.parametrize(
    "sizes", [(3, 5, 3), (5, 4, 2), (3, 5, 5), (2, 4, 5), (4, 2, 4), (2, 2, 4), (4, 2, 2), (3, 3, 3)]
)
@pytest.mark.parametrize("lam", [1.0, -1.0])
def test_which_balances_are_possible(sizes, lam):
    """Theorem 3.4.1, domine2025's A2, and the algorithms, which look at no size: no weights come near D = λI.

    The least ‖D − λI‖ over all weights is |λ|√(N_h − N_o) for λ > 0 and |λ|√(N_h − N_i) for λ < 0, if
    these are positive: W2ᵀW2 (W1W1ᵀ) vanishes on as many directions. The library refuses just these.
    """
    n_in, n_hidden, n_out = sizes

    def distance(weights):
        w1, w2 = weights[: n_hidden * n_in].reshape(n_hidden, n_in), weights[n_hidden * n_in :]
        w2 = w2.reshape(n_out, n_hidden)
        gap = w2.T @ w2 - w1 @ w1.T - lam * np.eye(n_hidden)
        return np.sum(gap**2), np.concatenate([(-4 * gap @ w1).ravel(), (4 * w2 @ gap).ravel()])

    rng, options = np.random.default_rng(0), {"maxiter": 2000, "ftol": 0, "gtol": 1e-12}
    starts = rng.normal(size=(3, n_hidden * (n_in + n_out)))
    least = min(minimize(distance, x, jac=True, method="L-BFGS-B", options=options).fun for x in starts)
    missing = max(0, n_hidden - (n_out if lam > 0 else n_in))
    np.testing.assert_allclose(math.sqrt(least), math.sqrt(missing), atol=1e-8)
    if missing:
        narrow = ("n_out", n_out) if lam > 0 else ("n_in", n_in)
        with pytest.raises(ValueError, match="`{}` = {}".format(*narrow)):
            linear.lambda_balanced(*sizes, lam=lam, key=jr.key(0))
        # Balanced on a projector that misses as many directions: nothing is nearer.
        near = linear.lambda_balanced(*sizes, lam=lam, rank=n_hidden - missing, key=jr.key(0))
        np.testing.assert_allclose(
            np.linalg.norm(linear.balance(near) - lam * np.eye(n_hidden)), math.sqrt(missing), rtol=1e-12
        )
    else:
        network = linear.lambda_balanced(*sizes, lam=lam, key=jr.key(0))
        np.testing.assert_allclose(linear.balance(network), lam * np.eye(n_hidden), atol=1e-13)


def theorem_a3(w1, w2, sigma, lam, t, outside):
    """QQᵀ by domine2025, equations 10-13 and 20-21, with `outside(λ⊥, t)` in the perpendicular terms."""
    u, s, vt = np.linalg.svd(sigma)
    rate = np.hypot(s, lam / 2)
    h = np.sign(lam) * np.sqrt((rate - s) / (rate + s))
    less, more = (1 - h) / np.sqrt(1 + h**2), (1 + h) / np.sqrt(1 + h**2)
    v, v_rest, u, u_rest = vt[: s.size].T, vt[s.size :].T, u[:, : s.size], u[:, s.size :]
    b = (w2.T @ u) * more + (w1 @ v) * less
    c = (w2.T @ u) * less - (w1 @ v) * more
    grow, decay = np.exp(rate * t), np.exp(-rate * t)
    z1 = 0.5 * (v * less * grow) @ b.T - 0.5 * (v * more * decay) @ c.T
    z2 = 0.5 * (u * more * grow) @ b.T + 0.5 * (u * less * decay) @ c.T
    z1 += math.exp(-lam / 2 * t) * v_rest @ v_rest.T @ w1.T
    z2 += math.exp(lam / 2 * t) * u_rest @ u_rest.T @ w2
    a = np.eye(w1.shape[0]) + (b * (grow**2 - 1) / (4 * rate)) @ b.T - (c * (decay**2 - 1) / (4 * rate)) @ c.T
    a += outside(lam / 2, t) * w2.T @ u_rest @ u_rest.T @ w2
    a += outside(-lam / 2, t) * w1 @ v_rest @ v_rest.T @ w1.T
    z = np.concatenate([z1, z2])
    return z @ np.linalg.inv(a) @ z.T, b, c


UNEQUAL = [((2, 3, 5), 1.0), ((5, 3, 2), -1.0), ((2, 2, 5), -1.0), ((5, 2, 2), 1.0)]


@pytest.mark.parametrize(("sizes", "lam"), UNEQUAL)
def test_perpendicular_terms(sizes, lam):
    """domine2025 prints (e^{λ⊥t} − 1)/λ⊥ in (13), (17), (18) and its parts in (28), (29).

    Right is (e^{2λ⊥t} − 1)/(2λ⊥). λ⊥ is −λ/2 on V⊥ and +λ/2 on U⊥ here, not that of (8).
    """
    n_in, n_hidden, n_out = sizes
    w1, w2 = balanced_weights(sizes, lam, n_hidden)
    sigma, t = np.asarray(jr.normal(jr.key(5), (n_out, n_in))), 0.7
    reference = stacked(*integrate_weights(w1, w2, sigma, np.eye(n_in), [t])[0])

    def right(rate, t):
        return math.expm1(2 * rate * t) / (2 * rate)

    def printed(rate, t):
        return math.expm1(rate * t) / rate

    np.testing.assert_allclose(theorem_a3(w1, w2, sigma, lam, t, right)[0], reference, atol=1e-8)
    # (13), and (18) whose ½ and whose M = (V⊥; U⊥)/√2 leave a quarter of it.
    assert off(theorem_a3(w1, w2, sigma, lam, t, printed)[0], reference) > 5e-3
    assert off(theorem_a3(w1, w2, sigma, lam, t, lambda *x: printed(*x) / 4)[0], reference) > 0.02
    # (17), on the perpendicular directions: twice the right one, half of the printed one.
    f, u, _, vt = riccati(sigma, lam), *np.linalg.svd(sigma)
    rest = [np.zeros((n_in, 3)), u[:, 2:]] if n_out > n_in else [vt[2:].T, np.zeros((n_out, 3))]
    m, rate = np.concatenate(rest), lam / 2 if n_out > n_in else -lam / 2
    grown, inverse = scipy.linalg.expm(f * t), np.linalg.inv(f)
    difference = m.T @ (grown @ inverse @ grown - inverse) @ m
    np.testing.assert_allclose(difference, 2 * right(rate, t) * np.eye(3), atol=1e-12)
    assert off(printed(rate, t) / 2 * np.eye(3), difference) > 0.5
    # (28) and (29), the two halves of the term of A: ½ Q(0)ᵀ e^{Ft}F⁻¹e^{Ft} Q(0) and ½ Q(0)ᵀ F⁻¹ Q(0).
    inside = m.T @ np.concatenate([w1.T, w2])
    first, second = (inside.T @ (m.T @ x @ m) @ inside / 2 for x in (grown @ inverse @ grown, inverse))
    square = inside.T @ inside
    np.testing.assert_allclose(math.exp(2 * rate * t) / (2 * rate) * square, first, atol=1e-12)
    np.testing.assert_allclose(square / (2 * rate), second, atol=1e-12)
    assert off(math.exp(rate * t) / rate * square, first) > 0.4
    np.testing.assert_allclose(off(square / rate, second), 1.0, rtol=1e-10)


@pytest.mark.parametrize(("sizes", "lam"), UNEQUAL)
def test_sizes_in_the_unequal_solution(sizes, lam):
    """domine2025 prints I_min(N_i, N_o) in (2) and in the perpendicular terms of (13), and (20-21) square."""
    n_in, n_hidden, n_out = sizes
    w1, w2 = balanced_weights(sizes, lam, n_hidden)
    sigma, q = np.asarray(jr.normal(jr.key(5), (n_out, n_in))), np.concatenate([w1.T, w2])
    rates, p = np.linalg.eigh(riccati(sigma, lam))
    # n = 7 in Lemma A.1 and |N_o − N_i| = 3 outside, where min(N_i, N_o) = 2 is printed.
    for size in (rates.size, abs(n_out - n_in)):
        with pytest.raises(ValueError, match="broadcast"):
            np.subtract(np.eye(size), np.eye(min(n_in, n_out)))
    # Filled up with zeros it does not even start where it should, whichever two rates it means.
    np.testing.assert_allclose(state(p, rates, q, 0.0), q @ q.T, atol=1e-13)
    y, padded = p.T @ q, np.concatenate([np.ones(2), np.zeros(5)])
    for order in (np.argsort(rates), np.argsort(-rates), np.argsort(-np.abs(rates))):
        inner = np.eye(n_hidden) + (y[order].T * ((1 - padded) / (2 * rates[order]))) @ y[order]
        assert off(q @ np.linalg.inv(inner) @ q.T, q @ q.T) > 0.15
    _, b, c = theorem_a3(w1, w2, sigma, lam, 0.7, lambda rate, t: math.expm1(2 * rate * t) / (2 * rate))
    assert b.shape == c.shape == (n_hidden, 2)
    # (20)-(21) are right of themselves: OᵀQ(0) = (Bᵀ; −Cᵀ)/√2, of 2 min(N_i, N_o) rows, lies in Q(0)'s span.
    inside = np.linalg.norm(q) ** 2 - 0.5 * (np.linalg.norm(b) ** 2 + np.linalg.norm(c) ** 2)
    u, _, vt = np.linalg.svd(sigma)
    rest = np.linalg.norm(w2.T @ u[:, 2:]) ** 2 + np.linalg.norm(w1 @ vt[2:].T) ** 2
    np.testing.assert_allclose(inside, rest, rtol=1e-11)


def test_rotation_of_an_unlearnable_mode_at_zero_balance():
    """domine2025 (8) prints H = sgn(λ)√((S_λ − S)/(S_λ + S)), which is 0/0 at s = λ = 0."""
    u, s, vt = np.linalg.svd(np.asarray(jr.normal(jr.key(3), (3, 3))))
    s[2] = 0.0
    rate = np.hypot(s, 0.0)
    with np.errstate(invalid="ignore"):
        h = np.sign(0.0) * np.sqrt((rate - s) / (rate + s))
    np.testing.assert_array_equal(np.isnan(h), [False, False, True])
    # Either eigenvector of the double eigenvalue 0 will do, and the mode decays as 1/t.
    w1, w2 = balanced_weights((3, 3, 3), 0.0, 3)
    network, task = linear.Network(jnp.asarray(w1), jnp.asarray(w2)), jnp.asarray((u * s) @ vt)
    exact = linear.exact_flow(network, linear.Task.from_correlation(task), jnp.array([0.7])).qqt[0]
    reference = stacked(*integrate_weights(w1, w2, task, np.eye(3), [0.7])[0])
    np.testing.assert_allclose(exact, reference, atol=1e-8)


@pytest.mark.parametrize(("n_in", "n_out", "rate"), [(2, 4, 0.35), (4, 2, -0.35)])
def test_rates_outside_the_task(n_in, n_out, rate):
    """The proof of Theorem 3.4.2 swaps U⊥ and V⊥; domine2025 (8) prints +λ/2 for both signs of N_o − N_i."""
    lam, sigma = 0.7, np.asarray(jr.normal(jr.key(5), (n_out, n_in)))
    f = np.block([[-lam / 2 * np.eye(n_in), sigma.T], [sigma, lam / 2 * np.eye(n_out)]])
    u, _, vt = np.linalg.svd(sigma)
    outside = u[:, 2:] if n_out > n_in else vt[2:].T
    empty = np.zeros((n_in if n_out > n_in else n_out, 2))
    vectors = np.concatenate([empty, outside] if n_out > n_in else [outside, empty])
    np.testing.assert_allclose(f @ vectors, rate * vectors, atol=1e-14)
    printed = np.sign(abs(n_out - n_in)) * lam / 2
    assert (printed == rate) == (n_out > n_in)
    # The proof has V⊥ ≠ 0 and U⊥ = 0 for n_o > n_i: there is no such vector, and two eigenvalues are missing.
    swapped = vt[2:] if n_out > n_in else u[:, 2:].T
    assert swapped.size == 0
    # 3.81 and 3.85 display F' and a scalar on the diagonal, V⊥S̃Ũᵀ = 0 off it. F' of 3.82 is F already; cut to
    # square blocks it leaves out entries of Σ, which vanish only between all of the singular vectors.
    inside, scalar = (slice(0, 4), slice(4, 6)) if n_out > n_in else (slice(2, 6), slice(0, 2))
    display, turn = np.zeros((6, 6)), scipy.linalg.block_diag(vt, u.T)
    display[inside, inside], display[scalar, scalar] = f[inside, inside], rate * np.eye(2)
    assert off(display, f) > 0.6
    assert off(np.linalg.eigvalsh(display), np.linalg.eigvalsh(f)) > 0.2
    turned = turn @ f @ turn.T
    if n_out > n_in:
        np.testing.assert_allclose(turned[scalar, inside], 0, atol=1e-14)
        np.testing.assert_allclose(turned[scalar, scalar], rate * np.eye(2), atol=1e-14)
    else:
        np.testing.assert_allclose(turned[2:4, [0, 1, 4, 5]], 0, atol=1e-14)
        np.testing.assert_allclose(turned[2:4, 2:4], rate * np.eye(2), atol=1e-14)


def test_admissible_balance_and_its_extra_directions():
    """Theorem 3.4.1 excludes (2, 2, 4) with λ = −2 and (4, 2, 4), and with it Algorithm 1 of anguita2024.

    Algorithm 1 of domine2025 forgets √|λ| beyond the modes; Algorithm 2 of anguita2024 drops σ.
    """
    np.testing.assert_allclose(
        linear.balance(linear.lambda_balanced(2, 2, 4, lam=-2.0, key=jr.key(0))), -2 * np.eye(2), atol=1e-13
    )
    np.testing.assert_allclose(
        linear.balance(linear.lambda_balanced(4, 4, 2, lam=-1.0, key=jr.key(0))), -np.eye(4), atol=1e-13
    )
    np.testing.assert_allclose(
        linear.balance(linear.lambda_balanced(4, 2, 4, lam=100.0, key=jr.key(1))), 100 * np.eye(2), atol=1e-12
    )
    modes = np.array([1.3, 0.4])
    first, second = (np.sqrt((np.sqrt(1 + 4 * modes**2) + sign) / 2) for sign in (1, -1))
    printed = np.diag(np.append(second, [0, 0])) ** 2 - np.diag(np.append(first, [0, 0])) ** 2
    assert off(printed, -np.eye(4)) > 0.5
    # As printed the aligned weights are those of σ = 1; strengths are of order σ².
    task = linear.random_regression(3, 3, 12, key=jr.key(0))
    small, printed = (linear.aligned(task, 3, 0.8, scale, key=jr.key(1)) for scale in (0.1, 1.0))
    np.testing.assert_allclose(small.function, 0.01 * printed.function, atol=1e-14)
    assert off(printed.function, small.function) > 90


def test_extra_directions_belong_to_one_layer():
    """4.2 and 4.8 print √|λ| I_max(0, n_o − n_i) in W2 and −√|λ| I in W1; r − q of them are in one layer."""
    network = linear.lambda_balanced(2, 4, 4, lam=3.0, key=jr.key(1))
    first, second = (np.linalg.svd(np.asarray(w), compute_uv=False) for w in (network.w1, network.w2))
    # N_h = 4 hidden directions, q = 2 modes: √λ twice in W2, and nothing in W1, which has no room for it.
    np.testing.assert_allclose(second[2:], math.sqrt(3.0), rtol=1e-13)
    np.testing.assert_allclose(second[:2] ** 2 - first**2, 3.0, rtol=1e-12)
    printed1, printed2 = np.append(first, [-math.sqrt(3.0)] * 2), second
    assert printed1.size > min(network.w1.shape)
    np.testing.assert_allclose(linear.balance(network), 3 * np.eye(4), atol=1e-13)
    assert off(np.diag(printed2**2 - printed1**2), 3 * np.eye(4)) > 0.7
    # 4.8 has −√−λ there, which is not even real.
    with np.errstate(invalid="ignore"):
        assert np.isnan(-np.sqrt(np.float64(-3.0)))
    # N_h = 2: r − q = 0, where n_o − n_i = 2 would give W2 four singular values.
    narrow = linear.lambda_balanced(2, 2, 4, lam=-2.0, key=jr.key(0))
    assert np.linalg.matrix_rank(np.asarray(narrow.w2)) == 2 < 2 + max(0, 4 - 2)
