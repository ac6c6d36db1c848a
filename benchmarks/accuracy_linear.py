"""How exact the exact flow is: random networks, each solved in several ways that must agree.

    python benchmarks/accuracy_linear.py [--kinds flow large …] [--seconds 60] [--members 500] [--processes 2]

A flow does not change if hidden units at rest are left out, if inputs and outputs are rotated or if both
layers change places; its rounding does. Sizes, λ, rank, strength, task and times are drawn at random, and the
relative errors of function, input and output Gram matrix compared at every time. Prints for each kind of
network the quantiles of the largest error of a network, and how many exceed what is allowed; ``--show`` adds
the draw that each of these came from. Works from a source tree that is not installed.
"""

import argparse
import multiprocessing
import os
import time
from functools import partial

import _source  # noqa: F401  # isort: skip

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from nullcline import linear

jax.config.update("jax_enable_x64", True)

ALLOWED = {"float32": 1e-3}
"""Largest error that is no finding, 1e-8 in double precision.

Draws that are badly conditioned lose digits: exponents of nearly equal modes have errors of 1e-16 l t, and
rounding at the end of one task may grow by e^(2sT) in the next.
"""
TASKS = ["generic", "generic", "deficient", "equal", "near", "weak"]
BALANCES = [0.0, 1e-6, -1e-6, 1e-3, -1e-3, 1.0, -1.0, 30.0, -30.0, 1e3, -1e3]


def orthogonal(rng, members: int, rows: int, columns: int):
    """Orthonormal columns, for each network."""
    return np.linalg.qr(rng.normal(size=(members, rows, columns)))[0]


def transposed(matrices):
    return np.swapaxes(matrices, -1, -2)


def relative(x, y):
    """Relative error of each matrix."""
    gap, size = (np.linalg.norm(m, axis=(-2, -1)) for m in (np.asarray(x) - y, y))
    return gap / np.maximum(size, 1e-300)


def errors(*pairs):
    """Of each block of each pair of states, (networks, pairs and blocks, times)."""
    both = [(x, np.asarray(y)) for one, two in pairs for x, y in zip(one, two, strict=True)]
    return np.stack([relative(x, y) for x, y in both], axis=1)


def blocks(trajectory):
    """What is compared."""
    return trajectory.function, trajectory.input_gram, trajectory.output_gram


def random_times(rng, low=-3, high=6, count=8):
    return np.append(0.0, np.sort(10 ** rng.uniform(low, high, count - 1)))


def random_task(rng, members: int, n_in: int, n_out: int, kind: str):
    """Gaussian tasks: of full rank, of less, with singular values that are equal, nearly so or weak."""
    u, s, vt = np.linalg.svd(rng.normal(size=(members, n_out, n_in)) / n_in**0.5, full_matrices=False)
    count = min(n_in, n_out)
    some = int(rng.integers(1, count + 1))
    if kind == "deficient":
        s[:, some:] = 0
    elif kind == "equal":
        s[:, :some] = s[:, :1]
    elif kind == "near":
        s[:, :some] = s[:, :1] * (1 - 1e-6 * np.arange(some))
    elif kind == "weak":
        s *= 10.0 ** -rng.uniform(0, 5, count)
    return (u * s[:, None]) @ vt


def draw(rng, members: int, low: int, high: int, scales=(0.01, 0.3, 1.0), kinds=TASKS):
    """Networks of one random shape with two tasks each, in four forms, the rotations, and the shape in words.

    Forms: the active units alone, all units, inputs and outputs rotated, layers exchanged.
    """
    n_in, n_out = (int(n) for n in rng.integers(low, high, 2))
    lam, scale = float(rng.choice(BALANCES)), float(rng.choice(scales))
    rank = int(rng.integers(1, (n_out if lam > 0 else n_in if lam < 0 else high + 4) + 1))
    hidden = rank + int(rng.choice([0, 0, 1, 5, 20]))
    kind = str(rng.choice(kinds))
    keys = jr.split(jr.key(int(rng.integers(2**31))), members)
    core = jax.jit(jax.vmap(lambda key: linear.lambda_balanced(n_in, rank, n_out, lam, scale, key=key)))(keys)
    first, second = np.asarray(core.w1), np.asarray(core.w2)
    sigmas = np.stack([random_task(rng, members, n_in, n_out, kind) for _ in range(2)], axis=1)
    if lam == 0 and n_in == n_out and rank >= n_in:
        # Half of these starts end on a saddle, where rounding decides: take the other half.
        is_saddle = np.linalg.det(sigmas[:, 0]) * np.linalg.det(second @ first) < 0
        sigmas[is_saddle, :, 0] *= -1
    frame = orthogonal(rng, members, hidden, rank)
    u, v = orthogonal(rng, members, n_out, n_out), orthogonal(rng, members, n_in, n_in)
    w1, w2 = frame @ first, second @ transposed(frame)
    forms = {
        "active": (first, second, sigmas),
        "all": (w1, w2, sigmas),
        "rotated": (w1 @ transposed(v), u @ w2, u[:, None] @ sigmas @ transposed(v)[:, None]),
        "exchanged": (transposed(w2), transposed(w1), transposed(sigmas)),
    }
    return forms, (u, v), f"{(n_in, hidden, n_out)} rank {rank} λ {lam:g} scale {scale:g} task {kind}"


