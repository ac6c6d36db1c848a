"""Float64, strict promotion and checked annotations for every test; one cache of compiled programs a run."""

import atexit
import gc
import os
import shutil
import tempfile

# Two test processes share two cores: more threads in each would only fight. Two batched LAPACK calls of one
# program can even wait for each other for ever in a pool of two threads (before JAX 0.11.2).
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
os.environ.setdefault("NPROC", "1")  # threads of XLA
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_ENABLE_X64", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

# Compiling is most of the work. What one process of a run has compiled the others load, workers and commands
# that tests start alike. The folder ends with the run: compiled code belongs to one machine.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="nullcline-tests-")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)

import jaxtyping
from jaxtyping import install_import_hook

_rooms = ("linear", "gated", "recurrent", "operators")
_hook = install_import_hook([f"nullcline.{room}" for room in _rooms], "beartype.beartype")

import hypothesis
import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# The same examples on every machine: a red run means a change, not a dice roll.
hypothesis.settings.register_profile("default", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("default")


def is_long(item) -> bool:
    return item.get_closest_marker("slow") is not None or item.path.name == "test_docs.py"


def pytest_collection_modifyitems(items):
    """Long tests first: none is left to one worker while the other has nothing to do."""
    items.sort(key=lambda item: not is_long(item))


def pytest_collection_finish():
    """What is imported stays: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


@pytest.fixture
def key():
    return jax.random.key(0)


@pytest.fixture
def own_messages():
    """Our own checks speak, not the annotations that the tests otherwise enforce."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
