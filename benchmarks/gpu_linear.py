"""Exact flows on one accelerator, in one run: ensembles against NumPy, single ones against the ODE.

    python benchmarks/gpu_linear.py [--sizes 20 64] [--members 100 1000] [--races 20 64 256] [--repeats 41]

Losses of all networks at 100 times by one jitted, vmapped program in float64. Plain and tuned NumPy, on one
core, are those of ``bench_linear.py``, timed on at most 100 networks and scaled. The losses of these networks
are compared with those of the same program on the CPU. The adaptive solver, at the accuracy of the exact
flow, runs on the accelerator as well. Works from a source tree that is not installed.
"""

import argparse
import itertools

import _source  # noqa: F401  # isort: skip

# Importing it leaves this process one core.
from bench_linear import clock, plain, race, tuned, until_learned  # isort: skip

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from nullcline import linear

TIMES, TIMED = 100, 100
"""Times of each network, and networks that NumPy is timed on."""


def row(size: int, members: int, repeats: int) -> str:
    """One row of the table."""
    networks = jax.vmap(lambda k: linear.lambda_balanced(size, size, size, 1.0, 0.3, key=k))(
        jr.split(jr.key(0), members)
    )
    sigma = jr.normal(jr.key(1), (size, size)) / size**0.5
    task, times = linear.Task.from_correlation(sigma), jnp.linspace(0.0, 6.0, TIMES)
    run = jax.jit(
        jax.vmap(lambda n, task, times: linear.observe_flow(n, task, times, linear.loss), (0, None, None))
    )
    first, fast = clock(lambda: run(networks, task, times), repeats)
    part = jax.tree.map(lambda leaf: leaf[:TIMED], networks)
    w1, w2, target, grid = (np.asarray(a) for a in (part.w1, part.w2, sigma, times))

    def numpy(solve):
        return lambda: [solve("loss", a, b, target, 1.0, grid) for a, b in zip(w1, w2, strict=True)]

    scale = members / len(w1)
    slow, better = (scale * clock(numpy(solve), 2)[1] for solve in (plain, tuned))
    here = np.asarray(run(part, task, times))
    with jax.default_device(jax.devices("cpu")[0]):
        there = np.asarray(run(*jax.device_put((part, task, times), jax.devices("cpu")[0])))
    gap = np.max(np.abs(here - there))
    return (
        f"| {members} × {size} | {1e3 * slow:.0f} | {1e3 * better:.0f} | {1e3 * fast:.2f} | "
        f"{slow / fast:.0f} | {better / fast:.1f} | {first:.1f} | {gap:.0e} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[20, 64], help="of ensembles")
    parser.add_argument("--members", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--races", type=int, nargs="*", default=[20, 64, 256], help="sizes against the ODE")
    parser.add_argument("--repeats", type=int, default=41)
    options = parser.parse_args()
    device = jax.devices()[0].device_kind
    print(f"{device}, JAX {jax.__version__}, NumPy {np.__version__}; milliseconds, shortest laps\n")
    print("| networks × size | plain NumPy | tuned NumPy | vmapped | ratio | to tuned | first, s | gap |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for size in options.sizes:
        for members in options.members:
            print(row(size, members, options.repeats), flush=True)
    print("\n| size | times | λ | until | exact | ODE | ratio | they differ by |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for size, lam, count in itertools.product(options.races, (0.0, 1.0), (101, 1001)):
        if lam == 0 or size <= 20:
            fast, slow, gap = race(size, lam, options.repeats, count)
            case = f"{size} | {count} | {lam:g} | {until_learned(size, lam)[2]:.0f}"
            print(
                f"| {case} | {1e3 * fast:.2f} | {1e3 * slow:.0f} | {slow / fast:.0f} | {gap:.0e} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
