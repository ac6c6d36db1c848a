"""Dense matrices of the operators from plain automatic differentiation of the unrolled network."""

import dataclasses
import functools

import cells
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.flatten_util import ravel_pytree


@dataclasses.dataclass
class Reference:
    """Everything as flat matrices: rows are (trial, time, component)."""

    propagator: np.ndarray
    tangent: np.ndarray
    unrolled: np.ndarray
    outputs_fixed: np.ndarray
    outputs_trained: np.ndarray
    initial: np.ndarray
    gradient: np.ndarray
    error: np.ndarray
    states: np.ndarray
    weights: np.ndarray
    stepped: list
    etas: tuple

    def whiten(self, matrix):
        """Rows and columns times and divided by the root of the trial weight."""
        root = np.sqrt(np.repeat(self.weights, len(matrix) // len(self.weights)))
        return root[:, None] * matrix / root[None, :]

    def gram(self, factor):
        """The operator A A* of a map A from parameters: the weight stands at the acting trial."""
        return factor @ (factor.T * np.repeat(self.weights, len(factor) // len(self.weights)))


class PlainCell(eqx.Module):
    """The bare function of the cases, dressed as a cell."""

    params: dict
    weight: jax.Array
    bias: jax.Array

    def initial_state(self):
        return 0.3 * jnp.ones(cells.HIDDEN)

    def step(self, z, x):
        return cells.plain_step(self.params, z, x)

    def readout(self, z):
        return self.weight @ z + self.bias


def data(flow):
    """Targets and a mask with holes."""
    shape = (*flow.states.shape[:2], cells.OUTPUTS)
    mask = jnp.ones(shape).at[1, 3:].set(0).at[2, 1, 0].set(0)
    return cells.normal(jr.key(11), shape), mask


@functools.cache
def reference(name):
    flow = cells.flow_of(name)
    if name == "function":
        p = flow.model.params
        cell = PlainCell({"w": p["w"], "v": [p["v.0"]]}, p["readout.weight"], p["readout.bias"])
    else:
        cell = cells.make(name)
    targets, mask = data(flow)
    etas = (2e-4, 1e-4)  # small enough for no unit of the ReLU network to cross its kink
    out = _jacobians(cell, flow.inputs, flow.weights, targets, mask, jnp.array(etas))
    return Reference(
        *[np.asarray(part) for part in out[:9]], np.asarray(flow.weights), list(np.asarray(out[9])), etas
    )


@eqx.filter_jit
def _jacobians(cell, inputs, weights, targets, mask, etas):
    params, rest = eqx.partition(cell, eqx.is_inexact_array)
    theta, unravel = ravel_pytree(params)
    batch, time = inputs.shape[:2]
    start, unravel_state = ravel_pytree(cell.initial_state())
    size = len(start)

    def step(theta, z, x):
        return ravel_pytree(eqx.combine(unravel(theta), rest).step(unravel_state(z), x))[0]

    def unroll(theta, forcing, start):
        def one(start, forcing, inputs):
            def forward(z, now):
                z = step(theta, z, now[0]) + now[1]
                return z, z

            return jax.lax.scan(forward, start, (inputs, forcing))[1]

        return jax.vmap(one)(start, forcing, inputs)

    def read(theta, states):
        readout = lambda z: eqx.combine(unravel(theta), rest).readout(unravel_state(z))  # noqa: E731
        return jax.vmap(jax.vmap(readout))(states)

    zeros = jnp.zeros((batch, time, size))
    starts = jnp.tile(start, (batch, 1))
    states = unroll(theta, zeros, starts)
    before = jnp.concatenate([starts[:, None], states[:, :-1]], axis=1)
    rows = batch * time * size

    def losses(states, theta):
        return jnp.sum(mask * (read(theta, states) - targets) ** 2, axis=(1, 2))

    tangent = jax.vmap(jax.vmap(jax.jacrev(step), (None, 0, 0)), (None, 0, 0))(theta, before, inputs)
    gradient = jax.grad(lambda th: jnp.sum(weights * losses(unroll(th, zeros, starts), theta)))(theta)
    error = jax.grad(lambda s: jnp.sum(losses(s, theta)))(states)

    def all_of_them(theta, forcing, starts):
        states = unroll(theta, forcing, starts)
        return states, read(jax.lax.stop_gradient(theta), states), read(theta, states)

    through = [part.reshape(-1, len(theta)) for part in jax.jacfwd(all_of_them)(theta, zeros, starts)]
    by_forcing, by_start = jax.jacfwd(unroll, (1, 2))(theta, zeros, starts)
    return (
        by_forcing.reshape(rows, rows),
        tangent.reshape(rows, -1),
        *through,
        by_start.reshape(rows, -1),
        gradient,
        error,
        states,
        jax.vmap(lambda eta: unroll(theta - eta * gradient, zeros, starts))(etas),
    )
