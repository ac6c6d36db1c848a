"""What is refused, and what the refusal says."""

import contextlib
import decimal

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import torch

from nullcline import linear

pytestmark = pytest.mark.usefixtures("own_messages")

KEY = jr.key(0)
COLORED = linear.Task(np.random.default_rng(0).normal(size=(3, 9)), np.ones((3, 9)))


def square(lam=1.0):
    return linear.lambda_balanced(3, 3, 3, lam, key=KEY)


def many():
    return jax.vmap(lambda key: linear.lambda_balanced(3, 3, 3, 1.0, key=key))(jr.split(KEY, 2))


def task(size=3):
    return linear.Task.from_correlation(jnp.eye(size))


def data():
    return linear.random_regression(3, 3, 9, key=KEY)


def tasks():
    return jax.vmap(lambda key: linear.random_regression(3, 3, 9, key=key))(jr.split(KEY, 2))


def trained():
    return linear.gradient_descent(square(), task(), 0.1, 2)


def cast(network):
    """Weights that once were float32."""
    return jax.tree.map(lambda w: w.astype(jnp.float32).astype(float), network)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: linear.Network(jnp.ones((2, 3)), jnp.ones((4, 5))), ["`w1`", "`w2`", "(2, 3)", "(4, 5)"]),
        (lambda: linear.Network(jnp.ones(3), jnp.ones((4, 5))), ["`w1`", "(3,)", "matrix"]),
        (lambda: linear.Network(jnp.full((2, 2), jnp.nan), jnp.ones((2, 2))), ["`w1`", "finite", "4"]),
        (lambda: linear.Task(jnp.ones((2, 5)), jnp.ones((2, 4))), ["`x`", "`y`", "Transpose"]),
        (lambda: linear.Task.from_correlation(jnp.full((2, 2), jnp.inf)), ["`sigma_yx`", "finite"]),
        (
            lambda: linear.exact_flow(square(), linear.Task.from_correlation(jnp.eye(4)), [1.0]),
            ["`network`", "4"],
        ),
        (
            lambda: linear.exact_flow(square(), linear.Task.from_correlation(1e200 * jnp.eye(3)), [1.0]),
            ["`task`", "1e+200", "rescale"],
        ),
        (
            lambda: linear.exact_flow(linear.Network(1e200 * jnp.eye(3), 1e200 * jnp.eye(3)), task(), [1.0]),
            ["`network`", "1e+200", "rescale"],
        ),
        (lambda: linear.exact_flow(square(), task(), [-1.0]), ["`times`", "at least 0", "-1"]),
        (lambda: linear.exact_flow(square(), task(), [1.0, 0.5]), ["`times`", "sorted"]),
        (
            # Times that are known are checked, and their charts chosen, inside `jit` as well.
            lambda: jax.jit(lambda n: linear.exact_flow(n, task(), np.asarray([1.0, 0.5])).g1)(square()),
            ["`times`", "sorted"],
        ),
        (lambda: linear.exact_flow(square(), task(), [1.0, np.nan]), ["`times`", "finite"]),
        (lambda: linear.exact_flow(square(), task(), 1.0), ["`times`", "axis"]),
        (lambda: linear.exact_flow(square(), task(), [1.0], tau=0.0), ["`tau`", "positive"]),
        (lambda: linear.exact_flow(square(), task(), [1.0], tolerance=-1.0), ["`tolerance`"]),
        (lambda: linear.exact_flow(square(), task(), [1.0], lam=1.1), ["`lam`", "1.1", "contradicts"]),
        (lambda: linear.exact_flow(square(), task(), [1.0], lam=1 + 1e-6), ["1.000001", "contradicts"]),
        (
            lambda: linear.exact_flow(linear.gaussian(3, 3, 3, key=KEY), task(), [1.0]),
            ["not λ-balanced", "residual", "1e-08", "integrate_flow", "lambda_balanced", "best λ is "],
        ),
        (
            lambda: linear.exact_flow(
                linear.Network(np.diag([1.0, 2.0]), np.diag([2.0, 2.0])), task(2), [1.0]
            ),
            # D = diag(3, 0), QᵀQ = diag(5, 8): λ = 15/13, ‖QD − λQ‖² = 5 (24/13)² + 8 (15/13)².
            ["best λ is 1.15385", "(tr(D)/n_hidden = 1.5)", "residual 0.182"],
        ),
        (
            lambda: linear.exact_flow(
                square(), linear.Task(jr.normal(KEY, (3, 9)), jr.normal(KEY, (3, 9))), [1.0]
            ),
            ["isotropic", "linear.whiten", "integrate_flow"],
        ),
        (
            lambda: linear.lambda_balanced(4, 5, 3, 1.0, key=KEY),
            ["λ > 0", "`n_out` = 3", "only λ = 0", "rank="],
        ),
        (lambda: linear.lambda_balanced(5, 5, 3, 1.0, key=KEY), ["`n_out` = 3", "λ < 0 and λ = 0"]),
        (lambda: linear.lambda_balanced(3, 5, 5, -1.0, key=KEY), ["`n_in` = 3", "λ > 0 and λ = 0"]),
        (
            lambda: linear.lambda_balanced(3, 5, 4, -1.0, key=KEY),
            ["λ < 0", "`n_in` = 3", "only λ = 0", "rank="],
        ),
        (lambda: linear.lambda_balanced(3, 3, 3, rank=4, key=KEY), ["`rank`", "3", "4"]),
        (lambda: linear.lambda_balanced(3, 3, 3, scale=-1.0, key=KEY), ["`scale`", "-1"]),
        (lambda: linear.lambda_balanced(3, 3, 3, np.nan, key=KEY), ["`lam`", "finite"]),
        (lambda: linear.lambda_balanced(3, 0, 3, key=KEY), ["`n_hidden`", "0"]),
        (
            lambda: linear.lambda_balanced(2, 2, 2, strengths=jnp.asarray([1.0, -1.0]), key=KEY),
            ["aligned", "-1"],
        ),
        (lambda: linear.aligned(task(), 3, strengths=jnp.ones(2), key=KEY), ["`strengths`", "3", "(2,)"]),
        (lambda: linear.gaussian(3, 3, 3, "uniform", key=KEY), ["`scheme`", "lecun", "uniform"]),
        (lambda: linear.gaussian(3, 3, 3, alphas=(1.0, 2.0), key=KEY), ["`alphas`", "scaled"]),
        (lambda: linear.random_regression(4, 2, 3, key=KEY), ["`n_samples`", "4", "3"]),
        (lambda: linear.whiten(jnp.ones((4, 3))), ["4 inputs", "3"]),
        (lambda: linear.rsm(square(), task()), ["no samples", "Task(x, y)"]),
        (lambda: linear.ntk(square(), task()), ["no samples"]),
        (
            lambda: linear.ntk(square(), linear.random_regression(3, 3, 9, key=KEY), max_bytes=100),
            ["max_bytes", "ntk_distance"],
        ),
        (lambda: linear.exact_flow(square(), task(), [1.0], lam=jnp.ones(2)), ["`lam`", "(2,)", "jax.vmap"]),
        (lambda: linear.exact_flow(many(), task(), [1.0]), ["batch", "(2, 3, 3)", "jax.vmap"]),
        (lambda: linear.gradient_descent(square(), task(), 0.0), ["`learning_rate`"]),
        (lambda: linear.gradient_descent(square(), task(), steps=10, every=3), ["`every`", "divide"]),
        (lambda: linear.integrate_flow(square(), task(), [1.0], rtol=0.0), ["`rtol`"]),
        (
            lambda: linear.Network(1j * np.ones((2, 2)), jnp.ones((2, 2))),
            ["`w1`", "real", "complex", ".real"],
        ),
        (lambda: linear.lambda_balanced(3, 3, 3, jnp.ones(2), key=KEY), ["`lam`", "(2,)", "jax.vmap"]),
        (lambda: linear.exact_flow(square(), task(), [1.0], tau=jnp.ones(2)), ["`tau`", "(2,)", "jax.vmap"]),
        (lambda: linear.gaussian(3, 3, 3, "scaled", alphas=(-1.0, 2.0), key=KEY), ["`alphas`", "-1"]),
        (lambda: linear.gaussian(3, 3, 3, "scaled", alphas=2.0, key=KEY), ["`alphas`", "two"]),
        (lambda: linear.whiten(jnp.ones((2, 5))), ["2 dimensions", "spans 1", "Project"]),
        (lambda: linear.converged_state(COLORED, lam=1.0, rank=3), ["isotropic", "linear.whiten"]),
        (lambda: linear.converged_state(task(), lam=np.nan, rank=3), ["`lam`", "nan"]),
        (lambda: linear.can_converge(square(), COLORED), ["isotropic", "integrate_flow"]),
        (
            lambda: linear.can_converge(linear.gaussian(3, 3, 3, key=KEY), task()),
            ["not λ-balanced", "1e-08", "integrate_flow"],
        ),
        (lambda: linear.lazy_limit(square(), COLORED, [1.0]), ["isotropic"]),
        (
            lambda: linear.lazy_limit(linear.gaussian(3, 3, 3, key=KEY), task(), [1.0]),
            ["not strictly λ-balanced", "exact_flow"],
        ),
        (lambda: linear.exact_sequence(square(), task(), 1.0), ["`tasks`", "[task]"]),
        (lambda: linear.mode_flow([1.0, 2.0], [0.1], [1.0]), ["`a0`", "2", "(1,)"]),
        (lambda: linear.mode_flow([1.0], [0.1], [1.0], lam=np.nan), ["`lam`", "nan"]),
        (lambda: linear.layer_flow([1.0], [0.1], [1.0]), ["`w0`", "(layers, modes)", "(1,)"]),
        (
            lambda: linear.forgetting(task(), jnp.ones((2, 3)), jnp.ones((2, 3))),
            ["(…, 3, 3)", "(2, 3)"],
        ),
        # One network or one task is meant, and there are several.
        (
            lambda: linear.nonlinear_loss(many(), linear.random_regression(3, 3, 9, key=KEY)),
            ["batch", "vmap"],
        ),
        (lambda: linear.ntk_distance(many(), task()), ["`trajectory`", "network", "ntk_inner"]),
        (lambda: linear.ntk_distance(trained(), task(), start=many()), ["`start`", "batch", "(2, 3, 3)"]),
        (lambda: linear.loss(square(), tasks()), ["`task`", "batch of tasks", "(2, 3, 9)", "jax.vmap"]),
        (lambda: linear.exact_flow(square(), tasks(), [1.0]), ["`task`", "batch of tasks"]),
        (lambda: linear.integrate_flow(square(), tasks(), [1.0]), ["`task`", "batch of tasks"]),
        (lambda: linear.function_loss(np.eye(3), tasks()), ["`task`", "batch of tasks"]),
        (lambda: linear.shallow_flow(np.eye(3), tasks(), [1.0]), ["`task`", "batch of tasks"]),
        # Something else is meant.
        (lambda: linear.exact_flow(square(), np.eye(3), [1.0]), ["`task`", "ndarray", "from_correlation"]),
        (lambda: linear.exact_flow((np.eye(3), np.eye(3)), task(), [1.0]), ["`network`", "tuple", "w1, w2"]),
        (lambda: linear.aligned(np.eye(3), 3, key=KEY), ["`task`", "ndarray"]),
        (lambda: linear.balance(None), ["`network`", "NoneType", "w1, w2"]),
        (lambda: linear.fitted_lambda(trained()), ["`network`", "Trajectory", "network_at"]),
        (lambda: linear.balance_residual((1, 2)), ["`network`", "tuple"]),
        (lambda: linear.exact_sequence(None, [task()], [1.0]), ["`network`", "NoneType"]),
        (lambda: linear.loss_rate(square(), task()), ["`trajectory`", "Network"]),
        (lambda: linear.nonlinear_loss(square(), None), ["`task`", "NoneType"]),
        (
            lambda: linear.loss(linear.exact_sequence(square(), [task()], [1.0], points=2), task()),
            ["Sequence", "`.losses`"],
        ),
        (lambda: linear.exact_sequence(square(), [task()], 1.0), ["`durations`", "1.0"]),
        (lambda: linear.exact_sequence(square(), [task()], [None]), ["`durations`", "None"]),
        (lambda: linear.lambda_balanced(3, 3, 3, key=0), ["`key`", "jax.random.key(seed)", "got 0"]),
        (lambda: linear.gaussian(3, 3, 3, key=np.random.default_rng(0)), ["`key`", "Generator"]),
        (lambda: linear.random_regression(3, 3, 9, key=jr.split(KEY, 2)), ["`key`", "(2,)", "jax.vmap"]),
        (lambda: linear.exact_flow(square(), task(), [1.0], tau=None), ["`tau`", "None"]),
        (lambda: linear.gradient_descent(square(), task(), "0.1"), ["`learning_rate`", "'0.1'"]),
        (lambda: linear.Network([[1.0, 2.0], [1.0]], np.eye(2)), ["`w1`", "list"]),
        (lambda: linear.Network(np.eye(2), None), ["`w2`", "None"]),
        (lambda: linear.Network([[None, 1.0]], np.eye(1)), ["`w1`", "array of numbers", "list"]),
        (
            lambda: linear.exact_flow(square(), task(), np.array(["1"], object)),
            ["`times`", "array of numbers"],
        ),
        (lambda: linear.Network(np.eye(2, dtype=np.float16), np.eye(2)), ["`w1`", "float16", "float32"]),
        # Numbers out of range.
        (
            lambda: linear.exact_flow(square(), task(), [1.0], tolerance=0.05),
            ["`tolerance`", "0.001", "0.05"],
        ),
        (lambda: linear.exact_flow(cast(square()), task(), [1.0]), ["float32", "tolerance=1e-7"]),
        (lambda: trained().network_at(np.int64(50)), ["`index`", "3 times", "50"]),
        (lambda: trained().network_at(jnp.int32(3)), ["`index`", "from -3 to 2", "3"]),
        (lambda: trained().network_at(1.0), ["`index`", "integer", "1.0"]),
        (lambda: trained().network_at(True), ["`index`", "True"]),
        (lambda: trained().network_at([0, 1]), ["`index`", "[0, 1]"]),
        (lambda: linear.ntk_inner(trained(), square(), data()), ["`first`", "Trajectory", "network_at"]),
        (lambda: linear.lambda_balanced(3, 3, 3, scale=1e200, key=KEY), ["`scale`", "1e+200", "overflow"]),
        (lambda: linear.layer_flow([1.0], [[0.1], [0.1]], [1.0], rtol=-1.0), ["`rtol`", "-1"]),
        (lambda: linear.rsm(square(), task(), cutoff=np.nan), ["`cutoff`", "nan"]),
        (lambda: linear.rotation_time(task(), np.nan), ["`lam`", "nan"]),
        (lambda: linear.rotation_time(COLORED, 1.0), ["isotropic"]),
        (lambda: linear.expected_balance(3.5, 3, 3), ["`n_in`", "3.5"]),
        (lambda: linear.lambda_balanced(2**33, 3, 3, key=KEY), ["`n_in`", "2147483647", "8589934592"]),
        (lambda: linear.exact_flow(square(), task(), [1.0], tau=10**400), ["`tau`", "range"]),
        (lambda: linear.exact_flow(square(), task(), [1.0], tau=decimal.Decimal(1)), ["`tau`", "Decimal"]),
        (
            lambda: linear.gradient_descent(square(), task(), np.array(1j), 5),
            ["`learning_rate`", "real", "1.j"],
        ),
        (lambda: linear.lambda_balanced(3, 3, 3, np.complex128(1), key=KEY), ["`lam`", "real"]),
        (
            lambda: linear.exact_flow(square(), task(), [1.0], tau=torch.ones((), requires_grad=True)),
            ["`tau`", "Tensor", "detach"],
        ),
        (lambda: linear.exact_flow(square(), task(), [1.0], tau=np.str_("1")), ["`tau`", "one number"]),
        (lambda: linear.ntk(square(), data(), max_bytes="1"), ["`max_bytes`", "'1'"]),
        (lambda: linear.rsm(square(), data(), cutoff=None), ["`cutoff`", "None"]),
        (lambda: linear.rsm(square(), data(), cutoff=1.0), ["`cutoff`", "1.0"]),
        (lambda: linear.gaussian(3, 3, 3, "scaled", alphas=("one", "two"), key=KEY), ["`alphas`", "numbers"]),
        (lambda: linear.expected_lambda_limit("r=k", scheme="glorot", k="1"), ["`k`", "'1'"]),
        (lambda: linear.nonlinear_loss(square(), data(), ["relu"]), ["`activation`", "['relu']"]),
        (lambda: linear.gaussian(3, 3, 3, key=np.zeros(3, np.uint32)), ["`key`", "(3,)"]),
        (
            lambda: linear.observe_flow(square(), task(), [1.0], "loss"),
            ["`observe`", "linear.loss", "'loss'"],
        ),
        (lambda: linear.observe_flow(square(), task(), [1.0], None), ["`observe`", "linear.loss", "None"]),
        (lambda: linear.exact_sequence(square(), None, [1.0]), ["`tasks`", "None"]),
        (lambda: linear.exact_sequence(square(), [task()], jnp.asarray(1.0)), ["`durations`", "list"]),
        (lambda: linear.whiten(np.eye(3), center=None), ["`center`", "None"]),
        (lambda: linear.layer_flow([1.0], np.zeros((0, 1)), [1.0]), ["`w0`", "(0, 1)"]),
        (lambda: linear.gaussian(3, 3, 3, key=jax.random.PRNGKey(0, impl="rbg")), ["`key`", "(4,)"]),
        (
            lambda: jax.vmap(lambda network: linear.exact_flow(network, task(), [0.0, 1.0]))(
                many()
            ).network_at(),
            ["batch", "(2,)", "jax.vmap"],
        ),
        (lambda: linear.aligned(linear.Task(np.zeros((3, 8)), np.ones((3, 8))), 2, key=KEY), ["no variance"]),
        # What the data contradict.
        (
            lambda: linear.Task(COLORED.x, COLORED.y, is_isotropic=True),
            ["`is_isotropic`", "contradicts `x`", "1e-08"],
        ),
        (
            lambda: linear.Task(np.eye(3)[:, :2], np.eye(3)[:, :2], is_spanning=True),
            ["`is_spanning`", "contradicts `x`", "3 dimensions"],
        ),
        (lambda: linear.Task(np.eye(3), np.eye(3), is_isotropic="no"), ["`is_isotropic`", "'no'"]),
        (
            lambda: jax.jit(
                lambda s: linear.converged_state(linear.Task.from_correlation(s), lam=1.0, rank=3).function
            )(np.eye(3)),
            ["`converged_state`", "`jit`", "`limit`"],
        ),
    ],
)
def test_refusals(call, words):
    with pytest.raises(ValueError) as caught:
        call()
    for word in words:
        assert word in str(caught.value), (word, str(caught.value))


