"""Every block of the exact state against references of sixty digits and more."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from helpers import ARCHITECTURES
from mp_reference import block_errors, direct_state, pivoted_state

from nullcline import linear

LAMBDAS = (0.0, 1e-6, -1e-6, 1e-3, -1e-3, 1.0, -1.0, 30.0, -30.0, 1e3, -1e3)
TIMES = np.asarray([1e-6, 1e-2, 1.0, 10.0, 100.0, 1e4, 1e6])


def make(arch, lam, is_deficient, seed=0):
    """Weights, the same weights without inactive units for the reference, and a task."""
    task_key, key, frame_key = jr.split(jr.key(seed), 3)
    active = min(arch.n_hidden if arch.rank is None else arch.rank, arch.n_in + arch.n_out)
    core = linear.lambda_balanced(arch.n_in, active, arch.n_out, lam, 0.8, key=key)
    # Inactive units that are zero only to rounding would escape in the reference, which knows no rounding.
    frame = jnp.linalg.qr(jr.normal(frame_key, (arch.n_hidden, active)))[0]
    network = linear.Network(frame @ core.w1, core.w2 @ frame.T)
    u, s, vt = np.linalg.svd(np.asarray(jr.normal(task_key, (arch.n_out, arch.n_in))), full_matrices=False)
    if is_deficient:
        s[-1] = 0
    return network, core, (u * s) @ vt


@pytest.mark.slow
@pytest.mark.parametrize("name", ["funnel", "inverted", "square", "bottleneck", "projector"])
@pytest.mark.parametrize("is_deficient", [False, True], ids=["full", "deficient"])
def test_sixty_digits(name, is_deficient):
    arch = ARCHITECTURES[name]
    for lam in LAMBDAS:
        network, core, sigma = make(arch, lam, is_deficient)
        if lam == 0 and name == "square" and np.linalg.det(sigma) * np.linalg.det(core.function) <= 0:
            # A saddle: rounding of the given weights decides when the reference leaves it.
            continue
        exact = linear.exact_flow(network, linear.Task.from_correlation(sigma), TIMES)
        states = np.asarray(exact.qqt)
        for state, t in zip(states, TIMES, strict=True):
            reference = pivoted_state(core.w1, core.w2, sigma, lam, t)
            errors = block_errors(state, reference, arch.n_in)
            assert max(errors) < 1e-12, (name, lam, t, errors)


def test_both_references_agree_with_the_solver():
    arch = ARCHITECTURES["funnel"]
    network, core, sigma = make(arch, -1.0, False)
    times = np.asarray([0.1, 3.0, 40.0])
    states = np.asarray(linear.exact_flow(network, linear.Task.from_correlation(sigma), times).qqt)
    for state, t in zip(states, times, strict=True):
        direct = direct_state(core.w1, core.w2, sigma, -1.0, t)
        assert max(block_errors(pivoted_state(core.w1, core.w2, sigma, -1.0, t), direct, 4)) < 1e-14
        assert max(block_errors(state, direct, 4)) < 1e-13


def found(seed, index, shape, active, lam, scale):
    """One of sixty draws, as a search for errors made them: few networks have them."""
    key, frame_key, task_key, *_ = jr.split(jr.split(jr.key(seed), 60)[index], 5)
    core = linear.lambda_balanced(shape[0], active, shape[2], lam, scale, key=key)
    frame = jnp.linalg.qr(jr.normal(frame_key, (shape[1], active)))[0]
    sigma = np.asarray(jr.normal(task_key, (shape[2], shape[0]))) / shape[0] ** 0.5
    return linear.Network(frame @ core.w1, core.w2 @ frame.T), core, sigma


@pytest.mark.parametrize(
    ("draw", "times"),
    [
        # Times far apart: early ones want charts of their own, also where nobody can look at them.
        pytest.param(
            (843471115, 34, (14, 14, 16), 14, 1e-3, 1.0),
            [0.0, 0.18, 0.39, 72.0, 260.0, 9e3, 1e4, 4.6e5],
            marks=pytest.mark.slow,
        ),
        ((843471115, 34, (14, 14, 16), 14, 1e-3, 1.0), [0.0, 0.39, *np.linspace(1e3, 4e5, 10)]),
    ],
    ids=["sparse", "many"],
)
def test_draws_that_were_wrong(draw, times):
    network, core, sigma = found(*draw)
    task, times = linear.Task.from_correlation(sigma), np.asarray(times)
    ways = {
        "known": linear.exact_flow(network, task, times),
        "traced weights": jax.jit(lambda network: linear.exact_flow(network, task, times))(network),
        "traced times": jax.jit(lambda times: linear.exact_flow(network, task, times))(times),
    }
    for index in (1, 2):
        reference = pivoted_state(core.w1, core.w2, sigma, draw[4], times[index])
        for way, exact in ways.items():
            errors = block_errors(np.asarray(exact.qqt[index]), reference, network.n_in)
            assert max(errors) < 1e-12, (way, times[index], errors)


def test_weak_overlaps_cost_few_digits():
    """Weights that hardly know a mode: a chart of times after its growth lost digits before."""
    n_in, members = 2, 1000
    sigma = np.asarray(jr.normal(jr.key(1), (3, n_in)))
    task, times = linear.Task.from_correlation(sigma), np.linspace(0.0, 16 / np.linalg.norm(sigma, 2), 33)

    @jax.jit
    @jax.vmap
    def flow(key):
        network = linear.lambda_balanced(n_in, 7, 3, scale=0.8, key=key)
        return network, linear.exact_flow(network, task, times, lam=0.0).qqt

    networks, states = flow(jr.split(jr.key(0), members))
    q = np.concatenate([np.swapaxes(networks.w1, 1, 2), networks.w2], axis=1)
    u, _, vt = np.linalg.svd(sigma, full_matrices=False)
    overlaps = np.linalg.svd(vt @ q[:, :n_in] + u.T @ q[:, n_in:], compute_uv=False)[:, -1]
    # The start is known to rounding: 1e-16, and the square of what grows (at most e²) in half a block.
    for start, state in zip(q @ np.swapaxes(q, 1, 2), np.asarray(states[:, 0]), strict=True):
        assert max(block_errors(state, start, n_in)) < 1e-13
    weakest = np.argsort(overlaps)[:5]
    assert overlaps[weakest[-1]] < 0.01
    for member in weakest:
        w1, w2 = networks.w1[member], networks.w2[member]
        for index in range(1, len(times), 8):
            reference = pivoted_state(w1, w2, sigma, 0.0, times[index])
            errors = block_errors(np.asarray(states[member, index]), reference, n_in)
            # What the rounding of its overlap alone makes of a mode, and no more.
            assert max(errors) < 1e-13 + 2**-52 / overlaps[member], (overlaps[member], index, errors)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["funnel", "square"])
def test_float32_keeps_its_precision(name):
    arch = ARCHITECTURES[name]
    for lam in (-30.0, -1.0, 1.0, 30.0):
        network, _, sigma = make(arch, lam, False)
        small = linear.Network(network.w1.astype(jnp.float32), network.w2.astype(jnp.float32))
        sigma = sigma.astype(np.float32)
        task = linear.Task.from_correlation(sigma)
        states = np.asarray(linear.exact_flow(small, task, TIMES.astype(np.float32)).qqt)
        # The same rounded numbers in float64, which keeps thirteen digits of them.
        cast = linear.Network(small.w1.astype(float), small.w2.astype(float))
        wide = linear.Task.from_correlation(sigma.astype(float))
        lam_cast = float(linear.balance_residual(cast)[0])
        assert abs(lam_cast - lam) < 1e-4
        for state, t in zip(states, TIMES, strict=True):
            reference = pivoted_state(
                cast.w1, cast.w2, np.asarray(wide.target), lam_cast, float(np.float32(t))
            )
            assert max(block_errors(state, reference, arch.n_in)) < 1e-5, (name, lam, t)
