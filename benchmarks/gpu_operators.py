# ruff: noqa: E402
"""A slice of 100 networks of the paper preset of hazelden2025, Figure 2, on one accelerator.

    python benchmarks/gpu_operators.py [--out FOLDER] [--seconds S] [--small]

Fifty values of g from 0 to 3 (g of the code), two seeds each: rate networks of 256 units on the memory-pro
task, trained by one vmapped program in float32 with products of full precision, and measured at snapshots by
another in float64: effective rank of K over (trial, time) with powers 1 and 2, of P over time, and principal
components of the states, on 30 trials. Needs only the rooms ``recurrent`` and ``operators`` (JAX, Equinox,
Optax, NumPy); works from a source tree that is not installed. Writes ``gpu_operators.json`` and
``gpu_operators.md``. ``--small`` is a rehearsal for a laptop.
"""

import argparse
import json
import os
import platform
import time
from pathlib import Path

import _source  # noqa: F401  # isort: skip

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax

from nullcline import measures, operators, recurrent

THRESHOLD, RECORD, TRIALS, PROBES = 1 / 60, 50, 30, 2
MEASURED_AT = (0, 100, 500, 1000, 2000, 5000)


def say(text):
    print(text, flush=True)


def grams(cell, inputs, key):
    """Matrices whose spectra are those of K over (trial, time), of P P* over time, and of the activity."""
    flow = operators.linearize(cell, inputs)
    batch, steps, hidden = flow.states.shape
    # K of a rate network is k (x) I with k = (X X^T + phi(Z) phi(Z)^T) / batch: take its features.
    features = jnp.concatenate([inputs, jnp.tanh(flow.states_before)], axis=2).reshape(batch * steps, -1)
    kernel = features.T @ features / batch

    def one(key):
        pushed = flow.propagator @ jr.normal(key, flow.states.shape, flow.states.dtype)
        return jnp.einsum("bth,bsh->ts", pushed, pushed) / (batch * hidden)

    over_time = jnp.mean(jax.vmap(one)(jr.split(key, PROBES)), axis=0)
    rows = flow.states.reshape(batch * steps, -1)
    rows = rows - jnp.mean(rows, axis=0, keepdims=True)
    return kernel, over_time, rows.T @ rows


all_grams = jax.jit(jax.vmap(grams, in_axes=(0, None, 0)))
eigenvalues = jax.jit(lambda stack: jnp.clip(jax.vmap(jnp.linalg.eigvalsh)(stack), 0, None))
ranks = {
    power: jax.jit(jax.vmap(lambda values, power=power: measures.effective_rank(values, power=power)))
    for power in (1, 2)
}


def measure(cells, inputs, key):
    """Effective ranks of every network, as lists."""
    cells = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), cells)
    kernel, over_time, activity = all_grams(cells, inputs, jr.split(key, cells.w.shape[0]))
    values = eigenvalues(kernel)
    found = {
        "rank_of_k_power_1": ranks[1](values),
        "rank_of_k_power_2": ranks[2](values),
        # Eigenvalues of P P* are squared singular values of P.
        "rank_of_p_over_time": ranks[1](eigenvalues(over_time)),
        "principal_components": ranks[1](eigenvalues(activity)),
    }
    return {name: np.asarray(value).tolist() for name, value in found.items()}