def test_float32_that_cannot_hold_the_weaker_layer_warns():
    """Like a start that is known to lose its function at t = 1e-3, and a stronger one that does not."""
    task = linear.Task.from_correlation(jr.normal(jr.key(7), (8, 8), jnp.float32))
    for scale, is_weak in ((1e-3, True), (0.3, False)):
        network = linear.lambda_balanced(8, 8, 8, lam=1000.0, scale=scale, key=jr.key(8))
        single = linear.Network(network.w1.astype(jnp.float32), network.w2.astype(jnp.float32))
        with pytest.warns(UserWarning, match="float32.*Use float64") if is_weak else contextlib.nullcontext():
            linear.exact_flow(single, task, jnp.array([1.0], jnp.float32))


def test_float32_of_many_units_warns():
    """The rounding of a mode, 4 (N_i + N_o) roundings of the largest, passes 1e-4 at 210 units."""
    for size, is_large in ((104, False), (105, True)):
        network = linear.lambda_balanced(size, 1, size, lam=0.0, key=KEY)
        single = linear.Network(network.w1.astype(jnp.float32), network.w2.astype(jnp.float32))
        task = linear.Task.from_correlation(np.eye(size, dtype=np.float32))
        with (
            pytest.warns(UserWarning, match="float32.*Use float64") if is_large else contextlib.nullcontext()
        ):
            linear.exact_flow(single, task, jnp.array([1.0], jnp.float32))


