"""The protocol of a recurrent cell, and the rate cell, in the notation of schuessler2020.

A cell is a pytree of weights with three methods: ``initial_state()``, ``step(state, input)`` and
``readout(state)``. All of them take one example; callers ``vmap`` over trials. The state is one flat vector,
so that operators of any cell act on arrays of shape (batch, time, state).
"""

import abc
import math
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray

from .._checks import require_sizes

NONLINEARITIES = {"tanh": jnp.tanh, "relu": jax.nn.relu, "linear": lambda x: x}


class AbstractCell(eqx.Module):
    """A recurrent network: a map of states under inputs, and a readout of the state after the step."""

    w_in: eqx.AbstractVar[Array]
    w: eqx.AbstractVar[Array]
    w_out: eqx.AbstractVar[Array]

    @property
    @abc.abstractmethod
    def state_size(self) -> int:
        """Length of the state vector."""

    @abc.abstractmethod
    def initial_state(self) -> Float[Array, " state"]:
        """State before the first input."""

    @abc.abstractmethod
    def step(self, state: Float[Array, " state"], inputs: Float[Array, " inputs"]) -> Float[Array, " state"]:
        """State after one input."""

    @abc.abstractmethod
    def readout(self, state: Float[Array, " state"]) -> Float[Array, " outputs"]:
        """Output read from a state."""

    @property
    def inputs(self) -> int:
        """Number of input channels."""
        return self.w_in.shape[-2]

    @property
    def hidden(self) -> int:
        """Number of units."""
        return self.w.shape[-1]

    @property
    def outputs(self) -> int:
        """Number of output channels."""
        return self.w_out.shape[-1]

    @property
    def dtype(self) -> DTypeLike:
        """Precision of the weights, which trials and states follow."""
        return self.w.dtype


