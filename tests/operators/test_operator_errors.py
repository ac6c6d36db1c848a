"""What must be refused, with messages that say what was got, what is allowed and what to do."""

import cells
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from nullcline import operators

X = jnp.zeros((2, 3, 2))
Z = jnp.zeros(4)
W = jnp.eye(4)

WILD = jnp.full(1, 1e60)


def step(p, z, x):
    return jnp.tanh(p @ z) + x[0]


@pytest.fixture(scope="module")
def flow():
    return cells.flow_of("rate")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(inputs=jnp.zeros((2, 3))), r"`inputs` must have shape \(batch, time, inputs\).*got \(2, 3\)"),
        (dict(inputs=jnp.zeros((2, 0, 2))), "at least one trial and one step"),
        (dict(inputs=jnp.zeros((2, 3, 2), int)), "`inputs` must be floating point, got int"),
        (dict(initial_state=None), "`initial_state` is needed"),
        (dict(initial_state=jnp.zeros((3, 4))), "`initial_state` has 3 trials, `inputs` have 2"),
        (dict(initial_state=jnp.zeros((1, 2, 4))), "must be one state, or one per trial"),
        (dict(weights=jnp.ones(3) / 3), r"one entry per trial, shape \(2,\), got \(3,\)"),
        (dict(weights=jnp.array([1.5, -0.5])), "finite and nonnegative"),
        (dict(weights=jnp.array([0.5, 0.6])), "sum to one, got 1.1"),
        (dict(params=W.astype(complex)), "`params` is complex128: gradient descent needs real"),
        (dict(params={"w": jnp.eye(4, dtype=int)}), "`w` is int64"),
        (dict(params={"w": "tanh"}), "`w` is str"),
        (dict(params=None), r"must have a method `step\(state, input\) -> state`, got function"),
        (dict(cell=3.0, params=None, initial_state=None), "must have a method `step.*got float"),
        (dict(cell=3.0), "must be a function step"),
        (dict(params=jnp.eye(3)), r"does not take a state of shape \(4,\) and an input of shape \(2,\)"),
        (dict(cell=lambda p, z, x: (p @ z)[:3]), r"it returned \(3,\)"),
        (dict(cell=lambda p, z, x: (p @ z, z)), "must return a state like the one it takes"),
        (dict(cell=lambda p, z, x: z), "nothing to train"),
        (dict(initial_state=jnp.zeros(4, jnp.float32)), "one floating-point type"),
        (dict(initial_state=jnp.zeros(4, int)), "one floating-point type"),
        (dict(params=W.at[0, 0].set(jnp.nan)), "Parameter `params` is not finite"),
        (dict(inputs=X.at[0, 0].set(jnp.inf)), "`inputs` are not finite"),
        (dict(readout=(jnp.ones((2, 3)), None)), r"C must have shape \(outputs, 4\), got \(2, 3\)"),
        (dict(readout=(jnp.ones((2, 4)), jnp.ones(3))), r"c must have shape \(2,\), got \(3,\)"),
        (dict(readout=3.0), r"must be a pair \(C, c\)"),
    ],
)
def test_linearize_refuses(arguments, message):
    given = dict(cell=step, inputs=X, initial_state=Z, params=W) | arguments
    with pytest.raises(ValueError, match=message), jax.numpy_dtype_promotion("standard"):
        operators.linearize(**given)


def test_leaving_the_finite_range_is_located():
    # Trial 1 starts large and squares itself: 1e100, 1e200, inf at the third step.
    square = lambda p, z, x: p * z**2  # noqa: E731
    with pytest.raises(ValueError, match=r"left the finite range at trial 1, step 1 \(1 of 2 trials\)"):
        operators.linearize(square, X, jnp.array([[1.0], [1e100]]), params=jnp.ones(1))


def test_derivatives_that_are_not_finite_are_located():
    root = lambda p, z, x: p * jnp.sqrt(z * x[:1])  # noqa: E731
    x = jnp.ones((2, 3, 2)).at[1, 2].set(0.0)
    with pytest.raises(ValueError, match="derivative of the step is not finite at trial 1, step 2"):
        operators.linearize(root, x, jnp.ones(1), params=jnp.ones(1))