def test_advice_on_rounding_is_given_where_it_helps():
    """Weights that are off by more than the rounding of float32 are not told to be float32."""
    noise = linear.Network(*(w + 1e-5 * jr.normal(KEY, w.shape) for w in (square().w1, square().w2)))
    for call in (
        lambda: linear.exact_flow(noise, task(), [1.0]),
        lambda: linear.exact_flow(noise, task(), [1.0], tolerance=1e-7),
    ):
        with pytest.raises(ValueError, match="not λ-balanced") as caught:
            call()
        assert "tolerance=" not in str(caught.value)
    assert linear.exact_flow(cast(square()), task(), [1.0], tolerance=1e-7).is_ok


def test_scalars_of_other_libraries_are_numbers():
    exact = linear.exact_flow(square(), task(), [1.0], tau=2.0)
    for two in (torch.tensor(2.0), np.longdouble(2), np.array(2), np.float32(2)):
        np.testing.assert_array_equal(linear.exact_flow(square(), task(), [1.0], tau=two).g1, exact.g1)


def test_a_given_balance_may_differ_by_rounding():
    """1e-8 of the squared weights are allowed, where these are above 1."""
    network = square()
    exact, told = (linear.exact_flow(network, task(), [1.0], lam=lam) for lam in (None, 1 + 1e-10))
    np.testing.assert_allclose(told.qqt, exact.qqt, rtol=1e-8)


