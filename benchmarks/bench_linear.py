"""Exact flow against a plain NumPy evaluation of the formula, against integration and against descent.

Prints medians of one process, compilation apart, and ratios. Run it alone.
"""

import argparse
import os
import time

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

jax.config.update("jax_enable_x64", True)

from nullcline import linear  # noqa: E402

BARS = {"ensemble": 10.0, "small": 3.0, "large": 1.0, "ode": 100.0}


def clock(call, repeats):
    """Seconds of the first call (with compilation) and the median of later ones."""
    start = time.perf_counter()
    jax.block_until_ready(call())
    first = time.perf_counter() - start
    laps = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(call())
        laps.append(time.perf_counter() - start)
    return first, float(np.median(laps))


def numpy_factors(w1, w2, sigma, lam, times):
    """The corrected formula of domine2025, vectorized over time: stable while l·t is moderate."""
    n_in, n_out = w1.shape[1], w2.shape[0]
    f = np.block([[-lam / 2 * np.eye(n_in), sigma.T], [sigma, lam / 2 * np.eye(n_out)]])
    rates, p = np.linalg.eigh(f)
    y = p.T @ np.concatenate([w1.T, w2])
    lt = rates * times[:, None]
    phi = np.expm1(2 * lt) / (2 * rates)
    inner = np.eye(w1.shape[0]) + y.T @ (phi[:, :, None] * y)
    return p @ (np.exp(lt)[:, :, None] * y), inner


def numpy_loss(w1, w2, sigma, lam, times):
    n_in = w1.shape[1]
    g, inner = numpy_factors(w1, w2, sigma, lam, times)
    f = g[:, n_in:] @ np.linalg.solve(inner, np.swapaxes(g[:, :n_in], 1, 2))
    return 0.5 * np.sum((f - sigma) ** 2, axis=(1, 2))


def numpy_function(w1, w2, sigma, lam, times):
    n_in = w1.shape[1]
    g, inner = numpy_factors(w1, w2, sigma, lam, times)
    return g[:, n_in:] @ np.linalg.solve(inner, np.swapaxes(g[:, :n_in], 1, 2))


def numpy_state(w1, w2, sigma, lam, times):
    g, inner = numpy_factors(w1, w2, sigma, lam, times)
    return g @ np.linalg.solve(inner, np.swapaxes(g, 1, 2))


def numpy_distance(w1, w2, sigma, lam, times):
    n_in, n_out = w1.shape[1], w2.shape[0]
    m = numpy_state(w1, w2, sigma, lam, times)
    c, b = m[:, :n_in, :n_in], m[:, n_in:, n_in:]

    def inner(c1, b1, c2, b2):
        trace = [np.trace(a, axis1=-2, axis2=-1) for a in (c1, b1, c2, b2)]
        return (
            n_out * np.sum(c1 * c2, (-2, -1))
            + trace[1] * trace[2]
            + trace[3] * trace[0]
            + n_in * np.sum(b1 * b2, (-2, -1))
        )

    norm = inner(c, b, c, b)
    return 1 - inner(c[:1], b[:1], c, b) / np.sqrt(norm[0] * norm)


QUESTIONS = {
    "loss": (numpy_loss, jax.jit(linear.loss)),
    "function": (numpy_function, lambda exact, task: exact.function),
    "distance": (numpy_distance, jax.jit(linear.ntk_distance)),
    "qqt": (numpy_state, lambda exact, task: exact.qqt),
}


def single(size, count, repeats):
    network = linear.lambda_balanced(size, size, size, 1.0, 0.3, key=jr.key(0))
    sigma = jr.normal(jr.key(1), (size, size)) / size**0.5
    task, times = linear.Task.from_correlation(sigma), jnp.linspace(0.0, 6.0, count)
    arrays = [np.asarray(a) for a in (network.w1, network.w2, sigma)]
    rows = {}
    for question, (plain, ours) in QUESTIONS.items():
        if question == "qqt" and size * size * count > 10_000_000:
            continue
        _, slow = clock(lambda plain=plain: plain(*arrays, 1.0, np.asarray(times)), repeats)
        first, fast = clock(lambda ours=ours: ours(linear.exact_flow(network, task, times), task), repeats)
        if question == "loss":
            gap = np.max(
                np.abs(
                    plain(*arrays, 1.0, np.asarray(times))
                    - ours(linear.exact_flow(network, task, times), task)
                )
            )
            assert gap < 1e-8, gap
        rows[question] = fast
        bar = BARS["small"] if size <= 20 else BARS["large"]
        verdict = "" if slow / fast >= bar else f"  below the bar of {bar:g}"
        print(
            f"size {size:4d} times {count:5d} {question:9s} numpy {1e3 * slow:9.2f} ms  "
            f"exact {1e3 * fast:9.2f} ms (first call {first:5.1f} s)  ratio {slow / fast:6.2f}{verdict}",
            flush=True,
        )
    return rows["loss"]