class Counter:
    """A function with a memory."""

    def __init__(self):
        self.calls = 0

    def __call__(self, p, z, x):
        self.calls += 1
        return jnp.tanh(p @ z) + self.calls


class Stateful(eqx.Module):
    w: jax.Array
    memory: eqx.nn.StateIndex

    def step(self, z, x):
        return self.w @ z


def test_stateful_cells_are_refused():
    with pytest.raises(ValueError, match="keeps state of its own or draws random numbers"):
        operators.linearize(Counter(), X, Z, params=W)
    with pytest.raises(ValueError, match="keeps hidden state of its own"):
        operators.linearize(Stateful(W, eqx.nn.StateIndex(jnp.zeros(1))), X, Z)


def test_operators_refuse_other_shapes_and_other_models(flow):
    P, K = flow.propagator, flow.parameter_operator
    with pytest.raises(ValueError, match=r"\(batch, time, hidden\) = \(3, 5, 4\), got \(5, 4\)"):
        P @ jnp.zeros((5, 4))
    with pytest.raises(ValueError, match=r"got \(3, 5, 2\)"):
        K @ jnp.zeros((3, 5, 2))
    with pytest.raises(ValueError, match=r"\(batch, time, outputs\) = \(3, 5, 2\), got \(3, 5, 4\)"):
        flow.output_operator() @ flow.states
    with pytest.raises(ValueError, match="takes parameters"):
        flow.parameter_tangent @ {"w": W}
    other = cells.flow_of("rate")
    with pytest.raises(ValueError, match="different models or trajectories"):
        P @ other.parameter_operator
    with pytest.raises(ValueError, match="different models or trajectories"):
        P + other.propagator
    with pytest.raises(ValueError, match=r"Cannot compose .* different trials, \[0 1\] and \[1 2\]"):
        operators.restrict(P, [0, 1]) @ operators.restrict(K, [1, 2])
    with pytest.raises(ValueError, match="Cannot compose these operators: one acts on trajectories of shape"):
        P @ flow.output_operator()


def test_restrict_refuses(flow):
    P, K = flow.propagator, flow.parameter_operator
    with pytest.raises(ValueError, match=r"different trials from 0 to 2, got \[0, 3\]"):
        operators.restrict(K, [0, 3])
    with pytest.raises(ValueError, match=r"got \[1, 1\]"):
        operators.restrict(K, [1, 1])
    with pytest.raises(ValueError, match="`trials_j` must be at least one trial"):
        operators.restrict(K, [0], [])
    with pytest.raises(ValueError, match="P never mixes trials"):
        operators.restrict(P, [0], [1])
    with pytest.raises(ValueError, match="Restrict the factors of a product"):
        operators.restrict(P @ K, [0])


def test_targets_are_checked(flow):
    y = jnp.zeros((3, 5, 2))
    with pytest.raises(ValueError, match=r"`targets` must have shape .* = \(3, 5, 2\), got \(3, 4, 2\)"):
        flow.error(y[:, :4], y[:, :4])
    with pytest.raises(ValueError, match=r"`targets` need a `mask`.*ones_like"):
        flow.error(y)
    with pytest.raises(
        ValueError, match=r"`mask` must have the shape of `targets`, \(3, 5, 2\), got \(3, 5\)"
    ):
        flow.predicted_change(y, jnp.ones((3, 5)))
    with pytest.raises(ValueError, match=r"first at trial 1, step 2, output 0\. Set the mask to 0"):
        flow.error(y.at[1, 2, 0].set(jnp.nan), jnp.ones_like(y))
    bare = operators.linearize(step, X, Z, params=W)
    with pytest.raises(ValueError, match=r"has none. Give the cell a method `readout\(state\)`"):
        bare.error(jnp.zeros((2, 3, 1)), jnp.ones((2, 3, 1)))
    with pytest.raises(ValueError, match="`output_operator` needs a readout"):
        bare.output_operator()