def compare(solve, forms, rotations):
    """Errors of all forms against the active units alone."""
    run, (u, v) = jax.jit(jax.vmap(solve)), (m[:, None] for m in rotations)
    active, whole, (f, i, o), (f2, i2, o2) = (run(*form) for form in forms.values())
    rotated = (transposed(u) @ f @ v, transposed(v) @ i @ v, transposed(u) @ o @ u)
    return errors((whole, active), (rotated, active), ((transposed(f2), o2, i2), active))


def flow(rng, members, low=1, high=26):
    """Networks of any shape, as under ``jit``."""
    (forms, rotations, label), times = draw(rng, members, low, high), random_times(rng)

    def solve(w1, w2, sigmas):
        return blocks(
            linear.exact_flow(linear.Network(w1, w2), linear.Task.from_correlation(sigmas[0]), times)
        )

    return compare(solve, forms, rotations), label


def dense(rng, members):
    """Many times, of which one chart serves several, against each time alone."""
    forms, _, label = draw(rng, members, 1, 26)
    w1, w2, sigmas = forms["all"]
    sigma = sigmas[0, 0]
    lam = float(linear.balance_residual(linear.Network(w1[0], w2[0]))[0])
    if lam == 0 and sigma.shape[0] == sigma.shape[1] <= w1.shape[1]:
        # Not those that end on a saddle, as in `draw`.
        w1 = w1.copy()
        w1[np.linalg.det(w2 @ w1) * np.linalg.det(sigma) < 0, :, 0] *= -1
    task = linear.Task.from_correlation(sigma)
    horizon = 10 ** rng.uniform(0, 3) / float(np.hypot(np.linalg.norm(sigma, 2), lam / 2))
    times = np.append(
        0.0, np.linspace(0, horizon, 32) if rng.random() < 0.7 else horizon * 0.7 ** np.arange(32)[::-1]
    )

    @jax.jit
    def alone(time):
        return jax.vmap(lambda w1, w2: blocks(linear.exact_flow(linear.Network(w1, w2), task, time)))(w1, w2)

    def solve(w1, w2):
        return blocks(linear.exact_flow(linear.Network(w1, w2), task, times, lam=lam))

    each = zip(*(alone(times[index : index + 1]) for index in range(len(times))), strict=True)
    truth = tuple(np.concatenate(states, axis=1) for states in each)
    return errors((jax.jit(jax.vmap(solve))(w1, w2), truth)), f"{label} until {horizon:.3g}"


def limit(rng, members):
    """The state after training for ever."""
    forms, rotations, label = draw(rng, members, 1, 20, scales=(0.3, 1.0))

    def solve(w1, w2, sigmas):
        return blocks(linear.limit(linear.Network(w1, w2), linear.Task.from_correlation(sigmas[0])))

    return compare(solve, forms, rotations), label


def sequence(rng, members):
    """Three tasks, one after the other."""
    forms, rotations, label = draw(rng, members, 1, 20, scales=(0.3, 1.0))
    durations = [float(t) for t in rng.uniform(0.1, 2, 3)]

    def solve(w1, w2, sigmas):
        tasks = [linear.Task.from_correlation(s) for s in (sigmas[0], sigmas[1], -sigmas[0])]
        stages = linear.exact_sequence(linear.Network(w1, w2), tasks, durations, points=4).stages
        return tuple(jnp.concatenate(parts) for parts in zip(*map(blocks, stages), strict=True))

    return compare(solve, forms, rotations), label


def lora(rng, members):
    """Adapters of a frozen map."""
    (forms, rotations, label), times = draw(rng, members, 1, 20), random_times(rng)
    gamma = float(rng.choice([0.5, 2.0, 8.0]))

    def solve(w1, w2, sigmas):
        task = linear.Task.from_correlation(sigmas[0])
        return blocks(linear.lora_flow(sigmas[1], linear.Network(w1, w2), task, times, gamma=gamma).adapter)

    return compare(solve, forms, rotations), f"{label} γ {gamma:g}"


