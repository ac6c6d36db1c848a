"""Tests of this room compile much and compute little: a quick compiler is worth more than fast code."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def _quick_compiler():
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
