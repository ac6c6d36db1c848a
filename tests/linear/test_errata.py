"""Corrections to anguita2024 and domine2025: what the library says holds, what is printed does not.

Each test computes the printed formula beside the corrected one and an independent measurement, so that
putting the printed version back would fail. Everything here is small and needs NumPy only, or one exact
solution.
"""

import math

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.linalg
from flow_reference import integrate_weights

from nullcline import linear


def off(a, b):
    """Relative distance of two arrays."""
    return float(np.linalg.norm(np.asarray(a) - np.asarray(b)) / np.linalg.norm(np.asarray(b)))


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
        assert off(printed_mode(1.5, 0.3, lam, t), ours) > 0.1


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


def test_diagonal_variance_is_two_v():
    """Theorem 3.1.1 prints 4v. The ratio has standard error 0.02 over 20 000 draws: false alarms 1e-6."""
    rng = np.random.default_rng(0)
    w1, w2 = rng.normal(size=(20_000, 4, 3)) / math.sqrt(3), rng.normal(size=(20_000, 5, 4)) / 2
    d = np.einsum("noh,nog->nhg", w2, w2) - np.einsum("nhi,ngi->nhg", w1, w1)
    expected = linear.expected_balance(3, 4, 5, scheme="lecun")
    ratio = np.var(d[:, 0, 0]) / expected.variance
    assert abs(ratio - 2) < 0.1
    assert expected.diagonal_variance == 2 * expected.variance


def test_scaled_row_has_fourth_powers():
    """Table 3.2 prints α² in the variance of the Scaled row; table 3.1 implies α⁴."""
    expected = linear.expected_balance(10, 20, 30, scheme="scaled", alphas=(2.0, 3.0))
    direct = 30 * (9.0 / 20) ** 2 + 10 * (4.0 / 10) ** 2
    np.testing.assert_allclose(expected.variance, direct, rtol=1e-14)
    k, r = 2.0, 3.0
    printed = (r * 3.0**2 / k**2 + 2.0**2) / 10
    assert abs(printed / direct - 1) > 0.5


def test_glorot_row_of_the_limits():
    """Table 3.3 prints 0, 2, 2, 0, −2/(k+1) for r = k, r → 0, r → ∞, k → ∞, k → 0."""
    k, far = 3.0, 10**9
    cases = {"r=k": (far, 3 * far, 3 * far), "r->0": (10 * far, 30 * far, 1), "r->inf": (100, 300, far)}
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
    # Four hidden units, two modes: exactly two eigenvalues are λ, and W1ᵀW1 has no block of its own at all.
    assert np.sum(np.abs(values - 3.0) < 1e-12) == 2 and state.input_gram.shape == (2, 2)
    network = linear.lambda_balanced(2, 4, 4, lam=3.0, key=jr.key(1))
    _, w2 = integrate_weights(network.w1, network.w2, task.sigma_yx, np.eye(2), [40.0])[0]
    np.testing.assert_allclose(w2 @ w2.T, state.output_gram, atol=1e-8)
    # (2): with N_h < N_o, W2W2ᵀ has rank N_h and cannot tend to λI.
    narrow = linear.converged_state(linear.random_regression(4, 4, 12, key=jr.key(0)), lam=1e4, rank=2)
    assert off(narrow.output_gram, 1e4 * np.eye(4)) > 0.5


def test_kernel_change_has_two_terms_of_one_order():
    """Equations 4.18 and 4.19 keep one of them; 4.16 uses the later strengths for the initial kernel."""
    task = linear.random_regression(3, 3, 12, key=jr.key(0))
    network = linear.lambda_balanced(3, 3, 3, lam=100.0, key=jr.key(1))
    w1, w2 = integrate_weights(network.w1, network.w2, task.sigma_yx, np.eye(3), [0.02])[0]
    before, after = np.asarray(network.function), w2 @ w1
    x = np.asarray(task.x)
    change = np.kron(np.eye(3), x.T @ (w1.T @ w1 - np.asarray(network.w1.T @ network.w1)) @ x)
    change += np.kron(w2 @ w2.T - np.asarray(network.w2 @ network.w2.T), x.T @ x)
    first = np.kron(np.eye(3), x.T @ (after.T @ after - before.T @ before) @ x) / 100.0
    second = np.kron(after @ after.T - before @ before.T, x.T @ x) / 100.0
    assert off(first + second, change) < 2e-3
    assert off(first, change) > 0.3