def data(rng, members):
    """Samples that span a part of the inputs, against the same network on that part alone."""
    (forms, _, label), times = draw(rng, members, 1, 16), random_times(rng)
    w1, w2, sigmas = forms["all"]
    n_in, (more, samples) = w1.shape[2], (int(n) for n in rng.integers(0, [6, 20]))
    samples, kappa = samples + n_in, float(rng.choice([0.2, 1.0, 5.0]))
    part = orthogonal(rng, members, n_in + more, n_in)
    x = (kappa * samples) ** 0.5 * transposed(orthogonal(rng, members, samples, n_in))
    # Outside the span of the inputs the first layer may be anything.
    beyond = rng.normal(size=(*w1.shape[:2], n_in + more)) * (more > 0)
    beyond = beyond - beyond @ part @ transposed(part)

    def on_samples(w1, w2, x, y):
        task = linear.Task(x, y, is_isotropic=True)
        return blocks(linear.exact_flow(linear.Network(w1, w2), task, times / kappa))

    def on_part(w1, w2, sigma):
        return blocks(linear.exact_flow(linear.Network(w1, w2), linear.Task.from_correlation(sigma), times))

    arrays = (w1 @ transposed(part) + beyond, w2, part @ x, sigmas[:, 0] @ x)
    f, i, o = jax.jit(jax.vmap(on_samples))(*arrays)
    part = part[:, None]
    seen = (f @ part, transposed(part) @ i @ part, o)
    alone = jax.jit(jax.vmap(on_part))(w1, w2, sigmas[:, 0])
    return errors((seen, alone)), f"{label} more {more} samples {samples} κ {kappa:g}"


def saddle(rng, members):
    """Networks that know some modes of the task only, some of them one by one: no other mode ever grows.

    Known modes are as if alone; what is known one by one follows its formula.
    """
    n_in, n_out = (int(n) for n in rng.integers(2, 20, 2))
    modes, lam = min(n_in, n_out), float(rng.choice([0.0, 0.5, -0.5, 10.0, -10.0]))
    known, times = int(rng.integers(1, modes + 1)), random_times(rng)
    alone = int(rng.integers(0, known + 1))
    together, rank = known - alone, known
    if together and rng.random() < 0.5:  # fewer units than modes
        rank = alone + int(rng.integers(1, together + 1))
    hidden = rank + int(rng.choice([0, 1, 10]))
    u, v = (orthogonal(rng, members, n, n)[:, :, :modes] for n in (n_out, n_in))
    s = (np.arange(1, modes + 1) + 0.2 * rng.uniform(size=(members, modes)))[:, ::-1] / modes
    if rng.random() < 0.5:
        s = np.sort(rng.uniform(0.01, 1, (members, modes)))[:, ::-1]
    order = rng.permutation(modes)[:known]
    frame = orthogonal(rng, members, hidden, rank)

    def solve(w1, w2, sigma):
        return blocks(linear.exact_flow(linear.Network(w1, w2), linear.Task.from_correlation(sigma), times))

    state = [np.zeros((members, len(times), known, known)) for _ in range(3)]
    w1, w2 = np.zeros((members, rank, known)), np.zeros((members, known, rank))
    if alone:
        a0, one = rng.uniform(0.05, 1, (members, alone)), np.arange(alone)
        flow_of = jax.jit(jax.vmap(lambda s, a0: linear.mode_flow(s, a0, times, lam=lam)))
        grown = flow_of(s[:, order[:alone]], a0)
        first, second = np.asarray(grown.first), np.asarray(grown.second)
        for block, values in zip(state, (first * second, first**2, second**2), strict=True):
            block[:, :, one, one] = values
        w1[:, one, one], w2[:, one, one] = first[:, 0], second[:, 0]
    if together:
        keys = jr.split(jr.key(int(rng.integers(2**31))), members)
        sizes = (together, rank - alone, together)
        rest = jax.jit(jax.vmap(lambda key: linear.lambda_balanced(*sizes, lam, 0.5, key=key)))(keys)
        first, second = np.array(rest.w1), np.array(rest.w2)
        if lam == 0 and rank == known:  # not those whose own modes end on a saddle
            first[np.linalg.det(second @ first) < 0, :, 0] *= -1
        task = s[:, order[alone:], None] * np.eye(together)
        for block, values in zip(state, jax.jit(jax.vmap(solve))(first, second, task), strict=True):
            block[:, :, alone:, alone:] = values
        w1[:, alone:, alone:], w2[:, alone:, alone:] = first, second
    left, right = u[:, :, order], v[:, :, order]
    weights = (frame @ w1 @ transposed(right), left @ w2 @ transposed(frame))
    seen = jax.jit(jax.vmap(solve))(*weights, (u * s[:, None]) @ transposed(v))
    left, right = left[:, None], right[:, None]
    sides = ((left, right), (right, right), (left, left))
    truth = [x @ block @ transposed(y) for block, (x, y) in zip(state, sides, strict=True)]
    shape = f"{(n_in, hidden, n_out)} known {known}, {alone} alone, rank {rank} λ {lam:g}"
    return errors((seen, truth)), shape


