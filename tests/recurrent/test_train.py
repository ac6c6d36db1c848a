"""Training against a loop written out, stop and resume, many networks, and divergence."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from nullcline import recurrent
from nullcline.recurrent import _train, theory

TASK = recurrent.FlipFlop(duration=12.0)
STEPS = 12


def new_cell(seed=0, g=0.9, hidden=8, dtype=float):
    return recurrent.rate_cell(2, hidden, 2, g=g, dtype=dtype, key=jr.key(seed))


def options(**changed):
    return {"steps": STEPS, "batch_size": 4, "snapshot_every": 5, "learning_rate": 0.01, **changed}


@pytest.fixture(scope="module")
def whole():
    return recurrent.train(new_cell(), TASK, **options(), key=jr.key(1))


def assert_same(ours, theirs, rtol=0.0):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


def test_training_is_the_loop_it_stands_for(whole):
    """Losses and weights of five steps, by Adam's own formula and the gradient of the public `run`."""
    cell, key = new_cell(), jr.key(1)

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def objective(cell, trials):
        return recurrent.loss(recurrent.run(cell, trials.inputs)[1], trials)

    weights = [cell.w_in, cell.w, cell.w_out]
    first = [np.zeros(w.shape) for w in weights]
    second = [np.zeros(w.shape) for w in weights]
    for step in range(5):
        trials = TASK.sample(4, key=jr.fold_in(key, step))
        value, gradient = objective(recurrent.RateCell(*map(jnp.asarray, weights)), trials)
        np.testing.assert_allclose(whole.losses[step], value, rtol=1e-9)
        for i, slope in enumerate(jax.tree.leaves(gradient)):
            first[i] = 0.9 * first[i] + 0.1 * slope
            second[i] = 0.999 * second[i] + 0.001 * slope**2
            m, v = first[i] / (1 - 0.9 ** (step + 1)), second[i] / (1 - 0.999 ** (step + 1))
            weights[i] = weights[i] - 0.01 * m / (np.sqrt(v) + 1e-8)
    # Adam divides by the gradient's own size, which amplifies rounding of entries near zero.
    first = jax.tree.map(lambda leaf: leaf[0], whole.snapshots)
    assert_same([first.w_in, first.w, first.w_out], weights, rtol=1e-8)


def test_result(whole):
    assert whole.losses.shape == (STEPS,)
    np.testing.assert_array_equal(whole.snapshot_steps, [5, 10, 12])
    assert whole.snapshots.w.shape == (3, 8, 8)
    assert_same(whole.initial, new_cell())
    assert_same(jax.tree.map(lambda leaf: leaf[-1], whole.snapshots), whole.final)
    assert whole.status == "not_converged" and whole.flags == ("not_converged",)
    assert int(whole.diverged_at) == -1


def test_default_rate_is_that_of_the_document():
    cell = new_cell()
    by_default = recurrent.train(cell, TASK, **options(learning_rate=None), key=jr.key(1))
    explicit = recurrent.train(cell, TASK, **options(learning_rate=0.05 / 8), key=jr.key(1))
    assert_same(by_default.final, explicit.final)


def test_only_the_named_fields_are_trained():
    """Also that a cell of float32 is trained in float32."""
    cell = recurrent.rate_cell(2, 8, 2, nonlinearity="linear", dtype=jnp.float32, key=jr.key(0))
    result = recurrent.train(cell, TASK, **options(trainable=("w",), optimizer=optax.sgd(1.0)), key=jr.key(1))
    assert result.losses.dtype == result.final.w.dtype == jnp.float32
    np.testing.assert_allclose(result.descent_rate, 0.01, rtol=1e-6)
    np.testing.assert_array_equal(result.final.w_in, cell.w_in)
    np.testing.assert_array_equal(result.final.w_out, cell.w_out)
    assert not np.array_equal(result.final.w, cell.w)