class RateCell(AbstractCell):
    r"""Units with leak and a pointwise nonlinearity, schuessler2020 (17).

    .. math:: x_{k+1} = (1 - \Delta t) x_k + \Delta t\,[W \phi(x_k) + w_{in}^T u_k + b],
              \qquad z_k = w_{out}^T \phi(x_{k+1}) + b_{out}

    The factors :math:`\sqrt N` of the document are part of the stored arrays:
    ``w_in`` is :math:`\sqrt N m^T` and ``w_out`` is :math:`w / \sqrt N`.

    Parameters
    ----------
    w_in, w, w_out
        Input weights (inputs, hidden), recurrent weights (post, pre), readout (hidden, outputs).
    b, b_out
        Biases of the units and of the readout; absent by default.
    dt
        Step of the Euler scheme in units of the leak's time constant, in (0, 1].
    nonlinearity
        ``"tanh"``, ``"relu"`` or ``"linear"``.
    reads
        The readout sees ``"rates"``, :math:`\phi(x)`, or the ``"state"`` itself (hazelden2025).
    """

    w_in: Float[Array, "inputs hidden"]
    w: Float[Array, "hidden hidden"]
    w_out: Float[Array, "hidden outputs"]
    b: Float[Array, " hidden"] | None = None
    b_out: Float[Array, " outputs"] | None = None
    dt: float = eqx.field(default=0.5, static=True)
    nonlinearity: Literal["tanh", "relu", "linear"] = eqx.field(default="tanh", static=True)
    reads: Literal["rates", "state"] = eqx.field(default="rates", static=True)

    def __check_init__(self):
        check_dt(self.dt)
        if self.nonlinearity not in NONLINEARITIES:
            raise ValueError(
                f"`nonlinearity` must be one of {sorted(NONLINEARITIES)}, got {self.nonlinearity!r}."
            )
        if self.reads not in ("rates", "state"):
            raise ValueError(f"`reads` must be 'rates' or 'state', got {self.reads!r}.")

    @property
    def state_size(self) -> int:
        """Length of the state vector: one number per unit."""
        return self.hidden

    def initial_state(self) -> Float[Array, " state"]:
        """Silence."""
        return jnp.zeros(self.hidden, self.dtype)

    def step(self, state: Float[Array, " state"], inputs: Float[Array, " inputs"]) -> Float[Array, " state"]:
        """State after one input, schuessler2020 (17)."""
        drive = self.w @ self.phi(state) + inputs @ self.w_in
        if self.b is not None:
            drive = drive + self.b
        return (1 - self.dt) * state + self.dt * drive

    def readout(self, state: Float[Array, " state"]) -> Float[Array, " outputs"]:
        """Output read from a state, schuessler2020 (3)."""
        outputs = (self.phi(state) if self.reads == "rates" else state) @ self.w_out
        return outputs if self.b_out is None else outputs + self.b_out

    def phi(self, state: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Rates of the units."""
        return NONLINEARITIES[self.nonlinearity](state)


def check_dt(dt: float) -> None:
    """Refuse a step outside (0, 1]."""
    if not 0 < dt <= 1:
        raise ValueError(f"`dt` must be in (0, 1], got {dt}.")


def uniform(
    key: PRNGKeyArray, shape: tuple[int, ...], fan_in: int, dtype: DTypeLike
) -> Float[Array, "*shape"]:
    r"""Uniform on :math:`\pm 1/\sqrt{fan}`, PyTorch's default."""
    bound = 1 / math.sqrt(fan_in)
    return jr.uniform(key, shape, dtype, -bound, bound)


def rate_cell(
    n_in: int,
    n_hidden: int,
    n_out: int,
    *,
    g: float | Float[Array, ""] = 0.9,
    nonlinearity: Literal["tanh", "relu", "linear"] = "tanh",
    dt: float = 0.5,
    weights: Literal["normal", "uniform"] = "normal",
    vectors: Literal["unit", "uniform"] = "unit",
    is_tied: bool = False,
    reads: Literal["rates", "state"] = "rates",
    dtype: DTypeLike = float,
    key: PRNGKeyArray,
) -> RateCell:
    r"""Draw a random rate cell.

    Parameters
    ----------
    n_in, n_hidden, n_out
        Numbers of input channels, units and output channels.
    g
        Strength of the recurrent weights; nonnegative, may be traced.
    nonlinearity, dt, reads
        As in :class:`RateCell`.
    weights
        ``"normal"``: entries of W from :math:`N(0, g^2/N)`. ``"uniform"``: g times
        :math:`U(\pm 1/\sqrt N)`, whose standard deviation is :math:`g/\sqrt{3N}` (the program of
        hazelden2025).
    vectors
        ``"unit"``: every input and readout vector has exactly unit norm before the factors :math:`\sqrt N`
        and :math:`1/\sqrt N` (schuessler2020). ``"uniform"``: :math:`U(\pm 1/\sqrt{fan})` with a readout
        bias.
    is_tied
        Read out along the input vector, :math:`w_{out} = w_{in}^T / N` (the cosine task).
    dtype
        Precision of the weights; training in float32 is about twice as fast as in float64.
    key
        Random key.
    """
    require_sizes(n_in=n_in, n_hidden=n_hidden, n_out=n_out)
    check_dt(dt)
    if isinstance(g, int | float) and not g >= 0:
        raise ValueError(f"`g` must be nonnegative, got {g}.")
    if weights not in ("normal", "uniform"):
        raise ValueError(f"`weights` must be 'normal' or 'uniform', got {weights!r}.")
    if vectors not in ("unit", "uniform"):
        raise ValueError(f"`vectors` must be 'unit' or 'uniform', got {vectors!r}.")
    if is_tied and (n_in != n_out or vectors != "unit"):
        raise ValueError(
            f"`is_tied` needs as many outputs as inputs and `vectors='unit'`, got n_in = {n_in}, "
            f"n_out = {n_out}, vectors = {vectors!r}."
        )
    dtype = jnp.zeros((), dtype).dtype
    w_key, in_key, out_key, bias_key = jr.split(key, 4)
    if weights == "normal":
        w = jr.normal(w_key, (n_hidden, n_hidden), dtype) / math.sqrt(n_hidden)
    else:
        w = uniform(w_key, (n_hidden, n_hidden), n_hidden, dtype)
    w = jnp.asarray(g, dtype) * w
    b_out = None
    if vectors == "unit":
        w_in = math.sqrt(n_hidden) * _unit_rows(jr.normal(in_key, (n_in, n_hidden), dtype))
        w_out = _unit_rows(jr.normal(out_key, (n_out, n_hidden), dtype)).T / math.sqrt(n_hidden)
    else:
        w_in = uniform(in_key, (n_in, n_hidden), n_in, dtype)
        w_out = uniform(out_key, (n_hidden, n_out), n_hidden, dtype)
        b_out = uniform(bias_key, (n_out,), n_hidden, dtype)
    if is_tied:
        w_out = w_in.T / n_hidden
    return RateCell(w_in, w, w_out, b_out=b_out, dt=dt, nonlinearity=nonlinearity, reads=reads)


def _unit_rows(vectors: Float[Array, "count hidden"]) -> Float[Array, "count hidden"]:
    return vectors / jnp.linalg.norm(vectors, axis=1, keepdims=True)
