"""Training: against plain descent and an independent ODE solver, and the status of every run."""

import warnings

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.integrate

from nullcline import gated
from nullcline.gated import _rkc

pytestmark = pytest.mark.filterwarnings("ignore::nullcline.gated.MaskWarning")

SIZE = (4, 3, 3)


def stack(networks):
    return jax.tree.map(lambda *x: jnp.stack(x), *networks)


@pytest.fixture(scope="module")
def batch():
    """Ten runs: connected and not, two scales, one batched call."""
    masks = jnp.stack([gated.nested_mask(4, n, key=jr.key(k)) for k in (2, 3) for n in (4, 7, 9, 11, 14)])
    networks = stack(
        [gated.initialize(*SIZE, s, key=jr.key(k)) for k, s in ((0, 0.1), (1, 0.3)) for _ in range(5)]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gated.MaskWarning)
        return networks, masks, gated.train_batch(networks, masks, max_evaluations=4000, batch_size=4)


def reference(network, mask, times):
    """The flow by SciPy, with the note's stacked matrices and its LD×LD error."""
    (languages, hidden, words), mask = network.w_in.shape, np.asarray(mask)
    rows, kron = languages * words, np.kron(mask, np.ones((words, words)))
    target = np.kron(np.ones((languages, languages)), np.eye(words))

    def velocity(t, y):
        w_out, w_in = (
            y[: rows * hidden].reshape(rows, hidden),
            y[rows * hidden : -(hidden**2)].reshape(hidden, rows),
        )
        w_hidden = y[-(hidden**2) :].reshape(hidden, hidden)
        error = (w_out @ w_hidden @ w_in - target) * kron / (words * mask.sum())
        slopes = error @ (w_hidden @ w_in).T, (w_out @ w_hidden).T @ error, w_out.T @ error @ w_in.T
        return -np.concatenate([slope.ravel() for slope in slopes])

    w_in = np.concatenate(list(np.asarray(network.w_in)), axis=1)
    y0 = np.concatenate([np.ravel(network.w_out), w_in.ravel(), np.ravel(network.w_hidden)])
    out = scipy.integrate.solve_ivp(velocity, (0, times[-1]), y0, "DOP853", times, rtol=1e-9, atol=1e-11)
    for y in out.y.T:
        w_in = y[rows * hidden : -(hidden**2)].reshape(hidden, languages, words)
        w_out = y[: rows * hidden].reshape(languages, words, hidden)
        yield np.moveaxis(w_in, 1, 0), y[-(hidden**2) :].reshape(hidden, hidden), w_out


def test_coefficients():
    table = _rkc.tableau()
    for s in (2, 5, 17, 48):
        # The stability polynomial of each stage count must be 1 + z + z²/2 + …, and bounded on its interval.
        def polynomial(z, s=s):
            before, last = np.ones_like(z), 1 + table.first[s] * z
            for j in range(2, s + 1):
                new = table.keep[s, j] + table.last[s, j] * last + table.older[s, j] * before
                new = new + table.slope[s, j] * z * last + table.start[s, j] * z
                before, last = last, new
            return last

        h = 1e-3
        low, middle, high = polynomial(np.array([-h, 0.0, h]))
        np.testing.assert_allclose((high - low) / (2 * h), 1, atol=1e-5)
        np.testing.assert_allclose((high - 2 * middle + low) / h**2, 1, atol=1e-5)
        reach = table.reach[s - 2]
        assert np.abs(polynomial(-np.linspace(0, reach, 2001))).max() <= 1 + 1e-9
        # Damping 2/13 costs a little of the undamped (2/3)(s² - 1).
        np.testing.assert_allclose(reach, 2 / 3 * (s**2 - 1) * (1 - 2 / 15 * 2 / 13), rtol=0.01)


