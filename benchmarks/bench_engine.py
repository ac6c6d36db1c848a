"""What the engine costs on top of the computing: a sweep of trivial points, in this process.

Run as ``python benchmarks/bench_engine.py [points]``. Bars, for 10,000 points: under 15 ms a point including
storage, under 2 s to decide what is left of a half-finished sweep, under 2 s to open a finished one again.
"""

import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from nullcline.engine import Grid, Study, computing, make_plan, open_sweep, run

os.environ.update(computing())


class Trivial(Study):
    """Points that cost nothing."""

    source = "benchmark/trivial"
    presets = {"quick": Grid(lam=[0.5, 1.5], seed=range(5))}  # noqa: RUF012

    def compute(self, lam, seed):
        """Multiply."""
        return {"value": lam * seed}

    def draw(self, data):
        """Draw nothing."""
        raise AssertionError("the benchmark draws nothing")

    def claims(self, data):
        """Claim nothing."""
        return []


def timed(function):
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def main(points: int) -> int:
    out = Path(tempfile.mkdtemp(prefix="bench-engine-"))
    study = Trivial()
    half, whole = {"seed": range(points // 4)}, {"seed": range(points // 2)}
    try:
        run(study, out=out / "warm", is_quiet=True)  # imports, JAX, the first file
        cpu = time.process_time()
        first, _ = timed(lambda: run(study, out=out, overrides=half, is_quiet=True))
        deciding = statistics.median(
            timed(lambda: open_sweep(make_plan(study, overrides=whole), out))[0] for _ in range(3)
        )
        second, data = timed(lambda: run(study, out=out, overrides=whole, is_quiet=True))
        cpu = time.process_time() - cpu
        reopening = statistics.median(
            timed(lambda: run(study, out=out, overrides=whole, is_quiet=True))[0] for _ in range(3)
        )
        assert data.sizes["seed"] == points // 2 and float(data.value[1, -1]) == 1.5 * (points // 2 - 1)
    finally:
        shutil.rmtree(out)
    bars = {
        "milliseconds a point": (1e3 * (first + second) / points, 15.0),
        "seconds to decide what is left": (deciding, 2.0),
        "seconds to reopen": (reopening, 2.0),
    }
    print(
        f"{points} points, {platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores"
    )
    # On a busy machine the wall clock also shows the others, and the disk: this is the engine's own share.
    print(f"{'of which processor time':32} {1e3 * cpu / points:8.3f}")
    for name, (value, bar) in bars.items():
        print(f"{name:32} {value:8.3f}  (bar {bar:g})  {'ok' if value < bar else 'MISSED'}")
    print(json.dumps({name: round(value, 4) for name, (value, _) in bars.items()}))
    return int(any(value >= bar for value, bar in bars.values()))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
