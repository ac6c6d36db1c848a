"""What a process that computes points must find in its environment before JAX is imported."""

import os
from collections.abc import Mapping

_FLAG = "--xla_cpu_multi_thread_eigen=false"


def computing(base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Give the settings under which a point has the same bits in every process.

    Float64, and one thread: sums that several threads share are rounded in the order in which the threads
    finish their parts, and the number of threads depends on the machine. Points run in parallel instead.
    """
    flags = base.get("XLA_FLAGS", "")
    return {
        "JAX_ENABLE_X64": "1",
        "XLA_FLAGS": flags if _FLAG in flags else f"{flags} {_FLAG}".strip(),
        # The size of XLA's thread pool.
        "NPROC": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        **{name: base[name] for name in ("NULLCLINE_DATA",) if name in base},
    }
