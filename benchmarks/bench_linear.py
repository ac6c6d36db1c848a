# ruff: noqa: E402
r"""Exact flow against NumPy, against integration and against descent, in one run.

Two NumPy baselines: *plain* is the formula as it reads (domine2025, Theorem A.3, corrected), one time after
the other; *tuned* works in the eigenbasis and is vectorized over time. Both lose all digits once
:math:`l\,t \gtrsim 18`, which the exact flow does not. The bars are set against the plain one.

Prints the shortest of several laps, compilation apart, and ratios: on a shared machine longer ones time the
neighbors. All on one core unless ``--cores`` says otherwise: threads of BLAS and of XLA that share a busy
machine make times meaningless. Ensembles run a second time, in a process of their own, on all cores, which
both sides may use: NumPy by the threads of its BLAS, the exact flow by one device a core.
"""

import argparse
import os
import subprocess
import sys
import time
from functools import partial

CORES = int(sys.argv[sys.argv.index("--cores") + 1]) if "--cores" in sys.argv else 1
os.environ |= {"OMP_NUM_THREADS": str(CORES), "OPENBLAS_NUM_THREADS": str(CORES)}
CAN_PIN = hasattr(os, "sched_setaffinity")
ALLOWED = sorted(os.sched_getaffinity(0)) if CAN_PIN else list(range(os.cpu_count() or 1))
if CAN_PIN:
    os.sched_setaffinity(0, ALLOWED[-CORES:])

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.lax.linalg import triangular_solve

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_num_cpu_devices", CORES)

from nullcline import linear
from nullcline.measures import largest

BARS = {"ensemble": 10.0, "small": 3.0, "large": 1.0, "ode": 100.0}


def clock(call, repeats):
    """Seconds of the first call (with compilation) and the shortest of later ones."""
    start = time.perf_counter()
    jax.block_until_ready(call())
    first = time.perf_counter() - start
    laps = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(call())
        laps.append(time.perf_counter() - start)
    return first, min(laps)


def driver(sigma, lam):
    n_out, n_in = sigma.shape
    return np.linalg.eigh(np.block([[-lam / 2 * np.eye(n_in), sigma.T], [sigma, lam / 2 * np.eye(n_out)]]))


def plain_state(w1, w2, sigma, lam, times):
    """QQᵀ = e^{Ft} Q₀ [I + Q₀ᵀ (e^{2Ft} − I)/(2F) Q₀]⁻¹ Q₀ᵀ e^{Ft}, time after time."""
    rates, p = driver(sigma, lam)
    q = np.concatenate([w1.T, w2])
    states = []
    for t in times:
        grown = p @ np.diag(np.exp(rates * t)) @ p.T @ q
        phi = p @ np.diag(np.expm1(2 * rates * t) / (2 * rates)) @ p.T
        states.append(grown @ np.linalg.inv(np.eye(w1.shape[0]) + q.T @ phi @ q) @ grown.T)
    return np.array(states)


def tuned_state(w1, w2, sigma, lam, times):
    """The same in the eigenbasis, vectorized over time."""
    rates, p = driver(sigma, lam)
    y = p.T @ np.concatenate([w1.T, w2])
    lt = rates * times[:, None]
    inner = np.eye(w1.shape[0]) + y.T @ ((np.expm1(2 * lt) / (2 * rates))[:, :, None] * y)
    grown = p @ (np.exp(lt)[:, :, None] * y)
    return grown, inner


def read(question, sigma, n_in, state):
    """What is asked of the states QQᵀ, all times at once."""
    n_out = sigma.shape[0]
    if question == "loss":
        return 0.5 * np.sum((state[:, n_in:, :n_in] - sigma) ** 2, axis=(1, 2))
    if question == "function":
        return state[:, n_in:, :n_in]
    if question == "qqt":
        return state
    c, b = state[:, :n_in, :n_in], state[:, n_in:, n_in:]

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


def plain(question, w1, w2, sigma, lam, times):
    return read(question, sigma, w1.shape[1], plain_state(w1, w2, sigma, lam, times))