def test_shallow_network():
    """Theorem 4.2.1 prints S for the representations; they are S². Its kernel never moves."""
    task = linear.random_regression(3, 3, 12, key=jr.key(0))
    end = np.asarray(linear.shallow_flow(jnp.zeros((3, 3)), task, jnp.array([60.0]))[0])
    u, s, vt = np.linalg.svd(np.asarray(task.sigma_yx))
    assert off(end.T @ end, (vt.T * s**2) @ vt) < 1e-12 and off(end @ end.T, (u * s**2) @ u.T) < 1e-12
    assert off(end.T @ end, (vt.T * s) @ vt) > 0.1


def test_lazy_rate_is_lambda():
    """After equation 3.77 and in section 4.3 the rate |λ|/2 is printed; the error decays as e^{−|λ|t}."""
    task = linear.random_regression(3, 3, 12, key=jr.key(0))
    network = linear.lambda_balanced(3, 3, 3, lam=-200.0, key=jr.key(1))
    path = integrate_weights(network.w1, network.w2, task.sigma_yx, np.eye(3), [0.005, 0.015])
    errors = [np.linalg.norm(w2 @ w1 - np.asarray(task.sigma_yx)) for w1, w2 in path]
    rate = math.log(errors[0] / errors[1]) / 0.01
    np.testing.assert_allclose(rate, 200.0, rtol=1e-2)


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
    power = jnp.sum(task.y**2) / 12
    np.testing.assert_allclose(linear.function_loss(f, task), quadratic + 0.5 * power, rtol=1e-12)
    assert abs(linear.function_loss(f, task) - (quadratic + power)) > 0.1


def test_rate_of_loss_needs_its_bracket():
    """Equation 4.36 prints tr(ḟ fᵀ − Σᵀ); it is tr(ḟ (f − Σ)ᵀ), and −(‖W2ᵀR‖² + ‖RW1ᵀ‖²) on the own task."""
    task = linear.random_regression(3, 3, 12, key=jr.key(0))
    w1, w2 = (np.asarray(jr.normal(jr.key(seed), (3, 3))) for seed in (1, 2))
    sigma, f = np.asarray(task.sigma_yx), w2 @ w1
    residual = sigma - f
    velocity = w2 @ w2.T @ residual + residual @ w1.T @ w1
    h = 1e-6
    step = [
        0.5 * np.sum(((w2 + e * residual @ w1.T) @ (w1 + e * w2.T @ residual) - sigma) ** 2) for e in (-h, h)
    ]
    rate = (step[1] - step[0]) / (2 * h)
    np.testing.assert_allclose(np.sum(velocity * (f - sigma)), rate, rtol=1e-6)
    squares = np.sum((w2.T @ residual) ** 2) + np.sum((residual @ w1.T) ** 2)
    np.testing.assert_allclose(-squares, rate, rtol=1e-6)
    # 6.6% here, against 1e-6 above.
    assert abs(np.trace(velocity @ f.T - sigma.T) / rate - 1) > 0.05


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


def rotation(sigma, lam, sign=-1.0, factor=1.0):
    """O of anguita2024, Theorem 3.3.1 (2), for a square task, and the singular values."""
    u, s, vt = np.linalg.svd(sigma)
    x = factor * lam / (np.sqrt(lam**2 + 4 * s**2) + 2 * s)
    a = 1 / np.sqrt(2 * (1 + x**2))
    return np.block([[vt.T * (a - x * a), vt.T * (a + x * a)], [u * (a + x * a), sign * u * (a - x * a)]]), s


