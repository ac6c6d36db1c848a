"""Corrections to anguita2024 and domine2025: where training ends, and very large |λ|.

Like those of ``test_errata``: printed and corrected formulas beside an independent measurement.
"""

import math

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from flow_reference import balanced_weights, integrate_weights, off

from nullcline import linear


def cosine(a, b):
    """Frobenius cosine of two matrices."""
    return np.sum(a * b) / (np.linalg.norm(a) * np.linalg.norm(b))


@pytest.mark.parametrize("lam", [0.0, 1.0, -1.0])
def test_not_every_network_reaches_the_global_minimum(lam):
    """The text after equation 2.6 says that all do; a bottleneck leaves what its rank leaves out.

    "Bottlenecks never reach zero loss" (domine2025, section 4) is true only if the task has more modes.
    """
    w1, w2 = balanced_weights((3, 2, 3), lam, 2)
    u, _, vt = np.linalg.svd(np.random.default_rng(1).normal(size=(3, 3)))
    for weakest in (0.6, 0.0):
        sigma = (u * [2.0, 1.2, weakest]) @ vt
        later1, later2 = integrate_weights(w1, w2, sigma, np.eye(3), [40.0])[0]
        excess = 0.5 * np.sum((later2 @ later1 - sigma) ** 2)
        np.testing.assert_allclose(excess, 0.5 * weakest**2, rtol=1e-10, atol=1e-18)
        end = linear.converged_state(linear.Task.from_correlation(jnp.asarray(sigma)), lam=lam, rank=2)
        np.testing.assert_allclose(end.function, later2 @ later1, atol=1e-8)


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


def test_expansion_of_the_root():
    """Equation 4.10 prints √(1+x²) = 1 + x²; the result S²/|λ| needs 1 + x²/2."""
    lam, s = 50.0, 1.7
    exact = (math.hypot(lam, 2 * s) - lam) / 2
    assert abs(exact / (s**2 / lam) - 1) < 5e-3
    assert abs(exact / (lam * (2 * s / lam) ** 2 / 2) - 1) > 0.4


def converged_grams(sizes, lam, sigma):
    """Eigenvalues of W1ᵀW1 and W2W2ᵀ after training, by the flow and as ``converged_state`` has them."""
    w1, w2 = balanced_weights(sizes, lam, sizes[1])
    later1, later2 = integrate_weights(w1, w2, sigma, np.eye(sizes[0]), [40.0])[0]
    state = linear.converged_state(linear.Task.from_correlation(jnp.asarray(sigma)), lam=lam, rank=sizes[1])
    grams = later1.T @ later1, later2 @ later2.T
    for gram, ours in zip(grams, (state.input_gram, state.output_gram), strict=True):
        np.testing.assert_allclose(gram, ours, atol=1e-8)
    return [np.linalg.eigvalsh(gram) for gram in grams]


def test_converged_blocks():
    """Theorem 4.1.2 (1) prints blocks λ I_max(n_o, n_i) and −λI; only r − #modes directions keep |λ|."""
    tall = np.random.default_rng(2).normal(size=(4, 2))
    # Four hidden units, two modes: twice λ in W2W2ᵀ, not max(n_o, n_i) = 4 times; and in W1ᵀW1, which is
    # positive semidefinite, no −λ. With the layers exchanged the same of −λ.
    for sizes, lam, sigma in (((2, 4, 4), 3.0, tall), ((4, 4, 2), -3.0, tall.T)):
        inputs, outputs = converged_grams(sizes, lam, sigma)
        strong, weak = (outputs, inputs) if lam > 0 else (inputs, outputs)
        assert np.sum(np.abs(strong - 3.0) < 1e-8) == 2 and strong.size == 4
        assert weak.size == 2 and weak.min() > 0.1 and np.all(np.abs(weak - 3.0) > 0.1)
    # A square network and a task of two modes: |λ| once in one layer, and in the other, for it, nothing.
    u, _, vt = np.linalg.svd(np.random.default_rng(3).normal(size=(3, 3)))
    sigma = (u * [1.5, 0.8, 0.0]) @ vt
    for lam in (2.0, -2.0):
        inputs, outputs = converged_grams((3, 3, 3), lam, sigma)
        strong, weak = (outputs, inputs) if lam > 0 else (inputs, outputs)
        assert np.sum(np.abs(strong - 2.0) < 1e-8) == 1 and np.abs(weak[0]) < 1e-8 < 0.1 < weak[1]


@pytest.mark.parametrize("lam", [1e4, -1e4])
def test_large_layers_of_narrow_networks(lam):
    """Theorem 4.1.2 (2): with N_h < N_o (N_i) W2W2ᵀ (W1ᵀW1) has rank N_h and cannot tend to |λ| I."""
    task = linear.random_regression(4, 4, 12, key=jr.key(0))
    narrow = linear.converged_state(task, lam=lam, rank=2)
    strong = narrow.output_gram if lam > 0 else narrow.input_gram
    np.testing.assert_allclose(off(strong, abs(lam) * np.eye(4)), math.sqrt(0.5), rtol=1e-6)


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