def tuned(question, w1, w2, sigma, lam, times):
    n_in = w1.shape[1]
    grown, inner = tuned_state(w1, w2, sigma, lam, times)
    if question in ("loss", "function"):
        f = grown[:, n_in:] @ np.linalg.solve(inner, np.swapaxes(grown[:, :n_in], 1, 2))
        return f if question == "function" else 0.5 * np.sum((f - sigma) ** 2, axis=(1, 2))
    return read(question, sigma, n_in, grown @ np.linalg.solve(inner, np.swapaxes(grown, 1, 2)))


QUESTIONS = {
    "loss": jax.jit(linear.loss),
    "function": lambda exact, task: exact.function,
    "distance": jax.jit(linear.ntk_distance),
    "qqt": lambda exact, task: exact.qqt,
}


def verdict(ratio, bar):
    return "" if bar is None or ratio >= bar else f"  BELOW THE BAR OF {bar:g}"


def single(size, count, repeats):
    network = linear.lambda_balanced(size, size, size, 1.0, 0.3, key=jr.key(0))
    sigma = jr.normal(jr.key(1), (size, size)) / size**0.5
    task, times = linear.Task.from_correlation(sigma), jnp.linspace(0.0, 6.0, count)
    arrays = [np.asarray(a) for a in (network.w1, network.w2, sigma)]
    seconds = {}
    for question, ask in QUESTIONS.items():
        if question == "qqt" and size**2 * count > 10_000_000:  # two gigabytes of it
            continue

        def exact(ask=ask):
            return ask(linear.exact_flow(network, task, times), task)

        first, fast = clock(exact, repeats)
        # Large networks: NumPy at every tenth of a thousand times, ten times as long for all of them.
        every = 1 if size < 100 else max(1, count // 100)
        part = np.asarray(times)[::every]
        _, slow = clock(lambda q=question, part=part: plain(q, *arrays, 1.0, part), max(1, repeats // 3))
        _, better = clock(lambda q=question, part=part: tuned(q, *arrays, 1.0, part), repeats)
        slow, better = slow * count / len(part), better * count / len(part)
        gap = np.max(np.abs(tuned(question, *arrays, 1.0, part) - np.asarray(exact()[::every])))
        assert gap < 1e-8, (question, gap)
        seconds[question] = fast
        bar = BARS["small"] if size <= 20 else BARS["large"] if question != "qqt" else None
        print(
            f"| {size} | {count} | {question} | {1e3 * slow:.1f} | {1e3 * better:.1f} | {1e3 * fast:.1f} | "
            f"{slow / fast:.1f} | {better / fast:.2f} | {first:.1f} |{verdict(slow / fast, bar)}",
            flush=True,
        )
    return seconds["loss"]


def ensemble(size, count, members, repeats):
    networks = jax.vmap(lambda k: linear.lambda_balanced(size, size, size, 1.0, 0.3, key=k))(
        jr.split(jr.key(0), members)
    )
    sigma = jr.normal(jr.key(1), (size, size)) / size**0.5
    task, times = linear.Task.from_correlation(sigma), jnp.linspace(0.0, 6.0, count)
    w1, w2, target = (np.asarray(a) for a in (networks.w1, networks.w2, sigma))

    def numpy(solve):
        return lambda: [
            solve("loss", a, b, target, 1.0, np.asarray(times)) for a, b in zip(w1, w2, strict=True)
        ]

    slow, better = clock(numpy(plain), repeats)[1], clock(numpy(tuned), repeats)[1]
    first, fast = clock(lambda: linear.observe_flow(networks, task, times, linear.loss, lam=1.0), repeats)
    who = f"{members} × {size}" + ("" if CORES == 1 else f", {CORES} cores")
    print(
        f"| {who} | {count} | loss | {1e3 * slow:.1f} | {1e3 * better:.1f} | {1e3 * fast:.1f} | "
        f"{slow / fast:.1f} | {better / fast:.2f} | {first:.1f} |{verdict(slow / fast, BARS['ensemble'])}",
        flush=True,
    )
    if CORES > 1:
        return
    floor = clock(lambda: matrix_work(networks.w1, networks.w2, count), repeats)[1]
    what = f"{members} × {size} | {count} | matrix work alone"
    print(f"| {what} | | | {1e3 * floor:.1f} | {slow / floor:.1f} | | |", flush=True)


@partial(jax.jit, static_argnums=2)
def matrix_work(w1, w2, count):
    """What no evaluation of the formula can do without at each time: Gram matrix, factor, solve, product.

    On given matrices: no exponentials, no choice of pivots, nothing assembled. How fast a program made of
    LAPACK and BLAS calls could be at the very best.
    """

    def at(time):
        shifted = jnp.eye(w1.shape[1])[None] + (time * w1) @ jnp.swapaxes(w1, 1, 2)
        lower = jnp.linalg.cholesky(shifted, symmetrize_input=False)
        both = jnp.concatenate([w1, w2], axis=2)
        solved = triangular_solve(lower, jnp.swapaxes(both, 1, 2), lower=True, transpose_a=True)
        g1, g2 = jnp.split(solved, 2, axis=1)
        return jnp.sum((g2 @ jnp.swapaxes(g1, 1, 2)) ** 2, axis=(1, 2))

    return jax.lax.map(at, jnp.linspace(0.0, 6.0, count))


def until_learned(size, lam):
    """A network, its task, and when the slowest mode is learned, at the rate √(s² + λ²/4) − |λ|/2."""
    network = linear.lambda_balanced(size, size, size, lam, 0.3, key=jr.key(0))
    sigma = jr.normal(jr.key(1), (size, size)) / size**0.5
    # From the wrong sign of the determinant a network of λ = 0 ends on a saddle, which the solver leaves.
    sign = jnp.linalg.slogdet(sigma)[0] * jnp.linalg.slogdet(network.function)[0]
    sigma = sigma.at[0].multiply(sign)
    slowest = float(jnp.min(jnp.linalg.svd(sigma, compute_uv=False)))
    return network, linear.Task.from_correlation(sigma), 20 / (np.hypot(slowest, lam / 2) - abs(lam) / 2)


def race(size, lam, repeats, count):
    """Seconds of the exact flow and of the adaptive solver at equal accuracy, and by how much they differ."""
    network, task, horizon = until_learned(size, lam)
    times = jnp.linspace(0.0, horizon, count)
    _, fast = clock(lambda: linear.exact_flow(network, task, times).g1, repeats)

    def ode(times):
        flow = linear.integrate_flow(network, task, times, rtol=1e-13, atol=1e-15, max_steps=10**7)
        return jax.block_until_ready(flow)

    ode(1e-6 * times)  # compiled
    start = time.perf_counter()
    flow = ode(times)
    slow = time.perf_counter() - start
    gap = float(largest(flow.function - linear.exact_flow(network, task, times).function))
    return fast, slow, gap


def descent_until_learned(size, lam, count):
    """Seconds of gradient descent with small steps, and how far off it is, where all steps were run."""
    network, task, horizon = until_learned(size, lam)
    step = 0.02 / float(np.hypot(lam, 2 * jnp.linalg.norm(task.target, 2)))
    every = int(np.ceil(horizon / (count - 1) / step))
    steps = (count - 1) * every
    rate, budget = horizon / steps, int(2e9 // size**3)

    def descend(steps, every):
        return linear.gradient_descent(network, task, rate, steps, every=every)

    if steps > budget:  # hours of equal steps: some of them tell how long all would take
        _, part = clock(lambda: descend(budget, budget).g1, 1)
        return part * steps / budget, f"{budget} of {steps} steps run"
    _, whole = clock(lambda: descend(steps, every).g1, 1)
    exact = linear.exact_flow(network, task, jnp.linspace(0.0, horizon, count))
    return whole, f"{float(largest(descend(steps, every).function - exact.function)):.0e}"


def simulation(size, lam, repeats, count=101):
    """Until every mode is learned: against the adaptive solver at equal accuracy, and against descent."""
    fast, slow, gap = race(size, lam, repeats, count)
    slower, error = descent_until_learned(size, lam, count)
    horizon = until_learned(size, lam)[2]
    print(
        f"| {size} | {count} | {lam:g} | {horizon:.0f} | {1e3 * fast:.2f} | {1e3 * slow:.1f} | "
        f"{slow / fast:.0f} | {gap:.0e} | {1e3 * slower:.0f} | {slower / fast:.0f} | {error} |"
        f"{verdict(slow / fast, BARS['ode'])}",
        flush=True,
    )


def ensemble_simulation(size, members):
    """Many zero-balanced networks until every mode is learned: exact losses against those of the solver."""
    networks = jax.vmap(lambda k: linear.lambda_balanced(size, size, size, 0.0, 0.3, key=k))(
        jr.split(jr.key(0), members)
    )
    sigma = jr.normal(jr.key(1), (size, size)) / size**0.5
    horizon = 20 / float(jnp.min(jnp.linalg.svd(sigma, compute_uv=False)))
    task, times = linear.Task.from_correlation(sigma), jnp.linspace(0.0, horizon, 101)

    def integrate(network):
        flow = linear.integrate_flow(network, task, times, rtol=1e-13, atol=1e-15, max_steps=10**7)
        return linear.loss(flow, task)

    def exact(networks):
        return linear.observe_flow(networks, task, times, linear.loss, lam=0.0)

    ode = jax.jit(jax.vmap(integrate))
    fast, slow = clock(lambda: exact(networks), 7)[1], clock(lambda: ode(networks), 1)[1]
    # Half of them start with a determinant of the wrong sign and end on a saddle, which the solver leaves.
    gap = float(largest(exact(networks) - ode(networks)))
    times_ms = f"{1e3 * fast:.2f} | {1e3 * slow:.1f} | {slow / fast:.0f}"
    who = f"{members} × {size}" + ("" if CORES == 1 else f", {CORES} cores")
    text = f"| {who} | 101 | 0 | {horizon:.0f} | {times_ms} | {gap:.0e} | | | |"
    print(text + verdict(slow / fast, BARS["ode"]), flush=True)


def ensembles():
    for size in (4, 8, 20):
        ensemble(size, 100, 100, 41)
    ensemble(20, 1000, 100, 7)


PARTS = {"ensembles": ensembles, "simulation": partial(ensemble_simulation, 20, 100)}


def all_cores(part):
    """One part again in a process of its own, on all cores, which are shared out when JAX starts."""
    if not CORES == 1 < len(ALLOWED):
        return
    command = [sys.executable, __file__, "--only", part, "--cores", str(len(ALLOWED))]
    if CAN_PIN:
        os.sched_setaffinity(0, ALLOWED)
    subprocess.run(command, check=True)
    if CAN_PIN:
        os.sched_setaffinity(0, ALLOWED[-CORES:])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=41)
    parser.add_argument("--sizes", type=int, nargs="+", default=[20, 64, 256])
    parser.add_argument("--counts", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--only", choices=PARTS, help="this part alone")
    options = parser.parse_args()
    if options.only:
        PARTS[options.only]()
        return
    print(f"cores: {CORES}, JAX {jax.__version__}, NumPy {np.__version__}; milliseconds, shortest laps\n")
    print(
        "| size | times | asked for | plain NumPy | tuned NumPy | exact | ratio | to tuned | first call, s |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    growth = {}
    for size in options.sizes:
        for count in options.counts:
            growth[size, count] = single(size, count, options.repeats if size < 100 else 3)
    ensembles()
    all_cores("ensembles")
    print()
    for (size, count), seconds in growth.items():
        for other in [(s, c) for s, c in growth if (c == count and s > size) or (s == size and c > count)][
            :2
        ]:
            print(f"loss, (size, times) from {size, count} to {other}: ×{growth[other] / seconds:.1f}")
    print("\n| size | times | λ | until | exact | ODE | ratio | they differ by | descent | ratio | off by |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for size, lam in ((20, 0.0), (20, 1.0), (20, -1.0), (20, 10.0), (64, 0.0)):
        simulation(size, lam, 15)
    PARTS["simulation"]()
    all_cores("simulation")
    for lam in (0.0, 1.0, 10.0):
        simulation(20, lam, 15, count=1001)
    simulation(64, 0.0, 5, count=1001)
    # The solver takes a quarter of an hour for each.
    simulation(256, 0.0, 3)
    simulation(256, 0.0, 3, count=1001)


if __name__ == "__main__":
    main()
