"""Corrections to anguita2024 and domine2025: what the library says holds, what is printed does not.

Each test computes the printed formula beside the corrected one and an independent measurement, so that
putting the printed version back would fail. Everything here is small and needs NumPy only, or one exact
solution. Reference flows are solved to a relative 1e-11 a step, hence tolerances of 1e-8 against them.
"""

import math

import jax.numpy as jnp
import jax.random as jr
import mpmath as mp
import numpy as np
import pytest
import scipy.linalg
from flow_reference import integrate_weights, stacked
from scipy.integrate import solve_ivp

from nullcline import linear


def off(a, b):
    """Relative distance of two arrays."""
    return float(np.linalg.norm(np.asarray(a) - np.asarray(b)) / np.linalg.norm(np.asarray(b)))


def balanced_weights(sizes, lam, rank):
    """W1 = R S1 Vᵀ and W2 = U S2 Rᵀ with s2² − s1² = λ on `rank` hidden directions."""
    n_in, n_hidden, n_out = sizes
    rng = np.random.default_rng(0)
    u, v, r = (np.linalg.qr(rng.normal(size=(n, n)))[0] for n in (n_out, n_in, n_hidden))
    a = np.zeros(rank)
    a[: min(n_in, n_out, rank)] = rng.uniform(0.3, 1.2, size=min(n_in, n_out, rank))
    first, second = (np.sqrt((np.sqrt(lam**2 + 4 * a**2) + sign * lam) / 2) for sign in (-1, 1))
    s1, s2 = np.zeros((n_hidden, n_in)), np.zeros((n_out, n_hidden))
    np.fill_diagonal(s1[:rank], first[:n_in])
    np.fill_diagonal(s2[:, :rank], second[:n_out])
    return r @ s1 @ v.T, u @ s2 @ r.T


def riccati(sigma, lam):
    """F of the Riccati equation, anguita2024 (3.38)."""
    n_out, n_in = sigma.shape
    return np.block([[-lam / 2 * np.eye(n_in), sigma.T], [sigma, lam / 2 * np.eye(n_out)]])


def cosine(a, b):
    """Frobenius cosine of two matrices."""
    return np.sum(a * b) / (np.linalg.norm(a) * np.linalg.norm(b))


def test_factors_of_a_product():
    """Equation 2.2 prints XY = USVᵀ ⇒ X = USRᵀ, Y = RSVᵀ: the product is US²Vᵀ, and R need not exist."""
    network = linear.lambda_balanced(3, 3, 3, lam=0.0, key=jr.key(4))
    w1, w2 = np.asarray(network.w1), np.asarray(network.w2)
    u, s, vt = np.linalg.svd(w2 @ w1)
    r = w2.T @ u / np.sqrt(s)
    np.testing.assert_allclose(r.T @ r, np.eye(3), atol=1e-13)
    np.testing.assert_allclose((r * np.sqrt(s)) @ vt, w1, atol=1e-13)
    assert off((u * s) @ r.T @ (r * s) @ vt, w2 @ w1) > 2
    # Both layers are diagonal in one hidden basis only if their Gram matrices commute.
    other = linear.gaussian(4, 6, 5, scheme="he", key=jr.key(0))
    for first, second, is_shared in ((w1, w2, True), (np.asarray(other.w1), np.asarray(other.w2), False)):
        a, b = second.T @ second, first @ first.T
        share = np.linalg.norm(a @ b - b @ a) / (np.linalg.norm(a) * np.linalg.norm(b))
        assert share < 1e-14 if is_shared else share > 0.1