def state(p, rates, q, t, power=2.0, invert=True):
    """QQᵀ by domine2025, Theorem A.3, in a basis of eigenvectors."""
    y = p.T @ q
    inner = np.eye(q.shape[1]) + y.T @ ((np.expm1(power * rates * t) / (2 * rates))[:, None] * y)
    grown = p @ (np.exp(rates * t)[:, None] * y)
    return grown @ (np.linalg.inv(inner) if invert else inner) @ grown.T


def test_rotation_of_the_square_solution():
    """Theorem 3.3.1 (2) prints a lower row without its sign, and equation 3.49 an X without its factor 2."""
    lam, sigma = 0.8, np.asarray(jr.normal(jr.key(3), (3, 3)))
    f = np.block([[-lam / 2 * np.eye(3), sigma.T], [sigma, lam / 2 * np.eye(3)]])
    o, s = rotation(sigma, lam)
    rates = np.concatenate([np.hypot(s, lam / 2), -np.hypot(s, lam / 2)])
    np.testing.assert_allclose(o.T @ o, np.eye(6), atol=1e-14)
    np.testing.assert_allclose(f @ o, o * rates, atol=1e-14)
    for printed, _ in (rotation(sigma, lam, sign=1.0), rotation(sigma, lam, factor=0.5)):
        assert off(f @ printed, printed * rates) > 0.02
    # e^{Ft} = O e^{Λt} Oᵀ (domine2025, equation 15).
    grown = scipy.linalg.expm(0.7 * f)
    np.testing.assert_allclose((o * np.exp(0.7 * rates)) @ o.T, grown, atol=1e-13)
    assert off((o.T * np.exp(0.7 * rates)) @ o, grown) > 0.1


def test_bracket_is_inverted_and_exponents_are_twice_the_rates():
    """Equation 2.30 and Theorem 3.3.1 (3) lack the inverse; 3.67-3.76 and domine2025 (30) print e^{Λt}."""
    network = linear.lambda_balanced(3, 3, 3, lam=0.8, key=jr.key(4))
    sigma, t = np.asarray(jr.normal(jr.key(3), (3, 3))), 0.7
    o, s = rotation(sigma, 0.8)
    rates, q = np.concatenate([np.hypot(s, 0.4), -np.hypot(s, 0.4)]), np.asarray(network.q)
    exact = linear.exact_flow(network, linear.Task.from_correlation(jnp.asarray(sigma)), jnp.array([t])).qqt[
        0
    ]
    np.testing.assert_allclose(state(o, rates, q, t), exact, rtol=1e-11, atol=1e-12)
    assert off(state(o, rates, q, t, invert=False), exact) > 0.5
    assert off(state(o, rates, q, t, power=1.0), exact) > 0.05
    # The start is rotated by UᵀŨ (3.60-3.61 print ŨᵀŨ = I, which forgets it).
    assert off(q @ q.T, state(np.eye(6), rates, o.T @ q, 0.0)) > 0.1
    np.testing.assert_allclose(state(o, rates, q, 0.0), q @ q.T, atol=1e-13)


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


def test_admissible_balance_and_its_extra_directions():
    """Theorem 3.4.1 (2) excludes (2, 2, 4) with λ = −2; Algorithm 1 forgets √|λ| beyond the task's modes."""
    np.testing.assert_allclose(
        linear.balance(linear.lambda_balanced(2, 2, 4, lam=-2.0, key=jr.key(0))), -2 * np.eye(2), atol=1e-13
    )
    np.testing.assert_allclose(
        linear.balance(linear.lambda_balanced(4, 4, 2, lam=-1.0, key=jr.key(0))), -np.eye(4), atol=1e-13
    )
    modes = np.array([1.3, 0.4])
    first, second = (np.sqrt((np.sqrt(1 + 4 * modes**2) + sign) / 2) for sign in (1, -1))
    printed = np.diag(np.append(second, [0, 0])) ** 2 - np.diag(np.append(first, [0, 0])) ** 2
    assert off(printed, -np.eye(4)) > 0.5
