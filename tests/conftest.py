"""Float64, strict promotion and checked annotations for every test."""

import os

# Two test processes share two cores: more threads in each would only fight.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_ENABLE_X64", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

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


@pytest.fixture
def key():
    return jax.random.key(0)
