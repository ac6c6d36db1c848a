"""Where training ends, the shallow network, and very large |λ|."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from flow_reference import integrate_weights, stacked
from scipy.linalg import expm

from nullcline import linear

# n_in, n_hidden, n_out, λ, rank of the task: every case of where the weights beyond the task's modes go.
CASES = [
    (4, 3, 3, 1.0, 3),  # funnel: all of W2W2ᵀ used
    (4, 3, 3, -1.0, 3),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (
            (3, 4, 4, 2.0, 3),  # one output direction keeps λ
            (4, 4, 3, -2.0, 3),  # one input direction keeps |λ|
            (4, 2, 4, 0.0, 4),  # bottleneck: best rank-2 approximation
            (4, 2, 4, -3.0, 4),
            (4, 4, 4, 1.5, 2),  # rank-deficient task, square: two directions keep |λ|
            (4, 4, 4, -1.5, 2),
        )
    ),
]


def low_rank_task(n_in, n_out, rank, key=4):
    matrix = jr.normal(jr.key(key), (n_out, n_in))
    u, s, vt = np.linalg.svd(np.asarray(matrix), full_matrices=False)
    return linear.Task.from_correlation((u[:, :rank] * s[:rank]) @ vt[:rank])


@pytest.mark.parametrize(("n_in", "n_hidden", "n_out", "lam", "rank"), CASES)
def test_converged_state(n_in, n_hidden, n_out, lam, rank):
    task = low_rank_task(n_in, n_out, rank)
    network = linear.lambda_balanced(n_in, n_hidden, n_out, lam=lam, key=jr.key(3))
    state = linear.converged_state(task, lam=lam, rank=n_hidden)
    assert linear.can_converge(network, task)
    late = linear.limit(network, task)
    for got, expected in (
        (late.function[0], state.function),
        (late.input_gram[0], state.input_gram),
        (late.output_gram[0], state.output_gram),
    ):
        np.testing.assert_allclose(got, expected, atol=1e-12)
    # Independent of the solver: the flow itself, integrated until it stands still (rates here are above 0.1).
    if lam != 0:
        w1, w2 = integrate_weights(network.w1, network.w2, task.sigma_yx, np.eye(n_in), [150.0])[0]
        top = np.concatenate([state.input_gram, state.function.T], axis=1)
        bottom = np.concatenate([state.function, state.output_gram], axis=1)
        np.testing.assert_allclose(stacked(w1, w2), np.concatenate([top, bottom]), atol=1e-7)
    # Excess loss: what the rank leaves out.
    s = np.linalg.svd(np.asarray(task.sigma_yx), compute_uv=False)
    excess = linear.function_loss(state.function, task)
    np.testing.assert_allclose(excess, 0.5 * np.sum(s[n_hidden:] ** 2), atol=1e-12)


def test_converged_state_refuses_what_it_cannot_know():
    with pytest.raises(ValueError, match=r"1 of 2 directions outside the task .* `limit"):
        linear.converged_state(low_rank_task(4, 4, 2), lam=1.0, rank=3)
    with pytest.raises(ValueError, match="equal singular values"):
        linear.converged_state(linear.Task.from_correlation(jnp.eye(3)), lam=1.0, rank=2)
    with pytest.raises(ValueError, match="No weights of rank 5"):
        linear.converged_state(low_rank_task(4, 4, 2), lam=1.0, rank=5)


@pytest.mark.slow
def test_limit_on_the_semantic_task():
    """Isotropic inputs with κ = 1/8: the function ends at the target Y, not at Σ."""
    task = linear.semantic_hierarchy()
    network = linear.lambda_balanced(8, 8, 8, lam=3.0, key=jr.key(0))
    late = linear.limit(network, task)
    np.testing.assert_allclose(late.function[0], task.y, atol=1e-12)
    state = linear.converged_state(task, lam=3.0, rank=8)
    np.testing.assert_allclose(late.output_gram[0], state.output_gram, atol=1e-11)


def test_half_of_square_zero_balanced_starts_end_on_a_saddle():
    """Fair coin over 40 pairs: between 8 and 32 with probability 1 - 1e-4; and the determinant decides."""
    count = 0
    for seed in range(40):
        task = linear.random_regression(3, 3, 12, key=jr.key(1000 + seed))
        network = linear.lambda_balanced(3, 3, 3, lam=0.0, key=jr.key(seed))
        same = np.linalg.det(network.function) * np.linalg.det(task.sigma_yx) > 0
        assert linear.can_converge(network, task) == same
        # Weights that were float32 overlap with what they cannot learn by their rounding, 1e-7.
        assert linear.can_converge(jax.tree.map(lambda w: w.astype(jnp.float32), network), task) == same
        count += same
        if seed < 3:
            s = np.linalg.svd(np.asarray(task.sigma_yx), compute_uv=False)
            excess = linear.function_loss(linear.limit(network, task).function[0], task) - task.constant
            np.testing.assert_allclose(excess, 0.0 if same else 0.5 * s[-1] ** 2, atol=1e-12)
    assert 8 <= count <= 32


def test_no_saddle_is_left_by_rounding():
    """Hundreds of starts, ill-conditioned ones among them: the determinant alone decides at t = 1e6."""

    def one(key):
        first, second = jr.split(key)
        network = linear.lambda_balanced(3, 3, 3, lam=0.0, scale=0.5, key=first)
        sigma = jr.normal(second, (3, 3))
        late = linear.exact_flow(network, linear.Task.from_correlation(sigma), jnp.array([1e6])).function[0]
        s = jnp.linalg.svd(sigma, compute_uv=False)
        sign = jnp.linalg.det(network.function) * jnp.linalg.det(sigma)
        return sign > 0, jnp.sum((late - sigma) ** 2) / s[-1] ** 2

    is_right, left = jax.jit(lambda keys: jax.lax.map(one, keys))(jr.split(jr.key(3), 400))
    np.testing.assert_allclose(left, np.where(is_right, 0.0, 1.0), atol=1e-9)


def test_can_converge_elsewhere():
    task = linear.random_regression(3, 3, 12, key=jr.key(1))
    wrong = linear.aligned(task, 2, lam=0.0, strengths=jnp.array([0.0, 0.4]), key=jr.key(2))
    assert not linear.can_converge(wrong, task)
    right = linear.aligned(task, 2, lam=0.0, strengths=jnp.array([0.1, 0.4]), key=jr.key(2))
    assert linear.can_converge(right, task)
    balanced = linear.lambda_balanced(3, 3, 3, lam=0.01, key=jr.key(0))
    assert linear.can_converge(balanced, task)
    assert linear.can_converge(balanced, linear.Task.from_correlation(jnp.zeros((3, 3))))


@pytest.mark.parametrize(
    ("shape", "sign"),
    [
        ((3, 3, 3), 1),
        ((3, 3, 3), -1),
        pytest.param((4, 2, 2), 1, marks=pytest.mark.slow),
        pytest.param((2, 2, 4), -1, marks=pytest.mark.slow),
    ],
)
def test_lazy_limit_is_second_order(shape, sign):
    """Relative errors fall as λ⁻², for the function and for the change of each representation."""
    task = linear.random_regression(shape[0], shape[2], 12, key=jr.key(1))
    errors = []
    for lam in (30.0, 300.0):
        network = linear.lambda_balanced(*shape, lam=sign * lam, key=jr.key(3))
        times = jnp.array([0.0, 0.5, 1.0, 3.0]) / lam
        exact, lazy = linear.exact_flow(network, task, times), linear.lazy_limit(network, task, times)
        pairs = [
            (lazy.function, exact.function),
            (lazy.input_gram - lazy.input_gram[:1], exact.input_gram - exact.input_gram[:1]),
            (lazy.output_gram - lazy.output_gram[:1], exact.output_gram - exact.output_gram[:1]),
        ]
        errors.append([np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in pairs])
    ratio = np.array(errors[0]) / np.array(errors[1])
    assert np.all(np.array(errors[1]) < 1e-3)
    np.testing.assert_allclose(ratio, 100.0, rtol=0.2)


def test_lazy_limit_refuses_rotating_layers():
    task = linear.random_regression(4, 4, 12, key=jr.key(1))
    bottleneck = linear.lambda_balanced(4, 2, 4, lam=50.0, key=jr.key(0))
    with pytest.raises(ValueError, match="`n_hidden` = 2 and `n_out` = 4"):
        linear.lazy_limit(bottleneck, task, jnp.array([1.0]))
    # λ = 0, read off weights as rounding noise, has no such limit either.
    square = linear.lambda_balanced(4, 4, 4, lam=0.0, key=jr.key(0))
    with pytest.raises(ValueError, match="got λ = 0, "):
        linear.lazy_limit(square, task, jnp.array([1.0]))
    # Where nothing can raise, nothing is claimed.
    limit = jax.jit(lambda network: linear.lazy_limit(network, task, jnp.array([0.0, 1.0])).function)
    right = linear.lambda_balanced(4, 4, 4, lam=50.0, key=jr.key(0))
    assert np.isfinite(limit(right)).all()
    for wrong in (square, bottleneck, linear.gaussian(4, 4, 4, key=jr.key(0))):
        assert np.isnan(limit(wrong)).all()


@pytest.mark.parametrize(
    ("shape", "sign"), [((4, 2, 4), 1), ((4, 2, 4), -1), ((2, 2, 4), 1), ((4, 2, 2), -1)]
)
def test_layers_rotate_at_the_rotation_time(shape, sign):
    """Large |λ|, where the strong layer is |λ| times a projector Π that cannot stay.

    Rates of the strong layer's directions are |λ|/2 + s²/|λ|: Π is that on exp(ΣΣᵀt/λ) W2(0), whatever λ
    is if t is told in units of it, and the loss ‖(I − Π)Σ‖²/2. (For λ < 0 of the transposed network.)
    """
    task = linear.random_regression(shape[0], shape[2], 12, key=jr.key(1))
    share = np.array([0.05, 0.3, 1.0, 2.0, 4.0])
    errors = []
    for lam in (100.0, 300.0):
        network = linear.lambda_balanced(*shape, lam=sign * lam, key=jr.key(5))
        times = share * float(linear.rotation_time(task, sign * lam))
        loss = linear.function_loss(linear.exact_flow(network, task, times).function, task) - task.constant
        strong, sigma = np.asarray(network.w2), np.asarray(task.sigma_yx)
        if sign < 0:
            strong, sigma = np.asarray(network.w1).T, sigma.T
        values, u = np.linalg.eigh(sigma @ sigma.T)
        # At the rotation time the strongest direction has grown by e².
        np.testing.assert_allclose(np.exp(values[-1] * times[2] / lam), np.exp(2.0), rtol=1e-12)
        expected = []
        for t in times:
            frame = np.linalg.qr((u * np.exp((values - values[-1]) * t / lam)) @ u.T @ strong)[0]
            expected.append(0.5 * np.linalg.norm(sigma - frame @ frame.T @ sigma) ** 2)
        # Half of what the rotation takes off the loss goes within 0.3 and 2 of these times, long after 1/λ.
        assert loss[3] < (loss[0] + loss[-1]) / 2 < loss[1]
        errors.append(np.abs(loss - np.array(expected)) / expected[0])
    assert np.max(errors[1]) < 1e-4
    # Corrections are of order λ⁻²: nine times smaller.
    np.testing.assert_allclose(np.linalg.norm(errors[0]) / np.linalg.norm(errors[1]), 9.0, rtol=0.02)


@pytest.mark.parametrize(
    ("shape", "sign"), [((3, 3, 3), 1), ((3, 3, 3), -1), ((4, 2, 2), 1), ((2, 2, 4), -1)]
)
def test_lazy_kernels_move_by_the_fourth_power(shape, sign):
    """The kernel distance after training is O(λ⁻⁴) where the strong layer can stay: 81 times less at 3|λ|."""
    task = linear.random_regression(shape[0], shape[2], 12, key=jr.key(1))
    distances = []
    for lam in (100.0, 300.0):
        network = linear.lambda_balanced(*shape, lam=sign * lam, key=jr.key(3))
        distances.append(linear.ntk_distance(linear.limit(network, task), task, start=network)[0])
    assert distances[0] < 1e-8
    # 1e-10 is a difference of numbers next to 1; and corrections are of relative order λ⁻².
    np.testing.assert_allclose(distances[0] / distances[1], 81.0, rtol=0.01)


def test_unused_directions_decay_as_one_over_time():
    """λ = 0 and more units than the task has modes: the rest of QQᵀ obeys dM/dt = −M², each layer has half.

    From a strength m it is 1/(t + 1/m), and weights of both layers share it equally.
    """
    sigma = 1.3 * np.outer([0.6, 0.8, 0.0], [0.0, 0.6, 0.8])
    network = linear.lambda_balanced(3, 3, 3, lam=0.0, key=jr.key(3))
    times = np.array([1e3, 1e5])
    exact = linear.exact_flow(network, linear.Task.from_correlation(sigma), times)
    for gram in (exact.input_gram, exact.output_gram):
        left = np.linalg.eigvalsh(np.asarray(gram))
        np.testing.assert_allclose(left[:, 2], 1.3, rtol=1e-10)
        for index, t in enumerate(times):
            np.testing.assert_allclose(left[index, :2] * t, 0.5, rtol=10 / t)


def test_shallow_network_with_any_inputs():
    x = jr.normal(jr.key(0), (4, 3)) * jnp.array([2.0, 1.0, 0.5, 0.1])[:, None]  # One direction unexplored.
    task = linear.Task(x, jr.normal(jr.key(1), (2, 3)))
    weights, times = jr.normal(jr.key(2), (2, 4)), np.array([0.0, 0.3, 2.0, 40.0])
    got = linear.shallow_flow(weights, task, jnp.asarray(times), tau=2.0)
    # Reference: W and the constant as one linear system, its exponential by Padé.
    system = np.zeros((6, 6))
    system[:4, :4], system[4:, :4] = -np.asarray(task.sigma_xx), np.asarray(task.sigma_yx)
    for i, t in enumerate(times):
        row = np.concatenate([np.asarray(weights), np.eye(2)], axis=1) @ expm(system * t / 2.0)
        np.testing.assert_allclose(got[i], row[:, :4], atol=1e-12)
    white = linear.random_regression(3, 2, 9, key=jr.key(5))
    path = linear.shallow_flow(jnp.zeros((2, 3)), white, jnp.asarray(times))
    np.testing.assert_allclose(path[2], white.sigma_yx * (1 - np.exp(-2.0)), rtol=1e-12)
    with pytest.raises(ValueError, match="`weights` must have shape"):
        linear.shallow_flow(jnp.zeros((3, 2)), white, jnp.asarray(times))
