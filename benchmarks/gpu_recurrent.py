"""All networks of Figures 1 and 2 of schuessler2020 on one accelerator: 145 networks, three programs.

    python benchmarks/gpu_recurrent.py [--out FOLDER] [--small]

Needs only the room ``nullcline.recurrent`` (JAX, Equinox, Optax, NumPy); works from a source tree that is not
installed. Networks of one task are trained by one vmapped program, in float32 with products of full
precision, and measured by another: truncation ranks, shuffling and norms on 512 test trials. Writes
``gpu_recurrent.json`` and ``gpu_recurrent.md``. ``--small`` is a rehearsal for a laptop.
"""

import argparse
import functools
import importlib.metadata
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
try:
    importlib.metadata.version("nullcline")
except importlib.metadata.PackageNotFoundError:
    installed_version = importlib.metadata.version
    importlib.metadata.version = lambda name: ("0+source" if name == "nullcline" else installed_version(name))

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from nullcline import recurrent

RUNS = {
    "flip-flop": (recurrent.FlipFlop(), 1000, 2.1),
    "mante": (recurrent.Mante(), 2000, 2.7),
    "romo": (recurrent.Romo(), 6000, 3.0),
}


def study(name: str, hidden: int, seeds: int, speedup: int) -> dict:
    task, epochs, last = RUNS[name]
    epochs //= speedup
    strengths = [round(0.3 * k, 1) for k in range(round(last / 0.3) + 1)]
    key = jr.key(2020)

    @jax.jit
    @jax.vmap
    def draw(g, seed):
        return recurrent.rate_cell(
            task.inputs, hidden, task.outputs, g=g, dtype=jnp.float32, key=jr.fold_in(key, seed)
        )

    g, seed = np.meshgrid(np.float32(strengths), np.arange(seeds), indexing="ij")
    cells = draw(g.ravel(), seed.ravel())
    networks = g.size
    marks = [time.perf_counter()]

    def mark(checkpoint):
        jax.block_until_ready(checkpoint.losses)
        marks.append(time.perf_counter())

    # Two halves by the same program: the first one also pays for the compilation.
    result = recurrent.train_many(
        cells, task, steps=epochs, snapshot_every=epochs // 2, method="vmap", report=mark, key=jr.key(99)
    )
    first, second = np.diff(marks)
    trials = task.sample(512, key=jr.key(7), dtype=jnp.float32)
    begin = time.perf_counter()

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, 0, None, 0))
    def measures(initial, final, trials, index):
        with jax.default_matmul_precision("highest"):
            rank = recurrent.functional_rank(initial, final, trials)
            shuffled = recurrent.shuffle_loss(initial, final, trials, key=jr.fold_in(key, index))
            return jnp.stack([rank, jnp.linalg.norm(final.w - initial.w), shuffled])

    rows = np.asarray(measures(result.initial, result.final, trials, jnp.arange(networks)))
    reached = np.asarray(recurrent.epochs_to(result.losses)).reshape(len(strengths), seeds)
    rank, norm, shuffled = rows.T.reshape(3, len(strengths), seeds)
    return {
        "networks": networks,
        "epochs": epochs,
        "train_s": round(2 * second, 1),
        "compile_s": round(first - second, 1),
        "measure_s": round(time.perf_counter() - begin, 1),
        "converged": int(np.isfinite(reached).sum()),
        "diverged": int(np.sum(np.asarray(result.diverged_at) >= 0)),
        "g": strengths,
        "epochs_to_5_percent": medians(reached, reached),
        "norm_of_change": medians(norm, reached),
        "shuffled_loss": medians(shuffled, reached),
        "functional_rank": medians(rank, reached),
    }


def medians(values: np.ndarray, reached: np.ndarray) -> list[float | None]:
    """Medians over the seeds that converged, one for each g."""
    kept = [row[np.isfinite(row) & np.isfinite(mark)] for row, mark in zip(values, reached, strict=True)]
    return [round(float(np.median(row)), 2) if row.size else None for row in kept]


def table(found: dict) -> str:
    lines = [
        f"{found['networks']} networks of {found['hidden']} units on one {found['device']}: "
        f"{found['train_s']} s of training, {found['compile_s']} s of compilation, {found['measure_s']} s of "
        f"measuring (jax {found['jax']}).",
        "",
        "| task | networks | epochs | training | compilation | converged |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {name} | {row['networks']} | {row['epochs']} | {row['train_s']} s | {row['compile_s']} s "
        f"| {row['converged']} |"
        for name, row in found["tasks"].items()
    ]
    for name, row in found["tasks"].items():
        lines += ["", f"| {name}, g | " + " | ".join(map(str, row["g"])) + " |"]
        lines += ["| --- " * (len(row["g"]) + 1) + "|"]
        for measure in ("epochs_to_5_percent", "norm_of_change", "shuffled_loss", "functional_rank"):
            lines += [f"| {measure.replace('_', ' ')} | " + " | ".join(map(str, row[measure])) + " |"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    hidden, seeds, speedup = (16, 1, 100) if options.small else (256, 5, 1)
    tasks = {}
    for name in RUNS:
        tasks[name] = study(name, hidden, seeds, speedup)
        print(name, json.dumps(tasks[name]), flush=True)
    total = {
        key: round(sum(row[key] for row in tasks.values()), 1)
        for key in ("networks", "train_s", "compile_s", "measure_s")
    }
    found = {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "hidden": hidden,
        **total,
        "tasks": tasks,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "gpu_recurrent.json").write_text(json.dumps(found, indent=1))
    (options.out / "gpu_recurrent.md").write_text(table(found))
    print(table(found))


if __name__ == "__main__":
    main()