def test_converged_runs_end_on_the_tolerance(batch):
    networks, masks, run = batch
    ok = run.is_converged
    assert ok.sum() >= 8
    np.testing.assert_allclose(np.asarray(run.train_loss)[ok], 1e-6, rtol=1e-3)
    assert np.all(np.asarray(run.train_loss)[ok] < 1e-6)
    exact = jax.vmap(gated.losses)(run.network, masks)
    np.testing.assert_allclose(run.train_loss, exact.train, rtol=1e-12)
    np.testing.assert_allclose(run.test_loss, exact.test, rtol=1e-12)
    np.testing.assert_allclose(
        run.frustration, 6 * np.asarray(masks).sum((1, 2)) * np.asarray(exact.train), rtol=1e-12
    )

    def norm(n):
        return sum(np.sum(np.asarray(w) ** 2, axis=tuple(range(1, w.ndim))) for w in jax.tree.leaves(n))

    np.testing.assert_allclose(run.growth, np.sqrt(norm(run.network) / norm(networks)), rtol=1e-12)


def test_final_state_matches_an_independent_solver(batch):
    networks, masks, run = batch
    for k in (1, 8):
        assert run.status[k] == "converged"
        ours = jax.tree.map(lambda w, k=k: w[k], run.network)
        start = jax.tree.map(lambda w, k=k: w[k], networks)
        (theirs,) = reference(start, masks[k], [float(run.time[k])])
        # Steps are held to 1e-3 of the weights; the error of the whole flow stays of that order.
        for a, b in zip(jax.tree.leaves(ours), theirs, strict=True):
            np.testing.assert_allclose(a, b, atol=3e-3)


@pytest.mark.slow
def test_conserved_matrices_drift_within_the_solver_tolerance(batch):
    networks, masks, run = batch

    def drift(r):
        return max(
            float(jnp.abs(a - b).max())
            for a, b in zip(
                jax.vmap(gated.conserved)(networks), jax.vmap(gated.conserved)(r.network), strict=True
            )
        )

    loose = drift(run)
    fine = drift(gated.train_batch(networks, masks, max_evaluations=20_000, batch_size=4, rtol=1e-5))
    # Weights are of order one: their products drift by a few times the relative tolerance of 1e-3.
    assert loose < 3e-2
    # Second order: a tolerance 100 times tighter makes steps 100^(1/3) shorter, errors 100^(2/3) = 22
    # smaller.
    assert fine < loose / 8


def test_connected_runs_generalize_as_resistance_says(batch):
    _, masks, run = batch
    graphs = jax.vmap(gated.connectivity)(masks)
    bounds = jax.vmap(gated.resistance_bound)(masks, run.train_loss)
    pairs = jax.vmap(gated.pair_losses)(run.network)
    for k in np.flatnonzero(run.is_converged):
        inside = np.isfinite(np.asarray(graphs.resistance[k]))
        assert np.all(np.asarray(pairs[k])[inside] <= 1.05 * np.asarray(bounds[k])[inside])
        if bool(graphs.is_connected[k]):
            assert float(run.test_loss[k]) < 1e-4
        else:
            assert float(run.cross_loss[k]) > 0.1


def test_results_do_not_depend_on_the_batch(batch):
    networks, masks, run = batch
    again = gated.train_batch(networks, masks, max_evaluations=4000, batch_size=1)
    np.testing.assert_array_equal(again.status, run.status)
    np.testing.assert_allclose(again.test_loss, run.test_loss, rtol=1e-8)
    np.testing.assert_array_equal(again.evaluations, run.evaluations)
    backwards = gated.train_batch(
        jax.tree.map(lambda w: w[::-1], networks), masks[::-1], max_evaluations=4000, batch_size=4
    )
    np.testing.assert_allclose(backwards.test_loss[::-1], run.test_loss, rtol=1e-8)


def test_one_run_and_permuted_dictionaries(batch):
    networks, masks, run = batch
    perms = np.array([np.random.default_rng(k).permutation(3) for k in range(4)])
    single = jax.tree.map(lambda w: w[2], networks)
    permuted = gated.train(gated.unfold(single, perms), masks[2], max_evaluations=4000, permutations=perms)
    assert permuted.status == "converged" and permuted.is_converged
    np.testing.assert_allclose(permuted.test_loss, run.test_loss[2], rtol=1e-8)
    loss = gated.test_loss(permuted.network, masks[2], permutations=perms)
    np.testing.assert_allclose(loss, permuted.test_loss, rtol=1e-9)