def check(cells, inputs, found):
    """The vmapped rank of K against the exact one of the room, for the first, middle and last network."""
    gap = 0.0
    for index in (0, cells.w.shape[0] // 2, cells.w.shape[0] - 1):
        cell = jax.tree.map(lambda leaf, i=index: leaf[i].astype(jnp.float64), cells)
        kernel = operators.consensus(operators.linearize(cell, inputs).parameter_operator, ("hidden",))
        for power in (1, 2):
            exact = float(operators.effective_rank(kernel, power=power))
            gap = max(gap, abs(exact - found[f"rank_of_k_power_{power}"][index]))
    return gap


def by_group(values, strengths, groups):
    """Median over the networks of each group of g; None where no number is finite."""
    values = np.asarray(values, float)
    medians = []
    for low, high in groups:
        mine = values[(strengths >= low) & (strengths <= high)]
        medians.append(float(np.median(mine)) if np.isfinite(mine).any() else None)
    return [None if m is None or not np.isfinite(m) else round(m, 1) for m in medians]


def table(found) -> str:
    head = " | ".join(f"{low:g}–{high:g}" for low, high in found["groups"])
    lines = [
        f"{found['networks']} networks of {found['hidden']} units, {found['iterations']} iterations of "
        f"{found['batch']} trials of {found['steps_per_trial']} steps, on one {found['device']} "
        f"(jax {found['jax']}): {found['train_s']} s of training by one vmapped program "
        f"({found['teraflops_per_s']} TFLOP/s in float32 of full precision, "
        f"{found['ms_per_network_iteration']} ms a network and iteration), {found['compile_s']} s of "
        f"compilation, {found['measure_s']} s of measuring at {len(found['snapshots'])} snapshots.",
        "",
        f"{found['converged']} networks met a mean squared error of 1/60, {found['diverged']} diverged. g is "
        "that of the code, g·U(±1/√N); medians over the networks of each range of g.",
        "",
        f"| g | {head} |",
        "| --- " * (len(found["groups"]) + 1) + "|",
        "| iterations to 1/60 | " + " | ".join(shown(found["iterations_to_threshold"])) + " |",
    ]
    for snapshot in found["snapshots"]:
        for name in (
            "rank_of_k_power_1",
            "rank_of_k_power_2",
            "rank_of_p_over_time",
            "principal_components",
        ):
            label = name.replace("_", " ").replace(" k ", " K ").replace(" p ", " P ")
            lines.append(
                f"| {label}, iteration {snapshot['iteration']} | " + " | ".join(shown(snapshot[name])) + " |"
            )
    return "\n".join(lines) + "\n"


def shown(values):
    return ["–" if value is None else f"{value:g}" for value in values]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--seconds", type=float, default=200.0, help="stop training after so many seconds")
    parser.add_argument(
        "--networks", type=int, default=None, help="fifty values of g times a number of seeds"
    )
    parser.add_argument("--small", action="store_true", help="10 networks of 32 units, 200 iterations")
    options = parser.parse_args()
    hidden, period, batch, iterations, count = (
        (32, 5, 20, 200, 10) if options.small else (256, 30, 200, 5000, 100)
    )
    count = options.networks or count
    values = 5 if options.small else 50
    if count % values:
        parser.error(f"--networks must be a multiple of {values}, got {count}.")
    device = jax.devices()[0]
    say(f"{device.device_kind}, JAX {jax.__version__}, {count} networks of {hidden} units")
    task = recurrent.MemoryPro(period=period)
    strengths = np.repeat([round(k * 3 / (values - 1), 4) for k in range(values)], count // values)
    seeds = np.tile(np.arange(count // values), values)
    cells = recurrent.stack([
        recurrent.rate_cell(
            3, hidden, 3, g=float(g), dt=1.0, weights="uniform", vectors="uniform", reads="state",
            dtype=jnp.float32, key=jr.fold_in(jr.key(2025), int(seed)),
        )
        for g, seed in zip(strengths, seeds, strict=True)
    ])  # fmt: skip
    trials = task.grid(TRIALS, dtype=jnp.float32)

    @jax.jit
    def test_losses(cells, inputs, targets):
        return jax.vmap(lambda cell: jnp.mean((recurrent.run(cell, inputs)[1] - targets) ** 2))(cells)

    marks, losses, last = [time.perf_counter()], [], 0.0

    def report(checkpoint):
        nonlocal last
        losses.append(np.asarray(test_losses(checkpoint.cell, trials.inputs, trials.targets)))
        marks.append(time.perf_counter())
        if marks[-1] - last > 5:
            last = marks[-1]
            below = int((np.min(losses, axis=0) < THRESHOLD).sum())
            say(f"  {int(checkpoint.step)}/{iterations} iterations, {last - marks[0]:.0f} s, {below} done")
        return marks[-1] - marks[0] > options.seconds

    result = recurrent.train_many(
        cells, task, steps=iterations, batch_size=batch, snapshot_every=RECORD, report=report, method="vmap",
        optimizer=optax.chain(optax.clip_by_global_norm(1e-4), optax.adam(1e-3)), key=jr.key(2026),
    )  # fmt: skip
    done = int(result.snapshot_steps[-1])
    seconds = np.diff(marks)
    # The first interval also pays for the compilation.
    steady = float(np.median(seconds[1:]))
    train_s = float(seconds[1:].sum()) + steady
    say(f"trained: {done} iterations in {train_s:.1f} s, compilation {seconds[0] - steady:.1f} s")
    below = np.array(losses) < THRESHOLD
    first = np.where(below.any(axis=0), result.snapshot_steps[np.argmax(below, axis=0)], np.nan)
    # A network that never met the threshold counts as infinitely slow in a median.
    waited = np.where(np.isfinite(first), first, np.inf)
    groups = [
        (0, 0.5),
        (0.5, 1),
        (1, 1.5),
        (1.5, 1.9),
        (1.9, 2.1),
        (2.1, 2.4),
        (2.4, 2.6),
        (2.6, 2.9),
        (2.9, 3),
    ]
    if options.small:
        groups = [(0, 1), (1, 2), (2, 3)]
    begin = time.perf_counter()
    inputs = task.grid(TRIALS).inputs
    snapshots = []
    for iteration in [i for i in MEASURED_AT if i < done] + [done]:
        index = int(np.searchsorted(result.snapshot_steps, iteration))
        now = cells if iteration == 0 else jax.tree.map(lambda leaf, i=index: leaf[:, i], result.snapshots)
        found = measure(now, inputs, jr.key(7))
        gap = check(now, inputs, found)
        snapshots.append(
            {"iteration": iteration, "largest_gap_to_exact_rank": gap}
            | {name: by_group(value, strengths, groups) for name, value in found.items()}
            | {f"all_{name}": value for name, value in found.items()}
        )
        say(f"  measured at {iteration}: {time.perf_counter() - begin:.1f} s, gap to the exact rank {gap:g}")
    # Forward and two products backward, each 2 N² operations a trial and step (inputs and readout are small).
    operations = 3 * 2 * hidden * (hidden + 6) * batch * 3 * period * count
    per_iteration = train_s / done
    record = {
        "device": device.device_kind,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "networks": count,
        "hidden": hidden,
        "batch": batch,
        "steps_per_trial": 3 * period,
        "iterations": done,
        "train_s": round(train_s, 1),
        "compile_s": round(float(seconds[0]) - steady, 1),
        "measure_s": round(time.perf_counter() - begin, 1),
        "ms_per_network_iteration": round(1e3 * per_iteration / count, 3),
        "teraflops_per_s": round(operations / per_iteration / 1e12, 2),
        "converged": int(np.isfinite(first).sum()),
        "diverged": int((np.asarray(result.diverged_at) >= 0).sum()),
        "g": strengths.tolist(),
        "seed": seeds.tolist(),
        "all_iterations_to_threshold": [None if np.isnan(f) else int(f) for f in first],
        "groups": groups,
        "iterations_to_threshold": by_group(waited, strengths, groups),
        "snapshots": snapshots,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "gpu_operators.json").write_text(json.dumps(record, indent=1) + "\n")
    (options.out / "gpu_operators.md").write_text(table(record))
    say(table(record))


if __name__ == "__main__":
    main()