@pytest.mark.parametrize("stop_at", [5, 10])
def test_stopped_training_resumes_to_the_same_numbers(whole, stop_at, tmp_path):
    """Stop, write the checkpoint to a file, read it into a fresh form, go on: bit for bit the whole run."""
    seen = []

    def report(checkpoint):
        seen.append((int(checkpoint.step), float(checkpoint.loss)))
        return int(checkpoint.step) >= stop_at

    stopped = recurrent.train(new_cell(), TASK, **options(), report=report, key=jr.key(1))
    assert stopped.status == "stopped"
    assert [step for step, _ in seen] == [5, 10][: stop_at // 5]
    assert seen[0][1] == whole.losses[4]
    assert jnp.all(jnp.isnan(stopped.losses[stop_at:]))
    path = tmp_path / "checkpoint.eqx"
    eqx.tree_serialise_leaves(path, stopped.checkpoint)
    form = recurrent.first_checkpoint(new_cell(), steps=STEPS, snapshot_every=5)
    checkpoint = eqx.tree_deserialise_leaves(path, form)
    resumed = recurrent.train(new_cell(), TASK, **options(), resume=checkpoint, key=jr.key(1))
    assert_same(
        (resumed.losses, resumed.final, resumed.snapshots), (whole.losses, whole.final, whole.snapshots)
    )
    assert resumed.status == whole.status


def test_a_checkpoint_of_another_run_is_refused(whole):
    with pytest.raises(ValueError, match="`resume` does not belong to this training"):
        recurrent.train(new_cell(), TASK, **options(steps=STEPS + 1), resume=whole.checkpoint, key=jr.key(1))
    single = jax.tree.map(lambda x: x.astype(jnp.float32), new_cell())
    with pytest.raises(ValueError, match="its precision too"):
        recurrent.train(single, TASK, **options(), resume=whole.checkpoint, key=jr.key(1))


# Linear networks on a short trial: they can diverge, and one program serves both tests of many networks.
CONSTANT = recurrent.Constant(target=1.0, duration=8.0)
LINEAR = [recurrent.rate_cell(1, 6, 1, g=g, nonlinearity="linear", key=jr.key(0)) for g in (0.0, 0.5, 0.8)]
METHODS = ["map", pytest.param("vmap", marks=pytest.mark.slow)]


def train_linear(method, rates, key=None):
    settings = {"steps": 30, "batch_size": 1, "snapshot_every": 20, "learning_rate": jnp.asarray(rates)}
    key = jr.key(3) if key is None else key
    return recurrent.train_many(LINEAR, CONSTANT, **settings, method=method, key=key)


@pytest.mark.parametrize("method", METHODS)
def test_many_networks_are_each_trained_as_one(method):
    many = train_linear(method, [0.01, 0.02, 0.01])
    assert many.losses.shape == (3, 30) and many.final.w.shape == (3, 6, 6)
    assert many.snapshots.w.shape == (3, 2, 6, 6)
    one = recurrent.train(
        LINEAR[1], CONSTANT, steps=30, batch_size=1, snapshot_every=20, learning_rate=0.02,
        key=jr.fold_in(jr.key(3), 1),
    )  # fmt: skip
    # A stacked product may be summed in another order; Adam amplifies rounding of tiny gradients.
    np.testing.assert_allclose(many.losses[1], one.losses, rtol=1e-8)
    np.testing.assert_allclose(many.final.w[1], one.final.w, rtol=1e-6, atol=1e-8)
    assert len(many.status) == 3 and many.status[1] == one.status
    # One key each: the last network with the key of the second, by the same program.
    keys = jnp.stack([jr.fold_in(jr.key(3), i) for i in (0, 1, 1)])
    assert_same(train_linear(method, [0.01, 0.02, 0.01], keys).losses[:2], many.losses[:2])


@pytest.mark.parametrize("method", METHODS)
def test_a_diverging_network_poisons_no_other(method):
    """The second network's step is absurd: it must keep finite weights, and its neighbors must not notice."""
    many, calm = (train_linear(method, [0.01, rate, 0.01]) for rate in (1e25, 0.01))
    for index in (0, 2):
        np.testing.assert_array_equal(many.losses[index], calm.losses[index])
        np.testing.assert_array_equal(many.final.w[index], calm.final.w[index])
    at = int(many.diverged_at[1])
    assert at >= 1 and list(many.diverged_at[jnp.array([0, 2])]) == [-1, -1]
    assert jnp.all(jnp.isfinite(many.losses[1, :at])) and jnp.all(jnp.isnan(many.losses[1, at + 1 :]))
    assert jnp.all(jnp.isfinite(many.final.w[1]))
    assert many.status[1] == "diverged" and many.flags[1][0] == "diverged"
    # Eight time constants at g = 0.8 are too few to reach the fixed point.
    assert "short_trial" in many.flags[2]


@pytest.mark.slow
def test_gated_cells_learn():
    task = recurrent.DelayPro(period=4, noise=0.0)
    cell = recurrent.gru_cell(3, 12, 3, key=jr.key(0))
    result = recurrent.train(cell, task, steps=150, batch_size=10, learning_rate=0.02, key=jr.key(1))
    assert result.losses[-1] < 0.3 * result.losses[0]
    assert not np.array_equal(result.final.b, cell.b)


@pytest.mark.slow
def test_steps_above_the_critical_one_are_flagged():
    """The largest step is that of the theory, for the weights as a trained cell stores them."""
    cell, task = LINEAR[1], recurrent.Constant(target=1.0, duration=8.0, input_amplitude=2.0)
    m, w = 2.0 * cell.w_in[0] / np.sqrt(6), cell.w_out[:, 0] * np.sqrt(6)
    step = theory.critical_step(cell.w, m, w, 1.0)
    result = train_linear("map", [0.01, 0.02, 0.01])
    rates = jnp.stack([step, 1.01 * step, 0.99 * step])
    result = dataclasses.replace(result, initial=recurrent.stack([cell] * 3), task=task, descent_rate=rates)
    assert ["unstable_step" in flags for flags in result.flags] == [False, True, False]


@pytest.mark.parametrize(
    ("optimizer", "trainable", "rate"),
    [
        (optax.sgd(0.5), ("w",), 0.05),
        (optax.sgd(0.5), ("w", "w_out"), None),
        (optax.sgd(0.5, momentum=0.9), ("w",), None),
        (optax.chain(optax.clip(1.0), optax.sgd(0.5)), ("w",), None),
        (optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.5)), ("w",), None),
    ],
)
def test_plain_descent_is_recognized(optimizer, trainable, rate):
    cell = LINEAR[0]
    found = _train._descent_rate(cell, optimizer, jnp.asarray(0.1), _train._trainable(cell, trainable))
    assert found is None if rate is None else np.isclose(found, rate)