@pytest.mark.slow
def test_recorded_weights_follow_the_flow():
    network = gated.initialize(*SIZE, 0.3, key=jr.key(5))
    mask = gated.circulant_mask(4, 3)
    times = jnp.asarray([0.0, 10.0, 40.0])
    run = gated.train(network, mask, times=times)
    assert run.status == "converged" and run.networks is not None and float(run.time) >= 40
    np.testing.assert_array_equal(run.networks.w_in[0], network.w_in)
    for k, theirs in enumerate(reference(network, mask, np.asarray(times))):
        for a, b in zip(jax.tree.leaves(run.networks), theirs, strict=True):
            np.testing.assert_allclose(a[k], b, atol=2e-5)
    short = gated.train(network, mask, times=times, max_evaluations=12)
    assert short.status == "budget" and bool(jnp.isnan(short.networks.w_in[-1]).all())


def test_budgets_and_divergence_are_reported_run_by_run():
    mask = gated.circulant_mask(4, 3)
    good = gated.initialize(*SIZE, 0.1, key=jr.key(0))
    huge = jax.tree.map(lambda w: 1e120 * w, good)
    run = gated.train_batch(stack([good, huge, good, good]), mask, batch_size=4)
    assert list(run.status) == ["converged", "diverged", "converged", "converged"]
    np.testing.assert_allclose(run.test_loss[2], run.test_loss[0], rtol=1e-12)
    few = gated.train_batch(
        stack([good] * 4), mask, max_evaluations=np.array([40, 12_000, 40, 12_000]), batch_size=4
    )
    assert list(few.status) == ["budget", "converged", "budget", "converged"]
    assert np.all(np.asarray(few.evaluations)[[0, 2]] == 40) and np.all(np.isfinite(few.train_loss))
    early = gated.train_batch(stack([good] * 4), mask, max_time=5.0, batch_size=4)
    assert set(early.status) == {"budget"}
    np.testing.assert_allclose(early.time, 5.0, rtol=1e-12)
    finished = jax.tree.map(lambda w: jnp.stack([w[0]] * 4), run.network)
    done = gated.train_batch(finished, mask, tolerance=1e-5, batch_size=4)
    assert set(done.status) == {"converged"} and np.all(np.asarray(done.time) == 0)


@pytest.mark.slow
def test_float32_agrees_with_float64(batch):
    networks, masks, run = batch
    short = gated.train_batch(networks.astype(jnp.float32), masks, max_evaluations=4000, batch_size=4)
    assert short.test_loss.dtype == jnp.float32 and short.network.w_in.dtype == jnp.float32
    np.testing.assert_array_equal(short.status, run.status)
    ok = run.is_converged
    # The exact loss confirms each stop; the sum of squares of rounded residuals is good to a few percent.
    assert np.all(np.asarray(short.train_loss)[ok] <= 1.02e-6)
    np.testing.assert_allclose(np.asarray(short.cross_loss)[ok], np.asarray(run.cross_loss)[ok], rtol=1e-3)


@pytest.mark.slow
def test_decoupled_networks_follow_their_scalars():
    u, v = jnp.abs(jr.normal(jr.key(0), (4, 3))), jnp.abs(jr.normal(jr.key(1), (4, 3)))
    s = jnp.abs(jr.normal(jr.key(2), (3,)))
    mask = gated.nested_mask(4, 9, key=jr.key(0))
    network = gated.decoupled_network(0.3 * u, 0.3 * s, 0.3 * v, key=jr.key(3))
    times = jnp.asarray([30.0, 60.0, 90.0])
    run = gated.train(network, mask, times=times)
    # Each word has its own clock, t / (D T).
    expected = np.zeros(3)
    for d in range(3):
        simple = gated.scalar.Network(0.3 * u[:, d], 0.3 * s[d], 0.3 * v[:, d])
        for k, (v_k, s_k, u_k) in enumerate(
            scalar_reference(simple, np.asarray(mask), np.asarray(times) / 27)
        ):
            expected[k] += np.mean((s_k * np.outer(u_k, v_k) - 1)[np.asarray(mask)] ** 2) / 2 / 3
    found = jax.vmap(gated.train_loss, in_axes=(0, None))(run.networks, mask)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def scalar_reference(simple, mask, times):
    block = gated.Network(simple.v[:, None, None], simple.s[None, None], simple.u[:, None, None])
    # One word and one hidden unit: the same equations on a clock that is T times slower.
    for w_in, w_hidden, w_out in reference(block, mask, times * mask.sum()):
        yield w_in[:, 0, 0], w_hidden[0, 0], w_out[:, 0, 0]


