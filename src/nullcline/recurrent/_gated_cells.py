"""Gated cells with the equations of PyTorch and its order of gates; `w` is (gates times hidden, hidden)."""

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray

from .._checks import require_sizes
from ._cells import AbstractCell, uniform


class GRUCell(AbstractCell):
    r"""Gated recurrent unit; gates stacked as reset, update, new.

    .. math:: r = \sigma(a_r + b_r),\quad u = \sigma(a_u + b_u),\quad n = \tanh(a_n + r\, b_n),\quad
              h' = (1 - u) n + u h

    with :math:`a = w_{in}^T x + b_{in}` and :math:`b = W h + b`: the reset gate acts after the product.
    """

    w_in: Float[Array, "inputs gates"]
    w: Float[Array, "gates hidden"]
    w_out: Float[Array, "hidden outputs"]
    b_in: Float[Array, " gates"]
    b: Float[Array, " gates"]
    b_out: Float[Array, " outputs"]

    def __check_init__(self):
        check_gates(self.w, 3)

    @property
    def state_size(self) -> int:
        """Length of the state vector: one number per unit."""
        return self.hidden

    def initial_state(self) -> Float[Array, " state"]:
        """Silence."""
        return jnp.zeros(self.hidden, self.dtype)

    def step(self, state: Float[Array, " state"], inputs: Float[Array, " inputs"]) -> Float[Array, " state"]:
        """State after one input."""
        a = jnp.split(inputs @ self.w_in + self.b_in, 3)
        b = jnp.split(self.w @ state + self.b, 3)
        reset = jax.nn.sigmoid(a[0] + b[0])
        update = jax.nn.sigmoid(a[1] + b[1])
        new = jnp.tanh(a[2] + reset * b[2])
        return (1 - update) * new + update * state

    def readout(self, state: Float[Array, " state"]) -> Float[Array, " outputs"]:
        """Affine readout of the hidden state."""
        return state @ self.w_out + self.b_out


class LSTMCell(AbstractCell):
    r"""Long short-term memory; gates stacked as input, forget, cell, output; the state is ``[h, c]``.

    .. math:: c' = \sigma(f)\, c + \sigma(i) \tanh(g),\qquad h' = \sigma(o) \tanh(c')
    """

    w_in: Float[Array, "inputs gates"]
    w: Float[Array, "gates hidden"]
    w_out: Float[Array, "hidden outputs"]
    b_in: Float[Array, " gates"]
    b: Float[Array, " gates"]
    b_out: Float[Array, " outputs"]

    def __check_init__(self):
        check_gates(self.w, 4)

    @property
    def state_size(self) -> int:
        """Length of the state vector: hidden and cell state."""
        return 2 * self.hidden

    def initial_state(self) -> Float[Array, " state"]:
        """Silence."""
        return jnp.zeros(2 * self.hidden, self.dtype)

    def step(self, state: Float[Array, " state"], inputs: Float[Array, " inputs"]) -> Float[Array, " state"]:
        """State after one input."""
        hidden, memory = jnp.split(state, 2)
        gates = inputs @ self.w_in + self.b_in + self.w @ hidden + self.b
        return jnp.concatenate(lstm_update(gates, memory))

    def readout(self, state: Float[Array, " state"]) -> Float[Array, " outputs"]:
        """Affine readout of the hidden state."""
        return state[: self.hidden] @ self.w_out + self.b_out


def lstm_update(
    gates: Float[Array, "*batch gates"], memory: Float[Array, "*batch hidden"]
) -> tuple[Float[Array, "*batch hidden"], Float[Array, "*batch hidden"]]:
    """Hidden and cell state after one step, from the stacked gates."""
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    memory = jax.nn.sigmoid(f) * memory + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(memory), memory


def check_gates(w: Array, gates: int) -> None:
    """Refuse recurrent weights that do not stack the right number of gates."""
    if w.shape[0] != gates * w.shape[1]:
        raise ValueError(
            f"`w` must have shape ({gates} * hidden, hidden), one block of rows per gate, got {w.shape}."
        )


def gru_cell(
    n_in: int,
    n_hidden: int,
    n_out: int,
    *,
    g: float | Float[Array, ""] = 1.0,
    dtype: DTypeLike = float,
    key: PRNGKeyArray,
) -> GRUCell:
    r"""Draw a GRU with all weights :math:`U(\pm 1/\sqrt N)`, the recurrent ones multiplied by ``g``."""
    return GRUCell(*_gated_weights(3, n_in, n_hidden, n_out, g, dtype, key))


def lstm_cell(
    n_in: int,
    n_hidden: int,
    n_out: int,
    *,
    g: float | Float[Array, ""] = 1.0,
    dtype: DTypeLike = float,
    key: PRNGKeyArray,
) -> LSTMCell:
    r"""Draw an LSTM with all weights :math:`U(\pm 1/\sqrt N)`, the recurrent ones multiplied by ``g``."""
    return LSTMCell(*_gated_weights(4, n_in, n_hidden, n_out, g, dtype, key))


def _gated_weights(gates, n_in, n_hidden, n_out, g, dtype, key) -> tuple[Array, ...]:
    require_sizes(n_in=n_in, n_hidden=n_hidden, n_out=n_out)
    if isinstance(g, int | float) and not g >= 0:
        raise ValueError(f"`g` must be nonnegative, got {g}.")
    dtype = jnp.zeros((), dtype).dtype
    rows = gates * n_hidden
    shapes = [(n_in, rows), (rows, n_hidden), (n_hidden, n_out), (rows,), (rows,), (n_out,)]
    weights = [
        uniform(part, shape, n_hidden, dtype)
        for part, shape in zip(jr.split(key, len(shapes)), shapes, strict=True)
    ]
    weights[1] = jnp.asarray(g, dtype) * weights[1]
    return tuple(weights)
