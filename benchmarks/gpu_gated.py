# ruff: noqa: E402
"""All 1,620 runs of the shared-representations Figure 1 on one accelerator, in float64 and float32.

    python benchmarks/gpu_gated.py [--out FOLDER]

Needs only the room ``nullcline.gated`` (JAX, Equinox, Diffrax, NumPy); works from a source tree that is not
installed. Writes ``gpu_gated.json`` and ``gpu_gated.md``. ``--small`` is a rehearsal for a laptop.
"""

import argparse
import json
import os
import platform
import time
import warnings
from pathlib import Path

import _source  # noqa: F401  # isort: skip

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import jax.random as jr
import numpy as np

from nullcline import gated

SCALES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)


def say(text):
    print(text, flush=True)


def cases(languages, words, hidden, seeds, budget):
    """Masks, coupled starts and budgets: smallest scale, with the largest budget, first."""
    orders = [gated.nested_masks(languages, key=jr.fold_in(jr.key(1), seed)) for seed in range(seeds)]
    starts = [
        gated.initialize(languages, words, hidden, 1.0, key=jr.fold_in(jr.key(2), seed))
        for seed in range(seeds)
    ]
    per_scale = jnp.concatenate(orders)
    count = orders[0].shape[0]
    repeated = jax.tree.map(lambda *w: jnp.repeat(jnp.stack(w), count, axis=0), *starts)
    networks = jax.tree.map(lambda w: jnp.concatenate([scale * w for scale in SCALES]), repeated)
    masks = jnp.tile(per_scale, (len(SCALES), 1, 1))
    scales = np.repeat(SCALES, len(per_scale))
    budgets = np.where(scales < 0.005, round(1.8 * budget), budget).astype(np.int32)
    return networks, masks, scales, budgets


def timed(networks, masks, budgets, batch):
    """Compile on a rehearsal with tiny budgets, then time the real thing."""
    rehearsal = np.full_like(budgets, 130)
    # A few long runs at the end make the batch shrink, so that its smaller programs are compiled too.
    rehearsal[-3:] = 1200
    begin = time.perf_counter()
    run = gated.train_batch(networks, masks, max_evaluations=rehearsal, batch_size=batch)
    jax.block_until_ready(run.train_loss)
    compile_s = time.perf_counter() - begin
    say(f"  rehearsal with compilation: {compile_s:.1f} s")
    begin = last = time.perf_counter()

    def progress(finished, total):
        nonlocal last
        if time.perf_counter() - last > 3:
            last = time.perf_counter()
            say(f"  {finished}/{total} runs, {last - begin:.0f} s")

    run = gated.train_batch(networks, masks, max_evaluations=budgets, batch_size=batch, progress=progress)
    jax.block_until_ready(run.train_loss)
    return run, time.perf_counter() - begin, compile_s


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--batch", type=int, default=None, help="runs computed together")
    parser.add_argument("--small", action="store_true", help="6 languages, 8 words, 1 seed")
    options = parser.parse_args()
    warnings.simplefilter("ignore", gated.MaskWarning)
    sizes = (6, 8, 8, 1, 2_000) if options.small else (10, 32, 32, 3, 12_000)
    networks, masks, scales, budgets = cases(*sizes)
    device = jax.devices()[0]
    say(f"{device.device_kind}, JAX {jax.__version__}, {len(scales)} runs")
    graph = jax.vmap(gated.connectivity)(masks)
    is_connected = np.asarray(graph.is_connected)
    table, runs = [], {}
    for dtype in ("float64", "float32"):
        say(dtype)
        run, seconds, compile_s = timed(networks.astype(dtype), masks, budgets, options.batch)
        runs[dtype] = run
        ok = run.is_converged
        evaluations = int(np.asarray(run.evaluations, np.int64).sum())
        row = {
            "dtype": dtype,
            "runs": len(scales),
            "seconds": round(seconds, 2),
            "compile_seconds": round(compile_s, 2),
            "evaluations": evaluations,
            "microseconds_per_evaluation": round(1e6 * seconds / evaluations, 3),
            "converged": int(ok.sum()),
            "diverged": int((run.status == "diverged").sum()),
            "converged_connected": {
                f"{s:g}": round(float(ok[(scales == s) & is_connected].mean()), 4) for s in SCALES
            },
        }
        table.append(row)
        say("  " + json.dumps(row))
    double, single = runs["float64"], runs["float32"]
    both = double.is_converged & single.is_converged & ~is_connected

    def cross(run):
        return np.asarray(run.cross_loss, np.float64)

    difference = np.abs(cross(double) - cross(single))[both]
    agreement = {
        "agree_on_convergence": int((double.is_converged == single.is_converged).sum()),
        "largest_test_difference_disconnected": float(difference.max()) if both.any() else None,
        "median_test_difference_disconnected": float(np.median(difference)) if both.any() else None,
    }
    # A connected mask has no cross pair, and no prediction.
    cross_pairs = np.where(is_connected, np.nan, np.asarray(graph.n_cross))
    ratio = np.asarray(double.test_loss) / (cross_pairs / (~np.asarray(masks)).sum((1, 2)))
    small = double.is_converged & ~is_connected & (scales <= 0.03)
    inside = double.is_converged & is_connected
    checks = {
        "largest_test_converged_connected": float(np.asarray(double.test_loss)[inside].max()),
        "test_over_prediction_disconnected": [float(ratio[small].min()), float(ratio[small].max())],
    }
    record = {
        "device": device.device_kind,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "sizes": dict(zip(("languages", "words", "hidden", "seeds", "budget"), sizes, strict=True)),
        "table": table,
        "float32_against_float64": agreement,
        "checks_float64": checks,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "gpu_gated.json").write_text(json.dumps(record, indent=1) + "\n")
    lines = [
        f"{len(scales)} runs of Figure 1, {device.device_kind}, JAX {jax.__version__}; compilation apart.",
        "",
        "| precision | seconds | compilation | evaluations | µs per evaluation | converged |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in table:
        lines.append(
            f"| {row['dtype']} | {row['seconds']} | {row['compile_seconds']} | {row['evaluations']:,} | "
            f"{row['microseconds_per_evaluation']} | {row['converged']} |"
        )
    lines += [
        "",
        f"float32 against float64: {agreement['agree_on_convergence']} of {len(scales)} agree on "
        "convergence; "
        f"test loss on disconnected masks within {agreement['largest_test_difference_disconnected']:.2g} "
        f"(median {agreement['median_test_difference_disconnected']:.2g}).",
    ]
    (options.out / "gpu_gated.md").write_text("\n".join(lines) + "\n")
    say("\n".join(lines))
    say(json.dumps(checks))


if __name__ == "__main__":
    main()