def test_too_few_hidden_units():
    network = gated.initialize(4, 3, 2, 0.3, key=jr.key(0))
    mask = gated.circulant_mask(4, 3)
    with pytest.raises(ValueError, match=r"`tolerance` = 1e-06 cannot be reached.*0\.1667"):
        gated.train(network, mask)


def test_the_floor_of_too_few_hidden_units_is_attained():
    # Two of three words translated perfectly, the third not at all: stationary, and no rank two does better.
    some = jnp.eye(3)[:2]
    network = gated.Network(jnp.stack([some] * 4), jnp.eye(2), jnp.stack([some.T] * 4))
    mask = gated.circulant_mask(4, 3)
    np.testing.assert_allclose(gated.train_loss(network, mask), 1 / 6, rtol=1e-14)
    assert all(
        float(jnp.abs(slope).max()) < 1e-15 for slope in jax.tree.leaves(gated.gradient(network, mask))
    )


def one():
    return gated.initialize(*SIZE, 0.1, key=jr.key(0)), gated.circulant_mask(4, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mask": np.ones((3, 3))}, r"`mask` has shape \(3, 3\).*must be \(4, 4\)"),
        ({"mask": np.zeros((4, 4))}, "no trained pair"),
        ({"mask": np.full((4, 4), 0.5)}, "only 0 and 1"),
        ({"mask": np.ones((4, 3))}, r"`mask` must be square.*\(4, 3\)"),
        ({"mask": "all"}, "`mask` must be an array of 0 and 1, got str"),
        ({"rtol": 0.0}, "`rtol` must be positive and finite, got 0.0"),
        ({"max_evaluations": -3}, r"`max_evaluations` must be integers in \[1, 2147483647\], got -3"),
        ({"max_evaluations": 3_000_000_000}, "`max_evaluations` must be integers.*got 3000000000"),
        ({"max_evaluations": float("nan")}, "`max_evaluations` must be integers.*got nan"),
        ({"max_time": float("nan")}, "`max_time` must be positive, got nan"),
        ({"tolerance": 0.0}, "`tolerance` must be positive and finite, got 0.0"),
        ({"tolerance": float("nan")}, "`tolerance`.*nan"),
        ({"rtol": -1.0}, "`rtol`.*-1.0"),
        ({"max_evaluations": 0}, "`max_evaluations` must be integers.*got 0"),
        ({"max_time": 0.0}, "`max_time` must be positive, got 0.0"),
        ({"times": jnp.asarray([2.0, 1.0])}, "`times` must increase"),
        ({"times": jnp.asarray([-1.0, 1.0])}, "`times` must be nonnegative"),
        ({"times": jnp.asarray([1.0, 9.0]), "max_time": 5.0}, "after `max_time`"),
        ({"permutations": np.zeros((4, 3), int)}, "permutation of 0…2"),
        ({"permutations": np.zeros((4, 2), int)}, r"shape \(4, 3\)"),
        ({"permutations": np.ones((4, 3, 3))}, "orthogonal"),
        ({"permutations": np.ones((4,))}, "`permutations` must be integers"),
    ],
)
@pytest.mark.usefixtures("own_messages")
def test_bad_arguments(change, message):
    network, mask = one()
    with pytest.raises(ValueError, match=message):
        gated.train(network, **{"mask": mask, **change})


