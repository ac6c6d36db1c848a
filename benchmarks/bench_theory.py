# ruff: noqa: E402
"""Learning of a linear RNN on one CPU thread: Krylov flow, full flow, and descent on the simulated task.

    python benchmarks/bench_theory.py [neurons ...]

The same network (g = 0.6, target 2) three ways: the flow in a Krylov basis, the flow of all N × N weights and
200 epochs of gradient descent through time (the simple task, 202 steps a trial). Medians, compilation apart;
the flows are checked against each other.
"""

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import json
import platform
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)

from nullcline.recurrent import theory
from nullcline.studies.schuessler2020 import _linear

G, TARGET = 0.6, 2.0


def timed(function, repeats):
    """First call (with compilation), median of the others, and the result."""
    start = time.perf_counter()
    result = jax.block_until_ready(function())
    first, rest = time.perf_counter() - start, []
    for _ in range(repeats):
        start = time.perf_counter()
        result = jax.block_until_ready(function())
        rest.append(time.perf_counter() - start)
    return first, statistics.median(rest), result


def main():
    rows = []
    print("neurons   krylov     full   simulation   full/krylov   simulation/krylov   |difference|")
    for neurons in [int(word) for word in sys.argv[1:]] or [100, 200]:
        w0, m, w = _linear.network(neurons, G, 0)
        rate = _linear.ETA0[TARGET] * (1 - G**2) ** 2
        taus = jnp.asarray(rate * np.linspace(0, _linear.EPOCHS, 5))
        first, krylov, small = timed(lambda net=(w0, m, w), t=taus: theory.exact_flow(*net, TARGET, t), 7)
        _, full, large = timed(
            lambda net=(w0, m, w), t=taus: theory.exact_flow(*net, TARGET, t, method="full"), 2
        )
        _, simulation, _ = timed(
            lambda net=(w0, m, w), r=rate: jnp.asarray(_linear.simulate(*net, TARGET, r)[1]), 2
        )
        gap = float(jnp.linalg.norm(small.change[-1] - large.change[-1]) / jnp.linalg.norm(large.change[-1]))
        rows.append(
            {
                "neurons": neurons,
                "krylov_first_s": first,
                "krylov_s": krylov,
                "full_s": full,
                "simulation_s": simulation,
                "full_over_krylov": full / krylov,
                "simulation_over_krylov": simulation / krylov,
                "difference": gap,
            }
        )
        print(
            f"{neurons:7d} {1e3 * krylov:7.1f} ms {full:6.2f} s {simulation:10.2f} s {full / krylov:13.1f} "
            f"{simulation / krylov:19.1f} {gap:14.1e}",
            flush=True,
        )
    print(json.dumps({"machine": platform.machine(), "jax": jax.__version__, "rows": rows}))


if __name__ == "__main__":
    main()