def test_integers_beyond_32_bits_are_numbers_like_others():
    """Without float64 an array of such integers would wrap around, and a number would be refused by JAX."""
    big = 2**33 + 5
    with jax.enable_x64(False):
        assert linear.Task.from_correlation(np.array([[big, 0], [0, 1]])).correlation[0, 0] == np.float32(big)
        assert linear.Network([[big]], [[1]]).w1[0, 0] == np.float32(big)
        assert linear.Network([[2**70]], [[1]]).w1[0, 0] == np.float32(2.0**70)
        far = linear.lambda_balanced(3, 3, 3, lam=2**40, key=KEY)
        np.testing.assert_allclose(linear.fitted_lambda(far), 2.0**40, rtol=1e-5)
        large = linear.lambda_balanced(3, 3, 3, scale=2**33, key=KEY)
        np.testing.assert_allclose(large.q, 2.0**33 * linear.lambda_balanced(3, 3, 3, key=KEY).q, rtol=1e-4)
        network = linear.lambda_balanced(3, 3, 3, 1.0, key=KEY)
        late = linear.exact_flow(network, linear.Task.from_correlation(np.eye(3)), [0, big], tau=big)
        assert late.times[1] == np.float32(big) and late.is_ok


def test_sizes_of_numpy_are_sizes():
    three, network = np.int64(3), square()
    assert linear.integrate_flow(network, task(), [0.0], max_steps=three).is_ok
    assert linear.layer_flow([1.0], [[0.5], [0.5]], [0.0], max_steps=np.int64(99)).is_solved
    assert len(linear.nonlinear_descent(network, data(), steps=three, every=np.int64(1)).loss) == 4
    assert linear.exact_weights(network, task(), [0.1], steps=three).error.shape == (1,)
