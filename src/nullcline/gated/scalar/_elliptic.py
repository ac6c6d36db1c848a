"""Elliptic integrals and functions by arithmetic–geometric means (Abramowitz and Stegun 16.4, 17.6)."""

import jax.numpy as jnp
from jaxtyping import Array, Float

# Means converge quadratically: eight steps reach float64 rounding even for a complement of 1e-16.
_STEPS = 8


def _means(complement: Float[Array, ""]) -> list[tuple[Array, Array, Array]]:
    a, b = jnp.ones_like(complement), jnp.sqrt(complement)
    c = jnp.sqrt(jnp.maximum(1 - complement, 0))
    means = [(a, b, c)]
    for _ in range(_STEPS):
        a, b, c = (a + b) / 2, jnp.sqrt(a * b), (a - b) / 2
        means.append((a, b, c))
    return means


def complete(complement: Float[Array, ""]) -> Float[Array, ""]:
    """Complete integral K of the first kind; the argument is 1 - m."""
    return jnp.pi / (2 * _means(complement)[-1][0])


def incomplete(phi: Float[Array, ""], complement: Float[Array, ""]) -> Float[Array, ""]:
    """Incomplete integral F(phi | m) of the first kind for ``|phi| <= pi / 2``; the argument is 1 - m."""
    means = _means(complement)
    for a, b, _ in means[:-1]:
        turns = jnp.round(phi / jnp.pi)
        phi = phi + jnp.arctan(b / a * jnp.tan(phi)) + jnp.pi * turns
    return phi / (2**_STEPS * means[-1][0])


def amplitude(x: Float[Array, ""], complement: Float[Array, ""]) -> Float[Array, ""]:
    """Jacobi amplitude am(x | m), so that sc = tan(am); the argument is 1 - m."""
    means = _means(complement)
    phi = 2**_STEPS * means[-1][0] * x
    for a, _, c in reversed(means[1:]):
        phi = (phi + jnp.arcsin(jnp.clip(c / a * jnp.sin(phi), -1, 1))) / 2
    return phi
