"""Keep batched LAPACK calls of one program apart."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped


def after(value: Shaped[Array, "..."], *before: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """``value``, available only once every array of ``before`` is.

    Several batched decompositions that run at the same time can deadlock the small thread pool of XLA:CPU,
    each waiting inside a worker for workers. An ``optimization_barrier`` does not order them, since XLA drops
    it before it schedules; a product with zero is a dependence that no compiler may remove. On a GPU nothing
    is done: under ``vmap`` it would make a value that all networks share one of each network.
    """
    if jax.default_backend() != "cpu":
        return value
    for other in before:
        value = value + (0 * jax.lax.stop_gradient(jnp.ravel(other)[0])).astype(value.dtype)
    return value