def float32(rng, members):
    """Single precision against double, of the same rounded weights."""
    # What is nearly equal in double precision is equal in single.
    forms, _, label = draw(rng, members, 2, 20, (0.3, 1.0), [kind for kind in TASKS if kind != "near"])
    w1, w2, sigmas = (part.astype(np.float32) for part in forms["all"])
    times = np.array([0.0, 0.3, 3.0, 30.0, 300.0, 1e4])

    @jax.jit
    @jax.vmap
    def solve(w1, w2, sigma):
        task, clock = linear.Task.from_correlation(sigma), times.astype(w1.dtype)
        return blocks(linear.exact_flow(linear.Network(w1, w2), task, clock, tolerance=1.2e-7))

    arrays = (w1, w2, sigmas[:, 0])
    return errors((solve(*arrays), solve(*(part.astype(float) for part in arrays)))), label


def single(rng, _):
    """One large network at a time, called as a user does, against the same under ``jit`` and in a batch."""
    (forms, _, label), times = draw(rng, 1, 20, 100), random_times(rng, high=9, count=24)
    w1, w2, sigmas = (part[0] for part in forms["all"])
    network, task = linear.Network(w1, w2), linear.Task.from_correlation(sigmas[0])
    direct = blocks(linear.exact_flow(network, task, times))
    traced = blocks(jax.jit(lambda network, times: linear.exact_flow(network, task, times))(network, times))
    batch = jax.tree.map(lambda leaf: leaf[None], network)
    listed = linear.observe_flow(batch, task, times, lambda now, task: blocks(now))
    direct, traced = (tuple(block[None] for block in state) for state in (direct, traced))
    return errors((traced, direct), (listed, direct)), label


KINDS = {
    "flow": flow,
    "large": partial(flow, low=27, high=100),
    "dense": dense,
    "single": single,
    "saddle": saddle,
    "limit": limit,
    "data": data,
    "sequence": sequence,
    "lora": lora,
    "float32": float32,
}


def search(kind: str, seed: int, seconds: float, members: int, show: bool) -> np.ndarray:
    """The largest error of each network that could be drawn within the time."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(os.getppid()))
        os.sched_setaffinity(0, {cores[seed % len(cores)]})
    rng, worst, start = np.random.default_rng([seed, *kind.encode()]), [], time.monotonic()
    while time.monotonic() - start < seconds:
        found, label = KINDS[kind](rng, max(1, members // 5) if kind == "large" else members)
        # Nothing of these is undefined: NaN is an error.
        found = np.nan_to_num(found, nan=np.inf)
        largest = found.max(axis=(1, 2))
        worst.append(largest)
        is_bad = largest > ALLOWED.get(kind, 1e-8)
        if show and is_bad.any():
            place = tuple(int(i) for i in np.unravel_index(found.argmax(), found.shape))
            print(
                f"{kind} {label}: {is_bad.sum()} of {len(is_bad)}, {largest.max():.1e} at {place}", flush=True
            )
        jax.clear_caches()
    return np.concatenate(worst)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seconds", type=float, default=60.0, help="for each kind and process")
    parser.add_argument("--members", type=int, default=500, help="networks of one draw")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", action="store_true", help="print the draws with errors")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    print("| kind | networks | median | 99.9 % | worst | errors |")
    print("| --- | --- | --- | --- | --- | --- |")
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.processes) as pool:
        for kind in options.kinds:
            rest = (options.seconds, options.members, options.show)
            seeds = range(options.seed * options.processes, (options.seed + 1) * options.processes)
            found = np.concatenate(pool.starmap(search, [(kind, seed, *rest) for seed in seeds], chunksize=1))
            quantiles = " | ".join(f"{q:.0e}" for q in np.quantile(found, [0.5, 0.999, 1.0], method="lower"))
            allowed = ALLOWED.get(kind, 1e-8)
            print(
                f"| {kind} | {len(found)} | {quantiles} | {np.sum(found > allowed)} above {allowed:.0e} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