@pytest.mark.parametrize("sizes", [(2, 2, 4), (4, 2, 2)])
@pytest.mark.parametrize("lam", [100.0, -100.0])
def test_kernel_is_lazy_for_one_sign_only(sizes, lam):
    """Theorem 4.1.3 has no sizes: for N_i = N_h < N_o the kernel stays if λ → −∞, and turns if λ → +∞."""
    n_in, _, n_out = sizes
    w1, w2 = balanced_weights(sizes, lam, 2)
    sigma = np.asarray(jr.normal(jr.key(5), (n_out, n_in)))
    end = linear.converged_state(linear.Task.from_correlation(jnp.asarray(sigma)), lam=lam, rank=2)
    start = np.kron(np.eye(n_out), w1.T @ w1) + np.kron(w2 @ w2.T, np.eye(n_in))
    change = np.kron(np.eye(n_out), end.input_gram) + np.kron(end.output_gram, np.eye(n_in)) - start
    before = w2 @ w1
    claimed = np.kron(np.eye(n_out), sigma.T @ sigma - before.T @ before) / 100.0
    claimed += np.kron(sigma @ sigma.T - before @ before.T, np.eye(n_in)) / 100.0
    if (lam < 0) == (n_in < n_out):
        later1, later2 = integrate_weights(w1, w2, sigma, np.eye(n_in), [0.3])[0]
        np.testing.assert_allclose(later1.T @ later1, end.input_gram, atol=1e-8)
        np.testing.assert_allclose(later2 @ later2.T, end.output_gram, atol=1e-8)
        # The next terms are s²/λ² of these, with s < 3.
        assert off(claimed, change) < 2e-3
    else:
        # The strong layer is |λ| times a projector on two of four directions, which turns towards the task.
        assert off(claimed, change) > 0.9 and np.linalg.norm(change) > 0.2 * np.linalg.norm(start)


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
    # The factors Z do grow at |λ|/2: what is wrong is to read the rate of the state off one of them.
    f = np.block([[-lam / 2 * np.eye(3), task.sigma_yx.T], [task.sigma_yx, lam / 2 * np.eye(3)]])
    np.testing.assert_allclose(np.abs(np.linalg.eigvalsh(f)), -lam / 2, rtol=1e-3)


@pytest.mark.parametrize("lam", [10.0, -10.0])
def test_real_learning_rate_is_that_of_the_state(lam):
    """After 3.77 the step that counts is printed as ηλ/2; it is η√(λ² + 4s₁²), at large |λ| η|λ|, up to 2."""
    rng = np.random.default_rng(0)
    u, v = (np.linalg.qr(rng.normal(size=(3, 3)))[0] for _ in range(2))
    s = np.array([1.5, 1.0, 0.5])
    task = linear.Task.from_correlation(jnp.asarray((u * s) @ v.T))
    learned = linear.aligned(task, 3, lam=lam, strengths=jnp.asarray(s), key=jr.key(0))
    near = linear.Network(*(w + 1e-6 * rng.normal(size=(3, 3)) for w in (learned.w1, learned.w2)))
    shrunk = {}
    for real in (1.9, 2.1):
        learning_rate = real / math.hypot(lam, 3.0)
        descent = linear.gradient_descent(near, task, learning_rate, 150)
        start, end = (np.linalg.norm(descent.function[m] - task.sigma_yx) for m in (0, -1))
        shrunk[real] = end / start
        assert abs(learning_rate * lam / 2) < 2  # as printed both would be stable
    # The error of the stiffest mode is multiplied by 1 − 1.9 and 1 − 2.1: 0.9¹⁵⁰ = 1e-7, 1.1¹⁵⁰ = 2e6.
    assert shrunk[1.9] < 1e-6 and shrunk[2.1] > 1e3 and not descent.is_ok


@pytest.mark.parametrize(
    ("sizes", "lam", "is_lazy"),
    [
        ((4, 2, 4), 100.0, False),
        ((4, 2, 4), -100.0, False),
        ((2, 2, 4), 100.0, False),
        ((2, 2, 4), -100.0, True),
        ((4, 2, 2), 100.0, True),
        ((4, 2, 2), -100.0, False),
    ],
)
def test_large_lambda_needs_the_right_width(sizes, lam, is_lazy):
    """Theorem 4.2.3 claims shallow dynamics for every architecture; others are still on their plateau.

    Needed is N_h = N_o for λ → +∞, N_h = N_i for λ → −∞. Theorem 4.1.2 (2) asks for neither.
    """
    task = linear.random_regression(sizes[0], sizes[2], 12, key=jr.key(0))
    network = linear.lambda_balanced(*sizes, lam=lam, key=jr.key(1))
    w1, w2 = integrate_weights(network.w1, network.w2, task.sigma_yx, np.eye(sizes[0]), [0.1])[0]
    start, target = np.asarray(network.function), np.asarray(task.sigma_yx)
    claimed = off(w2 @ w1, target + (start - target) * math.exp(-10.0))
    strong = w2 @ w2.T if lam > 0 else w1.T @ w1
    identity = off(strong, abs(lam) * np.eye(len(strong)))
    if is_lazy:
        # Corrections are of relative order s²/λ² of what is left of the start, e⁻¹⁰.
        assert claimed < 1e-5 and identity < 5e-3
        state = linear.lazy_limit(network, task, jnp.array([0.1]))
        np.testing.assert_allclose(state.function[0], w2 @ w1, atol=1e-5)
    else:
        assert claimed > 0.2 and abs(identity - math.sqrt(0.5)) < 1e-2
        with pytest.raises(ValueError, match="lazy limit exists"):
            linear.lazy_limit(network, task, jnp.array([0.1]))


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