@pytest.mark.usefixtures("own_messages")
def test_bad_weights():
    network, mask = one()
    with pytest.raises(ValueError, match=r"`w_out` must have shape \(4, 3, 3\).*\(4, 2, 3\)"):
        gated.Network(network.w_in, network.w_hidden, network.w_out[:, :2])
    with pytest.raises(ValueError, match="`w_hidden` must have shape"):
        gated.Network(network.w_in, network.w_hidden[:2], network.w_out)
    with pytest.raises(ValueError, match="`w_in` must have at least 3 axes"):
        gated.Network(network.w_in[0], network.w_hidden, network.w_out)
    with pytest.raises(ValueError, match="floating-point"):
        gated.Network(network.w_in.astype(int), network.w_hidden, network.w_out)
    with pytest.raises(ValueError, match="share one dtype"):
        gated.Network(network.w_in.astype(jnp.float32), network.w_hidden, network.w_out)
    for name, bad in {"w_in": np.nan, "w_hidden": np.inf, "w_out": -np.inf}.items():
        weights = {key: np.array(getattr(network, key)) for key in ("w_in", "w_hidden", "w_out")}
        weights[name].flat[0] = bad
        with pytest.raises(ValueError, match=f"`{name}` holds values that are not finite"):
            gated.train(gated.Network(**weights), mask)
    with pytest.raises(ValueError, match="`w_in` must have at least one of each"):
        gated.Network(network.w_in[:0], network.w_hidden, network.w_out[:0])
    with pytest.raises(ValueError, match=r"one per run, \(2,\), got shape \(3,\)"):
        gated.train_batch(stack([network] * 2), mask, max_evaluations=np.array([5, 5, 5]))
    with pytest.raises(ValueError, match="`max_evaluations` must be integers"):
        gated.train_batch(stack([network] * 2), mask, max_evaluations=np.array([5, 0]))
    with pytest.raises(ValueError, match="zero: a stationary point"):
        gated.train(jax.tree.map(jnp.zeros_like, network), mask)
    with pytest.raises(ValueError, match="exactly one leading axis"):
        gated.train_batch(network, mask)
    with pytest.raises(ValueError, match="single network"):
        gated.train(stack([network] * 2), mask)
    for size in (0, 1.5):
        with pytest.raises(ValueError, match=f"`batch_size` must be an integer of at least 1, got {size}"):
            gated.train_batch(stack([network] * 2), mask, batch_size=size)
    with pytest.raises(ValueError, match=r"`masks` must have shape \(2, 4, 4\)"):
        gated.train_batch(stack([network] * 2), mask[None])
    for name, sizes in {"n_languages": (0, 3, 3), "n_words": (4, 0, 3), "n_hidden": (4, 3, 0)}.items():
        with pytest.raises(ValueError, match=f"`{name}` must be an integer of at least 1, got 0"):
            gated.initialize(*sizes, key=jr.key(0))
    for scale in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="`scale` must be positive and finite"):
            gated.initialize(*SIZE, scale, key=jr.key(0))
    with pytest.raises(ValueError, match="`convention`"):
        gated.initialize(*SIZE, 0.1, convention="lecun", key=jr.key(0))


@pytest.mark.filterwarnings("default::nullcline.gated.MaskWarning")
def test_warnings():
    network, _ = one()
    full = jnp.ones((4, 4), bool)
    with pytest.warns(gated.MaskWarning, match="no pair to test"):
        run = gated.train(network, full)
    assert run.status == "converged" and np.isnan(run.test_loss)
    with pytest.warns(gated.MaskWarning, match="test loss is NaN"):
        assert np.isnan(gated.test_loss(network, full))
    with pytest.warns(gated.MaskWarning, match="test loss is NaN"):
        assert np.isnan(gated.losses(network, full).test)
    with pytest.warns(gated.MaskWarning, match="test loss is NaN"):
        assert np.isnan(gated.scalar.test_loss(gated.scalar.initialize(4, key=jr.key(0)), full))
    with pytest.warns(gated.MaskWarning, match="2 of 3 masks"):
        gated.train_batch(
            stack([network] * 3),
            jnp.stack([full, gated.circulant_mask(4, 3), full]),
            max_evaluations=1,
            batch_size=1,
        )
    silent = full.at[:, 2].set(False).at[0, 1].set(False)
    with pytest.warns(gated.MaskWarning, match="A language has no trained pair"):
        gated.train(network, silent)
    with pytest.warns(gated.MaskWarning, match=r"Fewer than 2L - 1 = 7 pairs"):
        gated.train(network, gated.circulant_mask(4, 1))
