"""The linearised step with its nonlinear part done beforehand: what makes P and P* cheap.

A linearised step is a program of products with the weights and of elementwise products with numbers that
depend on the state (slopes of gates and nonlinearities). The slopes of all trials and times are computed
once, a few numbers per state component; a product with P then costs the products with the weights and nothing
else. The Jacobians themselves are never formed.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ._model import Model


class Slopes(eqx.Module):
    """Numbers of the linearised steps that depend on the state, time-major.

    ``is_local`` says which of the numbers that a linearised step needs these are; the others are weights.
    """

    values: tuple[Array, ...]
    is_local: tuple[bool, ...] = eqx.field(static=True)


def _tangent(model: Model, z: Array, x: Array) -> Any:
    """The linearised step of a batch, a pytree of the numbers that it needs."""
    return jax.linearize(lambda z: jax.vmap(model.step, (None, 0, 0))({}, z, x), z)[1]


def _depends_on_state(model: Model, z: Array, x: Array) -> tuple[bool, ...]:
    """Which numbers of a linearised step belong to trials: those whose shape follows the batch."""

    def shapes(batch):
        now = (jax.ShapeDtypeStruct((batch, *a.shape[1:]), a.dtype) for a in (z, x))
        tangent = jax.eval_shape(lambda z, x: _tangent(model, z, x), *now)
        return [leaf.shape for leaf in jax.tree.leaves(tangent)]

    return tuple(a != b for a, b in zip(shapes(len(z)), shapes(len(z) + 1), strict=True))


def slopes(model: Model, before: Array, inputs: Array) -> Slopes:
    """Linearise every step, all times at once."""
    before, inputs = jnp.swapaxes(before, 0, 1), jnp.swapaxes(inputs, 0, 1)
    is_local = _depends_on_state(model, before[0], inputs[0])

    def one(z, x):
        leaves = jax.tree.leaves(_tangent(model, z, x))
        return tuple(leaf for leaf, keep in zip(leaves, is_local, strict=True) if keep)

    return Slopes(jax.vmap(one)(before, inputs), is_local)


def tangent_step(model: Model, z: Array, x: Array, now: Slopes) -> Any:
    """The linearised step of one time from its slopes; only shapes are taken from ``z`` and ``x``."""
    leaves, tree = jax.tree.flatten(_tangent(model, jnp.zeros_like(z), jnp.zeros_like(x)))
    given = iter(now.values)
    chosen = [next(given) if local else leaf for leaf, local in zip(leaves, now.is_local, strict=True)]
    return jax.tree.unflatten(tree, chosen)
