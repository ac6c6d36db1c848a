"""What rounding must not do late in training: wake modes that nothing knows, part modes that are equal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nullcline import linear


def orthogonal(rng, members, rows, columns):
    return np.linalg.qr(rng.normal(size=(members, rows, columns)))[0]


def transposed(matrices):
    return np.swapaxes(matrices, -1, -2)


def relative(x, y):
    return np.linalg.norm(np.asarray(x) - y, axis=(-2, -1)) / np.linalg.norm(y, axis=(-2, -1))


@jax.jit
@jax.vmap
def flows(w1, w2, sigma):
    times = np.array([0.0, 1.0, 40.0, 1e3, 1e6])
    state = linear.exact_flow(linear.Network(w1, w2), linear.Task.from_correlation(sigma), times)
    return state.function, state.input_gram, state.output_gram


def test_modes_that_are_not_known_never_grow():
    # Rounding turns singular vectors by 1e-16 over the gap of their values: weights that know some modes
    # seem to know a little of the others. Here against the same weights in the coordinates of the modes,
    # where that is exactly zero. The last unit knows several modes, each of the others one.
    known, together, lam = 7, 3, 0.5
    rng, members, (n_in, hidden, n_out) = np.random.default_rng(0), 500, (17, 6, 14)
    modes, alone = min(n_in, n_out), known - together
    rank = alone + 1
    s = (np.arange(modes) + rng.uniform(0, 0.8, (members, modes)) + 0.2)[:, ::-1] / modes
    a, one = rng.uniform(0.05, 1, (members, rank)), np.arange(alone)
    larger = np.sqrt((lam + np.sqrt(lam**2 + 4 * a**2)) / 2)
    first, second = a / larger, larger
    w1, w2 = np.zeros((members, rank, known)), np.zeros((members, known, rank))
    w1[:, one, one], w2[:, one, one] = first[:, :alone], second[:, :alone]
    x, y = (orthogonal(rng, members, together, 1)[..., 0] for _ in range(2))
    w1[:, -1, alone:], w2[:, alone:, -1] = first[:, -1:] * x, second[:, -1:] * y
    order = rng.permutation(modes)[:known]
    truth = flows(w1, w2, s[:, order, None] * np.eye(known))

    u, v = (orthogonal(rng, members, n, n)[:, :, :modes] for n in (n_out, n_in))
    frame, left, right = orthogonal(rng, members, hidden, rank), u[:, :, order], v[:, :, order]
    seen = flows(
        frame @ w1 @ transposed(right), left @ w2 @ transposed(frame), (u * s[:, None]) @ transposed(v)
    )
    left, right = left[:, None], right[:, None]
    for x, y, (one, two) in zip(seen, truth, ((left, right), (right, right), (left, left)), strict=True):
        # As close as the gaps of the singular values, down to 0.2 / modes, let rounding come.
        assert np.max(relative(x, one @ np.asarray(y) @ transposed(two))) < 1e-11


@pytest.mark.parametrize("lam", [1.0, -1e-3])
def test_equal_modes_are_equal_for_ever(lam):
    # One unit, and modes of equal strength: it stays in the mixture of them that it grows into first. Errors
    # of 1e-16 in their rates would have parted them at the time that `limit` looks at.
    rng, n = np.random.default_rng(1), 6
    u, v = (orthogonal(rng, 1, n, n)[0] for _ in range(2))
    w1, w2 = rng.normal(size=n), rng.normal(size=n)
    w1, w2 = w1 / np.linalg.norm(w1), w2 / np.linalg.norm(w2)
    w1, w2 = (w1, np.sqrt(1 + lam) * w2) if lam > 0 else (np.sqrt(1 - lam) * w1, w2)
    s, equal = np.array([0.9, 0.9, 0.9, 0.9, 0.3, 0.2]), slice(0, 4)
    rate = np.hypot(0.9, lam / 2)
    c, z = np.sqrt((rate - lam / 2) / (2 * rate)), np.sqrt((rate + lam / 2) / (2 * rate))
    grown = c * v.T[equal] @ w1 + z * u.T[equal] @ w2
    grown = grown / np.linalg.norm(grown)
    truth = 0.9 * np.outer(u[:, equal] @ grown, v[:, equal] @ grown)
    end = linear.limit(
        linear.Network(jnp.asarray(w1[None]), jnp.asarray(w2[:, None])),
        linear.Task.from_correlation((u * s) @ v.T),
    )
    assert relative(end.function[0], truth) < 1e-13


def test_what_inputs_do_not_see_leaves_no_rounding():
    # A first layer that is large outside the span of the inputs is rounded there, at its own size: on the
    # span, where it is small, the units at rest are not exactly zero.
    rng, members, (n_in, more, hidden, n_out) = np.random.default_rng(2), 100, (6, 5, 25, 12)
    keys = jax.random.split(jax.random.key(0), members)
    core = jax.jit(jax.vmap(lambda key: linear.lambda_balanced(n_in, 5, n_out, -1e-6, 0.01, key=key)))(keys)
    frame, part = orthogonal(rng, members, hidden, 5), orthogonal(rng, members, n_in + more, n_in)
    w1, w2 = frame @ np.asarray(core.w1), np.asarray(core.w2) @ transposed(frame)
    sigma = rng.normal(size=(members, n_out, n_in)) / n_in**0.5
    x = 20**0.5 * transposed(orthogonal(rng, members, 20, n_in))
    beyond = 100 * rng.normal(size=(members, hidden, n_in + more))
    beyond = beyond - beyond @ part @ transposed(part)

    @jax.jit
    @jax.vmap
    def end(w1, w2, x, y):
        task = linear.Task(x, y, is_isotropic=True)
        return linear.exact_flow(linear.Network(w1, w2), task, np.array([1e8])).function[0]

    u, s, vt = np.linalg.svd(sigma, full_matrices=False)
    learned = (u[:, :, :5] * s[:, None, :5]) @ vt[:, :5]
    seen = end(w1 @ transposed(part) + beyond, w2, part @ x, sigma @ x) @ part
    # Five units learn five modes. 1e-16 of the whole first layer is 1e-11 of the part that is seen.
    assert np.max(relative(seen, learned)) < 1e-10


@pytest.mark.slow
def test_a_weak_layer_is_not_rounded_at_the_size_of_the_strong_one():
    # Seven orders of magnitude apart. Rounding of singular vectors mixes the weights of each layer alone.
    members, times = 3000, np.array([0.0, 1.0])
    keys = jax.random.split(jax.random.key(1), members)
    make = jax.jit(jax.vmap(lambda key: linear.lambda_balanced(13, 10, 16, -1000.0, 0.01, key=key)))
    networks, sigma = make(keys), np.random.default_rng(0).normal(size=(members, 16, 13)) / 13**0.5

    @jax.jit
    @jax.vmap
    def start(network, sigma):
        return linear.exact_flow(network, linear.Task.from_correlation(sigma), times).function[0]

    assert np.max(relative(start(networks, sigma), np.asarray(networks.w2 @ networks.w1))) < 1e-14