def test_gradient_has_one_over_p():
    """Equations 2.7-2.10 print (W2W1X − Y)Xᵀ without the 1/P of the loss 2.3: P times too large."""
    task = linear.random_regression(3, 3, 12, key=jr.key(0))
    x, y = (np.asarray(a) for a in task.data)
    w1, w2 = (np.asarray(jr.normal(jr.key(seed), (3, 3))) for seed in (1, 2))

    def loss(w1, w2):
        return np.sum((w2 @ w1 @ x - y) ** 2) / 24

    # The loss is quadratic in each layer: a central difference of any step has rounding errors only.
    units = np.eye(9).reshape(9, 3, 3)
    first = np.array([(loss(w1 + e, w2) - loss(w1 - e, w2)) / 2 for e in units]).reshape(3, 3)
    second = np.array([(loss(w1, w2 + e) - loss(w1, w2 - e)) / 2 for e in units]).reshape(3, 3)
    residual = (w2 @ w1 @ x - y) @ x.T
    for printed, slope in ((w2.T @ residual, first), (residual @ w1.T, second)):
        np.testing.assert_allclose(printed / 12, slope, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(off(printed, slope), 11.0, rtol=1e-12)


def test_conserved_matrix():
    """The proof of Theorem 2.2.1 differentiates W2W2ᵀ − W1W1ᵀ; W2ᵀW2 − W1W1ᵀ is what stays."""
    w1, w2 = (np.asarray(jr.normal(jr.key(seed), (3, 3))) for seed in (1, 2))
    task = linear.random_regression(3, 3, 12, key=jr.key(0))
    later1, later2 = integrate_weights(w1, w2, task.sigma_yx, np.eye(3), [0.7])[0]
    balance = np.asarray(linear.balance(linear.Network(jnp.asarray(later1), jnp.asarray(later2))))
    np.testing.assert_allclose(balance, w2.T @ w2 - w1 @ w1.T, atol=1e-9)
    assert off(later2 @ later2.T - later1 @ later1.T, w2 @ w2.T - w1 @ w1.T) > 0.3


def printed_mode(s, a0, lam, t):
    """anguita2024, equations 3.2 and 3.19, as printed."""
    k = math.hypot(lam, 2 * s)
    shift = 4 * a0 * s * np.sign(lam) / (math.hypot(lam, 2 * a0) + lam)
    c = (k + lam + shift) / (k - lam - shift)
    grown = c * np.exp(k * t)
    x = (k * (grown - 1) - lam * (grown + 1)) / (2 * s * (grown + 1))
    return lam * x / (1 - x**2)


def corrected_mode(s, a0, lam, t):
    """The same with e^{sgn(λ)Kt} and √(λ² + 4a²) + |λ|."""
    k = math.hypot(lam, 2 * s)
    shift = 4 * a0 * s * np.sign(lam) / (math.hypot(lam, 2 * a0) + abs(lam))
    c = (k + lam + shift) / (k - lam - shift)
    grown = c * np.exp(np.sign(lam) * k * t)
    x = (k * (grown - 1) - lam * (grown + 1)) / (2 * s * (grown + 1))
    return lam * x / (1 - x**2)


@pytest.mark.parametrize("lam", [0.5, -0.5])
def test_aligned_solution_for_both_signs(lam):
    """Equations 3.2 and 3.19 hold for λ > 0 only."""
    t = np.array([0.1, 0.6, 2.0])
    ours = linear.mode_flow(jnp.array([1.5]), jnp.array([0.3]), jnp.asarray(t), lam=lam).strength[:, 0]
    np.testing.assert_allclose(corrected_mode(1.5, 0.3, lam, t), ours, rtol=1e-12)
    if lam > 0:
        np.testing.assert_allclose(printed_mode(1.5, 0.3, lam, t), ours, rtol=1e-12)
    else:
        assert off(printed_mode(1.5, 0.3, lam, t), ours) > 0.5


def test_tangent_integral():
    """Equation 3.12 prints 1 + 2s tanh(θ/2) where λ + 2s tanh(θ/2) belongs."""
    lam, s, h = 0.7, 1.2, 1e-6
    k = math.hypot(lam, 2 * s)

    def antiderivative(theta, constant):
        return 2 * np.arctanh((constant + 2 * s * np.tanh(theta / 2)) / k) / k

    slope = 1 / (2 * s - lam * np.sinh(0.1))
    right, printed = ((antiderivative(0.1 + h, c) - antiderivative(0.1 - h, c)) / (2 * h) for c in (lam, 1.0))
    np.testing.assert_allclose(right, slope, rtol=1e-8)
    assert abs(printed / slope - 1) > 0.01


def test_zero_balanced_sigmoid_needs_a_positive_start():
    """Equation 2.28 sends a negative strength to s (through a pole); the flow ends at 0."""
    s, a0, t = 1.3, -0.2, 6.0
    printed = s * math.exp(2 * s * t) / (math.exp(2 * s * t) - 1 + s / a0)
    ours = float(linear.mode_flow(jnp.array([s]), jnp.array([a0]), jnp.array([t])).strength[0, 0])
    assert abs(printed - s) < 1e-3 and -1e-3 < ours < 0
    # 2.26 prints da/dt = 2a(s − a), of the wrong sign below zero: it is 2|a|(s − a).
    path = integrate_weights([[-math.sqrt(-a0)]], [[math.sqrt(-a0)]], [[s]], [[1.0]], [1e-4, 2e-4, t])
    a = [float(w2[0, 0] * w1[0, 0]) for w1, w2 in path]
    slope = (a[1] - a0) / 2e-4
    # A central difference at 1e-4: its error is of order 1e-8.
    np.testing.assert_allclose(slope, 2 * abs(a[0]) * (s - a[0]), rtol=1e-6)
    assert slope > 0 > 2 * a[0] * (s - a[0])
    np.testing.assert_allclose(ours, a[2], rtol=1e-7)


@pytest.mark.parametrize("lam", [0.5, -0.5])
def test_rate_of_a_mode_has_squares(lam):
    """Equation 3.5 prints d² + c² = (d² − c²) + 4d²c²; the square of each side is meant (3.6)."""
    t = np.array([0.1, 0.6, 2.0])
    ours = linear.mode_flow(jnp.array([1.5]), jnp.array([0.3]), jnp.asarray(t), lam=lam)
    c, d, a = (np.asarray(x[:, 0]) for x in (ours.first, ours.second, ours.strength))
    np.testing.assert_allclose(c**2 + d**2, np.sqrt(lam**2 + 4 * a**2), rtol=1e-12)
    assert np.all(np.abs((lam + 4 * a**2) / (c**2 + d**2) - 1) > 0.1)

    def grown(rate):
        solution = solve_ivp(
            lambda _, a: rate(a) * (1.5 - a), (0, 2.0), [0.3], "DOP853", t, rtol=1e-11, atol=1e-13
        )
        return solution.y[0]

    # The solver interpolates to these times, with an error of order 1e-8.
    np.testing.assert_allclose(grown(lambda a: np.sqrt(lam**2 + 4 * a**2)), a, rtol=1e-6)
    assert off(grown(lambda a: lam + 4 * a**2), a) > 0.1


def test_diagonal_variance_is_two_v():
    """Theorem 3.1.1 prints 4v. The ratio has standard error 0.02 over 20 000 draws: false alarms 1e-6."""
    rng = np.random.default_rng(0)
    w1, w2 = rng.normal(size=(20_000, 4, 3)) / math.sqrt(3), rng.normal(size=(20_000, 5, 4)) / 2
    d = np.einsum("noh,nog->nhg", w2, w2) - np.einsum("nhi,ngi->nhg", w1, w1)
    expected = linear.expected_balance(3, 4, 5, scheme="lecun")
    ratio = np.var(d[:, 0, 0]) / expected.variance
    assert abs(ratio - 2) < 0.1
    assert expected.diagonal_variance == 2 * expected.variance
    # Weights of the printed shape (n_i, n_{i+1}) do not make a difference of Gram matrices at all.
    with pytest.raises(ValueError, match="broadcast"):
        np.subtract(w2[0] @ w2[0].T, w1[0].T @ w1[0])


def test_scaled_row_has_fourth_powers():
    """Table 3.2 prints α² in the variance of the Scaled row; table 3.1 implies α⁴."""
    expected = linear.expected_balance(10, 20, 30, scheme="scaled", alphas=(2.0, 3.0))
    direct = 30 * (9.0 / 20) ** 2 + 10 * (4.0 / 10) ** 2
    np.testing.assert_allclose(expected.variance, direct, rtol=1e-14)
    k, r = 2.0, 3.0
    printed = (r * 3.0**2 / k**2 + 2.0**2) / 10
    assert abs(printed / direct - 1) > 0.5
    # The text prints Var = α/n for the weights, table 3.1 α²/n: weights are α times those of α = 1, not √α.
    plain, scaled = (
        linear.gaussian(4, 6, 5, scheme="scaled", alphas=alphas, key=jr.key(0))
        for alphas in ((1.0, 1.0), (2.0, 3.0))
    )
    np.testing.assert_allclose(scaled.w1, 2.0 * plain.w1, rtol=1e-14)
    np.testing.assert_allclose(scaled.w2, 3.0 * plain.w2, rtol=1e-14)
    assert (
        off(math.sqrt(2.0) * plain.w1, scaled.w1) > 0.25 and off(math.sqrt(3.0) * plain.w2, scaled.w2) > 0.4
    )


def test_glorot_row_of_the_limits():
    """Table 3.3 prints 0, 2, 2, 0, −2/(k+1) for r = k, r → 0, r → ∞, k → ∞, k → 0."""
    k, far = 3.0, 10**9
    cases: dict = {"r=k": (far, 3 * far, 3 * far), "r->0": (10 * far, 30 * far, 1), "r->inf": (100, 300, far)}
    cases |= {"k->inf": (1000, far * 1000, 5000), "k->0": (far, 1, 2 * far)}
    printed = {"r=k": 0.0, "r->0": 2.0, "r->inf": 2.0, "k->inf": 0.0, "k->0": -2 / (k + 1)}
    for limit, sizes in cases.items():
        value = linear.expected_balance(*sizes, scheme="glorot").lam
        ours = linear.expected_lambda_limit(limit, scheme="glorot", k=k, r=2.0)
        np.testing.assert_allclose(value, ours, atol=1e-5)
        if limit != "k->inf":
            assert abs(value - printed[limit]) > 0.3


def test_sayings_about_the_tables():
    """ "LeCun λ ≥ 0", "larger k lowers λ everywhere" and "r = k means three equal layers" are false."""
    assert linear.expected_balance(40, 200, 80, scheme="lecun").lam == pytest.approx(-0.6)
    low, high = (linear.expected_balance(100, hidden, 300, scheme="glorot").lam for hidden in (20, 40))
    assert 0.2 < low < 0.22 and 0.33 < high < 0.35
    # r = k: hidden and output layers alike, the input layer of another size, and Glorot's λ is not zero.
    assert linear.expected_balance(100, 300, 300, scheme="glorot").lam == pytest.approx(0.5)
    # Case 6: λ vanishes at r = (α₁²/α₂²) k, not at r = α₁²/α₂².
    assert linear.expected_balance(100, 200, 50, scheme="scaled", alphas=(1.0, 2.0)).lam == pytest.approx(0.0)
    assert linear.expected_balance(100, 200, 25, scheme="scaled", alphas=(1.0, 2.0)).lam != pytest.approx(0.0)


def test_not_balanced_in_probability():
    """The matrix does not converge: LeCun at k = 1, r = 2 stays at relative distance √3 for every width."""
    rng = np.random.default_rng(1)
    for width in (50, 400):
        w1, w2 = rng.normal(size=(width, width)), rng.normal(size=(2 * width, width))
        d = (w2.T @ w2 - w1 @ w1.T) / width
        # Fluctuations of the norm are of relative order 1/width.
        np.testing.assert_allclose(off(d, np.eye(width)), math.sqrt(3), rtol=0.1)


def test_expansion_of_the_root():
    """Equation 4.10 prints √(1+x²) = 1 + x²; the result S²/|λ| needs 1 + x²/2."""
    lam, s = 50.0, 1.7
    exact = (math.hypot(lam, 2 * s) - lam) / 2
    assert abs(exact / (s**2 / lam) - 1) < 5e-3
    assert abs(exact / (lam * (2 * s / lam) ** 2 / 2) - 1) > 0.4


def test_converged_blocks():
    """Theorem 4.1.2 (1) prints blocks λ I_max(n_o, n_i); only r − #modes directions keep |λ|."""
    task = linear.random_regression(2, 4, 12, key=jr.key(0))
    state = linear.converged_state(task, lam=3.0, rank=4)
    values = np.linalg.eigvalsh(np.asarray(state.output_gram))
    # Four hidden units, two modes: exactly two eigenvalues are λ, not max(n_o, n_i) = 4, and W1ᵀW1 has none.
    assert np.sum(np.abs(values - 3.0) < 1e-12) == 2 and state.input_gram.shape == (2, 2)
    network = linear.lambda_balanced(2, 4, 4, lam=3.0, key=jr.key(1))
    _, w2 = integrate_weights(network.w1, network.w2, task.sigma_yx, np.eye(2), [40.0])[0]
    np.testing.assert_allclose(w2 @ w2.T, state.output_gram, atol=1e-8)
    # (2): with N_h < N_o, W2W2ᵀ has rank N_h and cannot tend to λI.
    narrow = linear.converged_state(linear.random_regression(4, 4, 12, key=jr.key(0)), lam=1e4, rank=2)
    assert off(narrow.output_gram, 1e4 * np.eye(4)) > 0.5


@pytest.mark.parametrize("lam", [50.0, -50.0])
def test_converged_layers_of_a_large_balance(lam):
    """Equation 4.13 prints S²/|λ| = −λI for λ → −∞; section 4.3 prints ṼS̃Ṽᵀ/λ for the layer ṼS̃²Ṽᵀ/λ."""
    task = linear.random_regression(3, 3, 12, key=jr.key(0))
    network = linear.lambda_balanced(3, 3, 3, lam=lam, key=jr.key(1))
    w1, w2 = integrate_weights(network.w1, network.w2, task.sigma_yx, np.eye(3), [1.0])[0]
    state = linear.converged_state(task, lam=lam, rank=3)
    np.testing.assert_allclose(w1.T @ w1, state.input_gram, atol=1e-8)
    np.testing.assert_allclose(w2 @ w2.T, state.output_gram, atol=1e-8)
    u, s, vt = np.linalg.svd(np.asarray(task.sigma_yx))
    # The next terms of both expansions are s²/λ² of these, at most 1e-3.
    if lam < 0:
        assert off(w1.T @ w1, -lam * np.eye(3)) < 1e-3
        assert off((vt.T * s**2 / -lam) @ vt, w1.T @ w1) > 0.99
        assert off(w2 @ w2.T, (u * s**2 / -lam) @ u.T) < 1e-3 < 0.8 < off((u * s / -lam) @ u.T, w2 @ w2.T)
    else:
        assert off(w1.T @ w1, (vt.T * s**2 / lam) @ vt) < 1e-3
        assert off((vt.T * s / lam) @ vt, w1.T @ w1) > 0.8


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


def test_initial_kernel_has_the_initial_strengths():
    """Equation 4.16 prints S* (of the later function) between the initial singular vectors; it is S."""
    task = linear.random_regression(3, 3, 12, key=jr.key(0))
    network, x = linear.lambda_balanced(3, 3, 3, lam=0.8, key=jr.key(4)), np.asarray(task.x)
    w1, w2 = integrate_weights(network.w1, network.w2, task.sigma_yx, np.eye(3), [0.7])[0]
    u, s, vt = np.linalg.svd(np.asarray(network.function))

    def kernel(strengths):
        root = np.sqrt(0.8**2 + 4 * strengths**2)
        first, second = (vt.T * (root - 0.8) / 2) @ vt, (u * (root + 0.8) / 2) @ u.T
        return np.kron(np.eye(3), x.T @ first @ x) + np.kron(second, x.T @ x)

    start = np.asarray(linear.ntk(network, task))
    assert off(kernel(s), start) < 1e-12
    assert off(kernel(np.linalg.svd(w2 @ w1, compute_uv=False)), start) > 0.7


def test_kernel_is_that_of_the_parameters():
    """2.32-2.33 print J = ∂f/∂x, 2.36 df/dt = −K ∇_θL; it is J = ∂f/∂θ and df/dt = −K ∂L/∂f."""
    # Three outputs and six samples: as many values as the 18 weights, so that K ∇_θL can be formed at all.
    task = linear.random_regression(3, 3, 6, key=jr.key(0))
    x, y = (np.asarray(a) for a in task.data)
    theta = np.asarray(jr.normal(jr.key(1), (18,)))
    w1, w2 = theta[:9].reshape(3, 3), theta[9:].reshape(3, 3)

    def predicted(theta):
        return (theta[9:].reshape(3, 3) @ theta[:9].reshape(3, 3) @ x).ravel()

    # Predictions are quadratic along a line: central differences of any step have rounding errors only.
    jacobian = np.stack([(predicted(theta + e) - predicted(theta - e)) / 2 for e in np.eye(18)], axis=1)
    kernel = np.asarray(linear.ntk(linear.Network(jnp.asarray(w1), jnp.asarray(w2)), task))
    np.testing.assert_allclose(jacobian @ jacobian.T, kernel, atol=1e-12)
    # The block of the first sample, against JJᵀ with the derivative by that sample.
    assert off(w2 @ w1 @ (w2 @ w1).T, kernel[::6, ::6]) > 0.6
    error = (predicted(theta) - y.ravel()) / 6
    slope = jacobian.T @ error
    measured = (predicted(theta - slope) - predicted(theta + slope)) / 2
    np.testing.assert_allclose(-kernel @ error, measured, atol=1e-11)
    assert off(-kernel @ slope, measured) > 1.5


@pytest.mark.parametrize("lam", [100.0, -100.0])
def test_kernel_change_has_two_terms_of_one_order(lam):
    """Equation 4.18 keeps the first of them, 4.19 the second; the end of section 4.2 swaps WᵀW and WWᵀ."""
    task = linear.random_regression(3, 3, 12, key=jr.key(0))
    network = linear.lambda_balanced(3, 3, 3, lam=lam, key=jr.key(1))
    w1, w2 = integrate_weights(network.w1, network.w2, task.sigma_yx, np.eye(3), [0.02])[0]
    before, after = np.asarray(network.function), w2 @ w1
    x = np.asarray(task.x)
    change = np.kron(np.eye(3), x.T @ (w1.T @ w1 - np.asarray(network.w1.T @ network.w1)) @ x)
    change += np.kron(w2 @ w2.T - np.asarray(network.w2 @ network.w2.T), x.T @ x)
    first = np.kron(np.eye(3), x.T @ (after.T @ after - before.T @ before) @ x) / 100.0
    second = np.kron(after @ after.T - before @ before.T, x.T @ x) / 100.0
    # Both terms are the leading ones of an expansion in s²/λ², and singular values of the start reach 5.
    assert off(first + second, change) < 3e-3
    assert off(first if lam > 0 else second, change) > 0.5
    # As printed they even have S2, of W2 alone, in place of S: hardly anything is left of them.
    (u, s, vt), (later_u, later_s, later_vt) = np.linalg.svd(before), np.linalg.svd(after)
    s2, later_s2 = ((np.sqrt(lam**2 + 4 * a**2) + lam) / 2 for a in (s, later_s))
    if lam > 0:
        printed = np.kron(np.eye(3), x.T @ ((later_vt.T * later_s2) @ later_vt - (vt.T * s2) @ vt) @ x) / lam
    else:
        printed = np.kron((u * s2) @ u.T - (later_u * later_s2) @ later_u.T, x.T @ x) / lam
    assert off(printed, change) > 0.98
    # The weak layer is the shallow network's representation of the same side, divided by |λ|.
    weak, right, swapped = w1.T @ w1, after.T @ after / 100.0, after @ after.T / 100.0
    if lam < 0:
        weak, right, swapped = w2 @ w2.T, swapped, right
    assert off(weak, right) < 2e-3 < 0.9 < off(weak, swapped)


@pytest.mark.parametrize("lam", [100.0, -100.0])
def test_kernel_is_lazy_for_one_sign_only(lam):
    """Theorem 4.1.3 has no sizes: for N_i = N_h < N_o the kernel stays if λ → −∞, and turns if λ → +∞."""
    w1, w2 = balanced_weights((2, 2, 4), lam, 2)
    sigma = np.asarray(jr.normal(jr.key(5), (4, 2)))
    end = linear.converged_state(linear.Task.from_correlation(jnp.asarray(sigma)), lam=lam, rank=2)
    start = np.kron(np.eye(4), w1.T @ w1) + np.kron(w2 @ w2.T, np.eye(2))
    change = np.kron(np.eye(4), end.input_gram) + np.kron(end.output_gram, np.eye(2)) - start
    before = w2 @ w1
    claimed = np.kron(np.eye(4), sigma.T @ sigma - before.T @ before) / 100.0
    claimed += np.kron(sigma @ sigma.T - before @ before.T, np.eye(2)) / 100.0
    if lam < 0:
        _, later2 = integrate_weights(w1, w2, sigma, np.eye(2), [0.3])[0]
        np.testing.assert_allclose(later2 @ later2.T, end.output_gram, atol=1e-8)
        # The next terms are s²/λ² of these, with s < 3.
        assert off(claimed, change) < 1e-3
    else:
        # W2W2ᵀ is λ times a projector on two of four directions, which turns towards the task.
        assert off(claimed, change) > 0.9 and np.linalg.norm(change) > 0.5 * np.linalg.norm(start)


def test_shallow_network():
    """Theorem 4.2.1 prints S for the representations; they are S². "Its NTK will change": it never moves."""
    task = linear.random_regression(3, 3, 12, key=jr.key(0))
    start = jnp.zeros((3, 3))
    end = np.asarray(linear.shallow_flow(start, task, jnp.array([60.0]))[0])
    x = np.asarray(task.x)
    kernels = []
    for w in (np.asarray(start), end):
        jacobian = np.stack([((w + e) @ x - (w - e) @ x).ravel() / 2 for e in np.eye(9).reshape(9, 3, 3)])
        kernels.append(jacobian.T @ jacobian)
    np.testing.assert_allclose(kernels[0], kernels[1], atol=1e-13)
    np.testing.assert_allclose(kernels[1], np.kron(np.eye(3), x.T @ x), atol=1e-13)
    u, s, vt = np.linalg.svd(np.asarray(task.sigma_yx))
    assert off(end.T @ end, (vt.T * s**2) @ vt) < 1e-12 and off(end @ end.T, (u * s**2) @ u.T) < 1e-12
    assert off(end.T @ end, (vt.T * s) @ vt) > 0.4


@pytest.mark.parametrize("lam", [-200.0, -400.0])
def test_lazy_rate_is_lambda(lam):
    """Section 4.3 prints the rate |λ|/2, and "exponentially faster"; the error decays as e^{−|λ|t}.

    After equation 3.77 the exponent of each factor, K → |λ|/2, is printed; the state has it squared.
    """
    task = linear.random_regression(3, 3, 12, key=jr.key(0))
    network = linear.lambda_balanced(3, 3, 3, lam=lam, key=jr.key(1))
    path = integrate_weights(network.w1, network.w2, task.sigma_yx, np.eye(3), [0.005, 0.015])
    errors = [np.linalg.norm(w2 @ w1 - np.asarray(task.sigma_yx)) for w1, w2 in path]
    rate = math.log(errors[0] / errors[1]) / 0.01
    # Corrections are of relative order s²/λ². Twice the balance, twice the rate.
    np.testing.assert_allclose(rate, -lam, rtol=1e-3)
    assert rate / (-lam / 2) > 1.99


def test_large_lambda_needs_the_right_width():
    """Theorem 4.2.3 claims shallow dynamics for every architecture; a bottleneck is still on its plateau."""
    task = linear.random_regression(4, 4, 12, key=jr.key(0))
    network = linear.lambda_balanced(4, 2, 4, lam=100.0, key=jr.key(1))
    w1, w2 = integrate_weights(network.w1, network.w2, task.sigma_yx, np.eye(4), [0.1])[0]
    start, target = np.asarray(network.function), np.asarray(task.sigma_yx)
    assert off(w2 @ w1, target + (start - target) * math.exp(-10.0)) > 0.3
    with pytest.raises(ValueError, match="lazy limit exists"):
        linear.lazy_limit(network, task, jnp.array([0.1]))


def test_fitted_lambda_is_a_mean():
    """Theorem 4.5.1 prints tr(D); the minimizer of ‖D − λI‖ is tr(D)/N_h."""
    network = linear.gaussian(4, 6, 5, scheme="he", key=jr.key(0))
    d, best = np.asarray(linear.balance(network)), float(linear.fitted_lambda(network))

    def distance(lam):
        return np.linalg.norm(d - lam * np.eye(6))

    assert distance(best) < min(distance(best - 1e-3), distance(best + 1e-3), distance(np.trace(d)))


def test_constant_of_the_loss():
    """Equation 4.40 prints tr(YYᵀ)/P without its half."""
    task = linear.random_regression(3, 3, 12, key=jr.key(0))
    f = jr.normal(jr.key(1), (3, 3))
    quadratic = 0.5 * jnp.sum(f**2) - jnp.sum(f * task.sigma_yx)
    _, y = task.data
    power = jnp.sum(y**2) / 12
    np.testing.assert_allclose(linear.function_loss(f, task), quadratic + 0.5 * power, rtol=1e-12)
    assert abs(linear.function_loss(f, task) - (quadratic + power)) > 0.1


def test_rate_of_loss_needs_its_bracket():
    """Equation 4.36 prints tr(ḟ fᵀ − Σᵀ); it is tr(ḟ (f − Σ)ᵀ), and −(‖W2ᵀR‖² + ‖RW1ᵀ‖²) on the own task."""
    task, other = (linear.Task.from_correlation(jr.normal(jr.key(seed), (3, 3))) for seed in (3, 9))
    network, t, h = linear.lambda_balanced(3, 3, 3, lam=0.8, key=jr.key(4)), 0.7, 1e-3
    path = integrate_weights(network.w1, network.w2, task.sigma_yx, np.eye(3), [t - h, t, t + h])
    now = linear.exact_flow(network, task, jnp.array([t]))
    (w1, w2), sigma = path[1], np.asarray(task.sigma_yx)
    residual = sigma - w2 @ w1
    velocity = w2 @ w2.T @ residual + residual @ w1.T @ w1
    for evaluated, wrong in ((task, 0.7), (other, 1.3)):
        goal = np.asarray(evaluated.sigma_yx)
        losses = [0.5 * np.sum((b @ a - goal) ** 2) for a, b in path]
        measured = (losses[2] - losses[0]) / (2 * h)
        # The central difference leaves h² of the third derivative, some 1e-6 each.
        np.testing.assert_allclose(linear.loss_rate(now, task, evaluated), [measured], rtol=2e-5)
        # Time is in units of τ: a loss falls half as fast at τ = 2.
        np.testing.assert_allclose(linear.loss_rate(now, task, evaluated, tau=2.0), [measured / 2], rtol=2e-5)
        assert abs(np.trace(velocity @ (w2 @ w1).T - goal.T) / measured - 1) > wrong
    squares = np.sum((w2.T @ residual) ** 2) + np.sum((residual @ w1.T) ** 2)
    np.testing.assert_allclose(linear.loss_rate(now, task), [-squares], rtol=1e-8)


def test_score_of_the_output_layer():
    """Equation 4.34 compares W2ᵀW2 with ŨS̃²Ũᵀ in its second term; W2W2ᵀ belongs there too."""
    task = linear.random_regression(3, 3, 12, key=jr.key(0))
    u, s, vt = np.linalg.svd(np.asarray(task.sigma_yx))
    r = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    # The converged weights at λ = −30, by Theorem 4.1.1.
    first, second = (np.sqrt((np.sqrt(900.0 + 4 * s**2) + sign) / 2) for sign in (30.0, -30.0))
    w1, w2 = (r * first) @ vt, (u * second) @ r.T
    score = linear.task_specific_score(linear.Network(jnp.asarray(w1), jnp.asarray(w2)), task)
    plain, squared = (u * s) @ u.T, (u * s**2) @ u.T
    right = max(cosine(w2 @ w2.T, plain), cosine(w2 @ w2.T, squared))
    np.testing.assert_allclose(score.outputs, right, rtol=1e-12)
    # As λ → −∞ it tends to 1, its maximum, up to (s/λ)⁴.
    assert 1 - right < 1e-5
    printed = max(cosine(w2 @ w2.T, plain), cosine(w2.T @ w2, squared))
    assert 1 - printed > 0.01


def test_not_every_network_reaches_the_global_minimum():
    """The text after equation 2.6 says that all do; a bottleneck cannot."""
    task = linear.random_regression(3, 3, 12, key=jr.key(0))
    s = np.linalg.svd(np.asarray(task.sigma_yx), compute_uv=False)
    state = linear.converged_state(task, lam=0.0, rank=2)
    excess = linear.function_loss(state.function, task) - task.constant
    np.testing.assert_allclose(excess, 0.5 * s[2] ** 2, rtol=1e-10)
    # "Bottlenecks never reach zero loss" (domine2025, section 4) is true only if the task has more modes.
    u, _, vt = np.linalg.svd(np.asarray(task.sigma_yx))
    easy = linear.Task.from_correlation((u[:, :2] * s[:2]) @ vt[:2])
    reached = linear.converged_state(easy, lam=0.0, rank=2)
    assert linear.function_loss(reached.function, easy) < 1e-25


def test_half_of_all_square_starts_end_on_a_saddle():
    """Assumption 2.2.1, B = UᵀŨ + VᵀṼ non-singular, fails if det W2W1 and det Σ differ in sign."""
    rng = np.random.default_rng(3)
    u, _, vt = np.linalg.svd(rng.normal(size=(2, 1000, 3, 3)) @ rng.normal(size=(2, 1000, 3, 3)))
    b = np.swapaxes(u[0], 1, 2) @ u[1] + vt[0] @ np.swapaxes(vt[1], 1, 2)
    is_singular = np.linalg.svd(b, compute_uv=False)[:, -1] < 1e-12
    signs = np.sign(np.linalg.det(u) * np.linalg.det(vt))
    np.testing.assert_array_equal(is_singular, signs[0] != signs[1])
    # 1000 draws of probability ½: five standard errors are 0.08.
    assert abs(np.mean(is_singular) - 0.5) < 0.08
    # And "the network will converge to the global minimum" (after 2.6) is then false: ½ s_min² is left.
    w1, w2 = balanced_weights((3, 3, 3), 0.0, 3)
    u, _, vt = np.linalg.svd(w2 @ w1)
    s = np.array([3.0, 2.5, 0.4])
    turned = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    for sign in (1.0, -1.0):
        mirror = np.array([1.0, 1.0, sign * np.linalg.det(turned)])
        sigma = (u * mirror) @ turned @ np.diag(s) @ vt
        task = linear.Task.from_correlation(jnp.asarray(sigma))
        network = linear.Network(jnp.asarray(w1), jnp.asarray(w2))
        assert linear.can_converge(network, task) == (sign > 0)
        later1, later2 = integrate_weights(w1, w2, sigma, np.eye(3), [14.0])[0]
        excess = 0.5 * np.sum((later2 @ later1 - sigma) ** 2)
        # What is left of the transient is a share e^{−2 s_min t} = 1e-5 of a mode of strength s_min.
        np.testing.assert_allclose(excess, 0.5 * s[2] ** 2 if sign < 0 else 0.0, atol=1e-5)


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
    with pytest.raises(ValueError, match="rank"):
        linear.lambda_balanced(3, 5, 3, lam=1.0, key=jr.key(0))
    network = linear.lambda_balanced(3, 5, 3, lam=1.0, rank=3, key=jr.key(0))
    d, q = np.asarray(linear.balance(network)), np.asarray(network.q)
    np.testing.assert_allclose(q @ d, q, atol=1e-13)
    # Three of five hidden directions, whatever the algorithm draws: it looks at no size.
    np.testing.assert_allclose(off(d, np.eye(5)), math.sqrt(2 / 5), rtol=1e-12)
    # The solution holds all the same.
    sigma = np.asarray(jr.normal(jr.key(3), (3, 3)))
    rates, p = np.linalg.eigh(riccati(sigma, 1.0))
    reference = stacked(*integrate_weights(network.w1, network.w2, sigma, np.eye(3), [0.7])[0])
    np.testing.assert_allclose(state(p, rates, q, 0.7), reference, atol=1e-8)


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
