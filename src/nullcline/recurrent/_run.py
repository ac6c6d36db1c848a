"""Running a cell over trials, and the fast path of training: the outputs of a rate cell with their adjoint.

Inside, arrays are (time, batch, channels): each step then reads and writes one contiguous block.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from ._cells import NONLINEARITIES, AbstractCell, RateCell
from ._trials import Trials, check_inputs


@eqx.filter_jit
def _run(cell, inputs, state):
    def step(state, now):
        state = jax.vmap(cell.step)(state, now)
        return state, state

    # All digits of float32, as in training; a GPU does not give them by default.
    with jax.default_matmul_precision("highest"):
        _, states = lax.scan(step, state, jnp.swapaxes(inputs, 0, 1))
        states = jnp.swapaxes(states, 0, 1)
        return states, jax.vmap(jax.vmap(cell.readout))(states)


def run(
    cell: AbstractCell,
    inputs: Float[Array, "batch time inputs"],
    initial_state: Float[Array, "batch state"] | Float[Array, " state"] | None = None,
) -> tuple[Float[Array, "batch time state"], Float[Array, "batch time outputs"]]:
    """States after each input, and the outputs read from them.

    Parameters
    ----------
    cell
        Any cell of this room.
    inputs
        One row per step; the output with the same index is read after that input.
    initial_state
        State before the first input, one for all trials or one each; the cell's own by default.
    """
    check_inputs(cell, inputs)
    return _run(cell, inputs, _start(cell, inputs.shape[0], initial_state))


def _start(cell: AbstractCell, batch: int, initial_state: Array | None) -> Float[Array, "batch state"]:
    state = cell.initial_state() if initial_state is None else initial_state
    shape = (batch, cell.state_size)
    if state.shape not in (shape, shape[1:]):
        raise ValueError(f"`initial_state` must have shape {shape} or {shape[1:]}, got {state.shape}.")
    return jnp.broadcast_to(state, shape)


def trial_outputs(cell: AbstractCell, trials: Trials) -> Float[Array, "batch time outputs"]:
    """Outputs alone, the fast way: a rate cell brings its own adjoint."""
    start = _start(cell, trials.inputs.shape[0], trials.initial_state)
    if not isinstance(cell, RateCell):
        return _run(cell, trials.inputs, start)[1]
    static = (cell.dt, cell.nonlinearity, cell.reads)
    inputs = jnp.swapaxes(trials.inputs, 0, 1)
    outputs = jnp.swapaxes(_rate_outputs(static, cell.w_in, cell.w, cell.w_out, cell.b, inputs, start), 0, 1)
    return outputs if cell.b_out is None else outputs + cell.b_out[None, None, :]


# The adjoint by hand: the reverse scan keeps only the adjoint states, and every weight gradient is one large
# matrix product over (time x batch) after it. Differentiating the scan would add a small outer product to an
# (N, N) accumulator at each step.
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rate_outputs(static, w_in, w, w_out, b, inputs, start):
    return _rate_forward(static, w_in, w, w_out, b, inputs, start)[0]


def _rate_forward(static, w_in, w, w_out, b, inputs, start):
    dt, nonlinearity, reads = static
    phi = NONLINEARITIES[nonlinearity]
    drive = dt * (inputs @ w_in if b is None else inputs @ w_in + b[None, None, :])
    w_step = dt * w.T

    def step(carry, now):
        state, rates = carry
        state = (1 - dt) * state + (rates @ w_step + now)
        rates = phi(state)
        # Only what the backward pass or the readout needs is written out.
        return (state, rates), rates if reads == "rates" else (rates, state)

    first = phi(start)
    _, kept = lax.scan(step, (start, first), drive)
    rates, seen = (kept, kept) if reads == "rates" else kept
    return seen @ w_out, (w_in, w, w_out, b, inputs, first, rates, seen)


def _rate_backward(static, residuals, cotangent):
    dt, nonlinearity, reads = static
    w_in, w, w_out, b, inputs, first, rates, seen = residuals
    slope = _SLOPES[nonlinearity]
    w_step = dt * w

    def step(adjoint, now):
        """Adjoint of the state after a step, from the one of the state after the next."""
        seen, rates = now
        back = adjoint @ w_step
        if reads == "rates":
            adjoint = slope(rates, back + seen) + (1 - dt) * adjoint
        else:
            adjoint = slope(rates, back) + seen + (1 - dt) * adjoint
        return adjoint, adjoint

    last, adjoints = lax.scan(step, jnp.zeros_like(first), (cotangent @ w_out.T, rates), reverse=True)
    before = jnp.concatenate([first[None], rates[:-1]])
    d_inputs = dt * (adjoints @ w_in.T)
    d_w_in = dt * _over_time(inputs, adjoints)
    d_w = dt * _over_time(adjoints, before)
    d_b = None if b is None else dt * jnp.sum(adjoints, axis=(0, 1))
    d_start = slope(first, last @ w_step) + (1 - dt) * last
    # XLA would fold this transpose into a product of columns, which takes it 30 times as long.
    d_w_out = lax.optimization_barrier(_over_time(cotangent, seen)).T
    return d_w_in, d_w, d_w_out, d_b, d_inputs, d_start


def _over_time(
    left: Float[Array, "time batch m"], right: Float[Array, "time batch n"]
) -> Float[Array, "m n"]:
    return left.reshape(-1, left.shape[-1]).T @ right.reshape(-1, right.shape[-1])


_rate_outputs.defvjp(_rate_forward, _rate_backward)

# Slopes as functions of the rates: the states themselves need not be stored.
_SLOPES = {
    "tanh": lambda rates, back: (1 - rates * rates) * back,
    "relu": lambda rates, back: jnp.where(rates > 0, back, jnp.zeros_like(back)),
    "linear": lambda rates, back: back,
}