def test_targets_outside_the_mask_are_not_read(flow):
    y = cells.normal(jr.key(0), (3, 5, 2))
    mask = jnp.ones_like(y).at[0, 2:].set(0)
    np.testing.assert_array_equal(flow.error(y.at[0, 2:].set(jnp.nan), mask), flow.error(y, mask))
    # Any loss, through automatic differentiation; kappa scales it.
    np.testing.assert_allclose(
        flow.error(y, mask, loss=lambda a, b: 0.5 * (a - b) ** 2), flow.error(y, mask, scale=0.5), rtol=1e-14
    )


def test_what_looks_at_values_says_so_under_jit(flow):
    for function in (operators.spectrum, operators.effective_rank):
        with pytest.raises(ValueError, match=r"cannot run under `jit`.*consensus"):
            jax.eval_shape(lambda flow, f=function: f(flow.propagator), flow)


def test_spectra_beyond_the_range_of_numbers_are_refused():
    """Steps that multiply by 1e60: states stay zero, P reaches 1e300 and its square overflows."""
    unstable = operators.linearize(lambda w, z, x: w * z + x, jnp.zeros((1, 6, 1)), jnp.zeros(1), params=WILD)
    with pytest.raises(ValueError, match=r"range of float64.*fewer steps.*`lyapunov`"):
        operators.spectrum(unstable.propagator)


@pytest.mark.usefixtures("own_messages")
def test_spectra_and_ranks_refuse(flow):
    P, K = flow.propagator, flow.parameter_operator
    with pytest.raises(ValueError, match="`k` must be an integer from 1 to 60, the dimension, got 61"):
        operators.spectrum(K, 61)
    with pytest.raises(ValueError, match=r"`k` must be an integer from 1 to 60, the dimension, got 2\.5"):
        operators.spectrum(K, 2.5)
    with pytest.raises(ValueError, match="`method` must be one of"):
        operators.spectrum(K, method="arpack")
    with pytest.raises(ValueError, match="needs K of a cell whose units own their weights"):
        operators.spectrum(P, 3, method="units")
    for fraction in (0.0, 1.5):
        with pytest.raises(ValueError, match=r"`fraction` must be in \(0, 1\]"):
            operators.effective_rank(K, fraction)
    with pytest.raises(ValueError, match="`power` must be positive, got -1"):
        operators.effective_rank(K, power=-1)
    with pytest.raises(ValueError, match=r"known to be positive semi-definite; for Propagator use `power=2`"):
        operators.effective_rank(P, power=1)
    with pytest.raises(ValueError, match="zero operator"):
        operators.effective_rank(jnp.zeros(3))
    with pytest.raises(ValueError, match="must be 2, or 1 for an operator known"):
        operators.total_variance(P, 1)


@pytest.mark.usefixtures("own_messages")
def test_directions_of_nothing_are_refused(flow):
    P, K = flow.propagator, flow.parameter_operator
    with pytest.raises(ValueError, match="`relative=True` needs an operator known to be positive semi-def"):
        operators.rayleigh(P, flow.states, relative=True)
    nothing = operators.linearize(
        lambda p, z, x: p * z, X, jnp.zeros(2), params=jnp.ones(2), readout=(jnp.eye(2), None)
    )
    with pytest.raises(ValueError, match="The states of a task are zero: their cosine is not defined"):
        operators.state_cosine(nothing, [0, 1])
    with pytest.raises(ValueError, match="The change of the states is zero"):
        operators.misdirection(nothing, jnp.zeros((2, 3, 2)), jnp.ones((2, 3, 2)))
    with pytest.raises(ValueError, match="do not vary: their dimension is not defined"):
        operators.activity_dimension(nothing.states)
    with pytest.raises(ValueError, match=r"`states` must have shape \(batch, time, hidden\)"):
        operators.activity_dimension(nothing.states[0])
    with pytest.raises(ValueError, match="`states` must be finite, got 1 entries"):
        operators.activity_dimension(flow.states.at[0, 0, 0].set(jnp.nan))
    with pytest.raises(ValueError, match="`q` is zero: its share in a mode is not defined"):
        operators.mode_share(operators.consensus(K), jnp.zeros_like(flow.states), 2)