def ensemble(size, count, members, repeats):
    networks = jax.vmap(lambda k: linear.lambda_balanced(size, size, size, 1.0, 0.3, key=k))(
        jr.split(jr.key(0), members)
    )
    sigma = jr.normal(jr.key(1), (size, size)) / size**0.5
    task, times = linear.Task.from_correlation(sigma), jnp.linspace(0.0, 6.0, count)
    run = jax.jit(jax.vmap(lambda n: linear.loss(linear.exact_flow(n, task, times), task)))
    w1, w2, target = (np.asarray(a) for a in (networks.w1, networks.w2, sigma))
    _, slow = clock(
        lambda: [numpy_loss(a, b, target, 1.0, np.asarray(times)) for a, b in zip(w1, w2, strict=True)],
        repeats,
    )
    first, fast = clock(lambda: run(networks), repeats)
    verdict = "" if slow / fast >= BARS["ensemble"] else f"  below the bar of {BARS['ensemble']:g}"
    print(
        f"ensemble of {members}, size {size}, times {count}: numpy {1e3 * slow:.1f} ms  "
        f"exact {1e3 * fast:.1f} ms (first call {first:.1f} s)  ratio {slow / fast:.2f}{verdict}",
        flush=True,
    )


def simulation(size, horizon, count, repeats):
    """Against the adaptive solver at its tightest useful tolerance, and against descent to the same time."""
    network = linear.lambda_balanced(size, size, size, 1.0, 0.3, key=jr.key(0))
    sigma = jr.normal(jr.key(1), (size, size)) / size**0.5
    task, times = linear.Task.from_correlation(sigma), jnp.linspace(0.0, horizon, count)
    exact = linear.exact_flow(network, task, times)
    _, fast = clock(lambda: linear.exact_flow(network, task, times).g1, repeats)
    flow = linear.integrate_flow(network, task, times, rtol=1e-12, atol=1e-14)
    _, slow = clock(lambda: linear.integrate_flow(network, task, times, rtol=1e-12, atol=1e-14).g1, 1)
    gap = float(jnp.max(jnp.abs(flow.function - exact.function)))
    verdict = "" if slow / fast >= BARS["ode"] else f"  below the bar of {BARS['ode']:g}"
    print(
        f"size {size} to t = {horizon:g}, times {count}: integrate_flow {1e3 * slow:.1f} ms  "
        f"exact {1e3 * fast:.2f} ms  ratio {slow / fast:.1f}, they differ by {gap:.0e}{verdict}",
        flush=True,
    )
    steps = int(horizon / 0.01) // (count - 1) * (count - 1)
    every = steps // (count - 1)
    descent = linear.gradient_descent(network, task, horizon / steps, steps, every=every)
    _, slow = clock(lambda: linear.gradient_descent(network, task, horizon / steps, steps, every=every).g1, 1)
    gap = float(jnp.max(jnp.abs(descent.function - exact.function)))
    print(
        f"size {size} to t = {horizon:g}: descent, {steps} steps of 0.01, {1e3 * slow:.1f} ms  "
        f"ratio {slow / fast:.1f}, differs by {gap:.0e}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--sizes", type=int, nargs="+", default=[20, 64, 256])
    parser.add_argument("--counts", type=int, nargs="+", default=[100, 1000])
    options = parser.parse_args()
    print(f"cores available: {len(os.sched_getaffinity(0))}, JAX {jax.__version__}, NumPy {np.__version__}")
    growth = {}
    for size in options.sizes:
        for count in options.counts:
            repeats = options.repeats if size < 100 else 1
            growth[size, count] = single(size, count, repeats)
    for (size, count), seconds in growth.items():
        bigger = [(s, c) for s, c in growth if (c == count and s > size) or (s == size and c > count)]
        for other in bigger[:2]:
            print(f"loss, (size, times) from {size, count} to {other}: ×{growth[other] / seconds:.1f}")
    for size in (4, 8, 20):
        ensemble(size, 100, 100, 3)
    simulation(20, 50.0, 101, 5)
    simulation(20, 300.0, 101, 5)


if __name__ == "__main__":
    main()