@pytest.mark.parametrize(
    ("duration", "g", "is_short"), [(101.0, 0.2, False), (5.0, 0.2, True), (101.0, 0.98, True)]
)
def test_short_trials_are_recognized(duration, g, is_short):
    cell = recurrent.rate_cell(1, 60, 1, g=g, nonlinearity="linear", key=jr.key(0))
    task = recurrent.Constant(target=1.0, duration=duration)
    slowest = np.linalg.eigvals(np.array(cell.w)).real.max()
    assert (np.exp(-(duration - 1) * (1 - slowest)) > 1e-3) == is_short
    assert recurrent.is_short_trial(cell, task) == is_short


@pytest.mark.usefixtures("own_messages")
def test_sizes_of_numpy_are_sizes():
    sizes = {"steps": np.int64(2), "batch_size": np.int64(4), "snapshot_every": np.int64(1)}
    run = recurrent.train(new_cell(), TASK, **sizes, key=jr.key(1))
    assert run.losses.shape == (2,) and list(run.snapshot_steps) == [1, 2]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"steps": 0}, "`steps` must be an integer of at least 1"),
        ({"batch_size": 0}, "`batch_size` must be an integer of at least 1"),
        ({"snapshot_every": 0}, "`snapshot_every` must be an integer of at least 1"),
        ({"trainable": ("w", "bias")}, r"`trainable` must name some of \['w_in', 'w', 'w_out'\]"),
        ({"fraction": 1.0}, r"`fraction` must be in \(0, 1\)"),
        ({"learning_rate": float("nan")}, "`learning_rate` must be positive and finite, got nan"),
        ({"learning_rate": jnp.zeros(())}, "`learning_rate` must be positive and finite, got 0.0"),
    ],
)
def test_refusals(changed, message):
    with pytest.raises(ValueError, match=message):
        recurrent.train(new_cell(), TASK, **options(**changed), key=jr.key(0))


def test_misfits_are_refused():
    with pytest.raises(ValueError, match="The cell has 2 inputs, Mante needs 4"):
        recurrent.train(new_cell(), recurrent.Mante(), key=jr.key(0))
    with pytest.raises(ValueError, match=r"The cell steps by dt = 0.5, the trials of FlipFlop by dt = 0.25"):
        recurrent.train(new_cell(), recurrent.FlipFlop(dt=0.25), key=jr.key(0))
    with pytest.raises(ValueError, match="`cells` is empty"):
        recurrent.train_many([], TASK, key=jr.key(0))
    with pytest.raises(ValueError, match=r"one for each of the 2 networks, got shape \(3,\)"):
        recurrent.train_many([new_cell()] * 2, TASK, key=jr.split(jr.key(0), 3))
    with pytest.raises(ValueError, match="`cells` must all be of one kind"):
        recurrent.train_many([new_cell(), new_cell(hidden=9)], TASK, key=jr.key(0))
