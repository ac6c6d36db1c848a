"""All networks of Figures 1 and 2 of schuessler2020 on one accelerator: 145 networks, three programs.

    python benchmarks/gpu_recurrent.py [--out FOLDER] [--small]

Needs only the room ``nullcline.recurrent`` (JAX, Equinox, Optax, NumPy); works from a source tree that is not
installed. Networks of one task are trained by one vmapped program, in float32 with products of full
precision, and measured by another: truncation ranks, shuffling and norms on 512 test trials. Writes
``gpu_recurrent.json`` and ``gpu_recurrent.md``. ``--small`` is a rehearsal for a laptop.
"""

import argparse
import functools
import json
import time
from pathlib import Path

import _source  # noqa: F401  # isort: skip

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
            return {
                "functional_rank": recurrent.functional_rank(initial, final, trials),
                "norm_of_change": jnp.linalg.norm(final.w - initial.w),
                "norm_of_w": jnp.linalg.norm(final.w),
                "shuffled_loss": recurrent.shuffle_loss(initial, final, trials, key=jr.fold_in(key, index)),
                "test_loss": relative_loss(initial, final, trials),
            }

    found = measures(result.initial, result.final, trials, jnp.arange(networks))
    found = {name: np.asarray(values, float).reshape(len(strengths), seeds) for name, values in found.items()}
    measure_s = time.perf_counter() - begin
    losses = np.asarray(result.losses, float)
    losses = (losses / losses[:, :1]).reshape(len(strengths), seeds, epochs)
    found["epochs_to_5_percent"] = np.asarray(recurrent.epochs_to(jnp.asarray(losses)))
    is_converged = np.isfinite(found["epochs_to_5_percent"]) & (found["test_loss"] < 0.05)
    return {
        "networks": networks,
        "epochs": epochs,
        "train_s": round(2 * second, 1),
        "compile_s": round(first - second, 1),
        "measure_s": round(measure_s, 1),
        "converged": int(is_converged.sum()),
        "diverged": int(np.sum(np.asarray(result.diverged_at) >= 0)),
        "g": strengths,
        "median": {name: medians(found[name], is_converged) for name in MEASURES},
        "each": {name: plain(values) for name, values in found.items()},
        # The plateau of networks without initial connectivity.
        "loss_at_epoch": {str(k): plain(losses[0, :, k - 1]) for k in PLATEAU if k <= epochs},
        "spectra": {str(g): spectra(result, k, seeds) for k, g in enumerate(strengths) if g in (0, 0.9, 1.8)},
    }


MEASURES = ("epochs_to_5_percent", "norm_of_change", "shuffled_loss", "functional_rank")
PLATEAU = (50, 100, 150, 500, 1000, 1500, 2000)


def relative_loss(initial, final, trials):
    """Loss of the trained network over that of the untrained one."""
    after, before = (recurrent.loss(recurrent.run(c, trials.inputs)[1], trials) for c in (final, initial))
    return after / before


def spectra(result: recurrent.TrainResult, index: int, seeds: int) -> dict:
    """Leading eigenvalues of W and singular values of its change, one row for each seed of one g."""
    rows = slice(index * seeds, (index + 1) * seeds)
    w = np.asarray(result.final.w[rows], float)
    values = np.linalg.eigvals(w)
    values = np.take_along_axis(values, np.argsort(-values.real), axis=1)
    change = np.linalg.svd(w - np.asarray(result.initial.w[rows], float), compute_uv=False)
    return {
        "real": plain(values[:, :8].real),
        "imaginary": plain(values[:, :8].imag),
        "radius": plain(np.sort(np.abs(values))[:, ::-1]),
        "change": plain(change[:, :11]),
    }


def plain(values: np.ndarray) -> list:
    """Numbers for JSON, to four digits; null where there is none."""
    if np.ndim(values):
        return [plain(row) for row in values]
    return float(f"{float(values):.4g}") if np.isfinite(values) else None


def medians(values: np.ndarray, is_converged: np.ndarray) -> list[float | None]:
    """Medians over the seeds that converged, one for each g."""
    kept = [row[keep & np.isfinite(row)] for row, keep in zip(values, is_converged, strict=True)]
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
        for measure in MEASURES:
            lines += [
                f"| {measure.replace('_', ' ')} | " + " | ".join(map(str, row["median"][measure])) + " |"
            ]
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
        print(name, {key: tasks[name][key] for key in ("train_s", "compile_s", "measure_s")}, flush=True)
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