@pytest.mark.parametrize("over", [(), ("batch", "time", "hidden"), ("unit",), ("time", "time")])
def test_consensus_refuses_axes(flow, over):
    with pytest.raises(ValueError, match="some but not all of"):
        operators.consensus(flow.parameter_operator, over)


def test_consensus_refuses_kinds(flow):
    with pytest.raises(ValueError, match=r"Propagator is not marked so. Use `kind='gram'`"):
        operators.consensus(flow.propagator, ("hidden",), "trace")
    with pytest.raises(ValueError, match="`kind` must be one of"):
        operators.consensus(flow.propagator, ("hidden",), "mean")
    block = operators.restrict(flow.parameter_operator, [0], [1, 2])
    with pytest.raises(ValueError, match="to the same trajectories"):
        operators.consensus(block, ("hidden",), "gram")
    with pytest.raises(ValueError, match="not paired"):
        operators.rayleigh(block, jnp.ones((2, 5, 4)))


def test_large_dense_matrices_name_the_other_way(flow, monkeypatch):
    for module in ("_operator", "_spectrum"):
        monkeypatch.setattr(f"nullcline.operators.{module}.DENSE_LIMIT", 20)
    monkeypatch.setattr("nullcline.operators._lyapunov._MATRIX_LIMIT", 20)
    with pytest.raises(ValueError, match=r"side 60 is beyond the limit of 20.*spectrum\(operator"):
        flow.propagator.dense()
    with pytest.raises(ValueError, match="use `method='krylov'`"):
        operators.spectrum(flow.propagator, method="dense")
    with pytest.raises(ValueError, match="give `k`"):
        operators.spectrum(flow.propagator)
    with pytest.raises(ValueError, match=r"Apply `flow.propagator`"):
        operators.transition_matrices(flow)


@pytest.mark.parametrize("trials", [[7], [-1], [0, 0], [0.5], [], [True, False]])
def test_trials_that_there_are_not_are_refused(flow, trials):
    """An index beyond the last one would silently become the last one."""
    with pytest.raises(ValueError, match=r"`trials`.* must"):
        flow.take(trials)


def test_trials_are_taken_by_index_and_by_mask(flow):
    for trials in ([2, 0], np.array([2, 0]), jnp.array([2, 0])):
        np.testing.assert_array_equal(flow.take(trials).states, flow.states[np.array([2, 0])])
    np.testing.assert_array_equal(flow.take([True, False, True]).states, flow.states[::2])
    traced = jax.jit(lambda flow, trials: flow.take(trials).states)(flow, jnp.array([1]))
    np.testing.assert_array_equal(traced, flow.states[1:2])


def test_lyapunov_arguments(flow):
    with pytest.raises(ValueError, match="`count` must be an integer from 1 to 4, the state size, got 5"):
        operators.lyapunov(flow, 5)
    with pytest.raises(ValueError, match="`warmup` must be an integer from 0 to 4"):
        operators.lyapunov(flow, warmup=5)
    with pytest.raises(ValueError, match="`dt` must be positive"):
        operators.finite_time_exponents(flow, dt=0.0)
    with pytest.raises(ValueError, match="`start` must be from -1 to 3"):
        operators.transition_matrices(flow, 4)


def test_preconditioner_is_checked(flow):
    with pytest.raises(
        ValueError, match=r"unknown parameters \['v'\]; those of the step are \['b', 'w', 'w_in'\]"
    ):
        flow.preconditioned({"v": 1.0})
    with pytest.raises(ValueError, match="nonnegative"):
        flow.preconditioned({"w": -1.0})
    with pytest.raises(ValueError, match="finite"):
        flow.preconditioned({"w": jnp.inf})
    with pytest.raises(ValueError, match=r"must be a number or have shape \(4, 4\)"):
        flow.preconditioned({"w": jnp.ones(3)})
