"""Corrections to anguita2024: the model, single modes, random weights. What is printed does not hold.

Each test computes the printed formula beside the corrected one and an independent measurement, so that
putting the printed version back would fail. Everything here is small and needs NumPy only, or one exact
solution. Reference flows are solved to a relative 1e-11 a step, hence tolerances of 1e-8 against them.
"""

import math

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from flow_reference import integrate_weights, off
from scipy.integrate import solve_ivp

from nullcline import linear


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


def corrected_mode(s, a0, lam, t, has_sign=True, has_size=True):
    """The same with e^{sgn(λ)Kt} (``has_sign``) and √(λ² + 4a²) + |λ| (``has_size``)."""
    k = math.hypot(lam, 2 * s)
    shift = 4 * a0 * s * np.sign(lam) / (math.hypot(lam, 2 * a0) + (abs(lam) if has_size else lam))
    c = (k + lam + shift) / (k - lam - shift)
    grown = c * np.exp((np.sign(lam) if has_sign else 1) * k * t)
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
        # Neither of the two corrections will do alone.
        assert off(corrected_mode(1.5, 0.3, lam, t, has_sign=False), ours) > 0.5
        assert off(corrected_mode(1.5, 0.3, lam, t, has_size=False), ours) > 5


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
    """Theorem 3.1.1 prints 4v. The ratio has standard error 0.03 over 20 000 draws: false alarms 1e-6."""
    rng = np.random.default_rng(0)
    w1, w2 = rng.normal(size=(20_000, 4, 3)) / math.sqrt(3), rng.normal(size=(20_000, 5, 4)) / 2
    d = np.einsum("noh,nog->nhg", w2, w2) - np.einsum("nhi,ngi->nhg", w1, w1)
    expected = linear.expected_balance(3, 4, 5, scheme="lecun")
    ratio = np.var(d[:, 0, 0]) / expected.variance
    assert abs(ratio - 2) < 0.15
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
