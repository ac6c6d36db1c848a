"""A network of Hodgkin–Huxley neurons with sigmoidal synapses, in the notation of hazelden2025."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray

from .._checks import require_sizes
from ._cells import AbstractCell


class HodgkinHuxleyCell(AbstractCell):
    r"""Spiking neurons, stepped by the Euler scheme; the state is ``[V, m, n, h]``, V in mV, time in ms.

    .. math:: C_m \dot V = -g_K n^4 (V - V_K) - g_{Na} m^3 h (V - V_{Na}) - g_L (V - V_L)
              + W s(V) + w_{in}^T x + I_{app},\qquad \dot k = a_k(V)(1 - k) - b_k(V) k

    for the gates :math:`k = m, n, h`, with synapses :math:`s(V) = \sigma((V - V_t)/K_p)`; the output is
    :math:`w_{out}^T s(V)`. The Euler scheme is stable for ``dt`` up to about 0.02 ms.
    """

    w_in: Float[Array, "inputs hidden"]
    w: Float[Array, "hidden hidden"]
    w_out: Float[Array, "hidden outputs"]
    dt: float = eqx.field(default=0.01, static=True)
    current: float = eqx.field(default=10.0, static=True)
    capacitance: float = eqx.field(default=1.0, static=True)
    g_na: float = eqx.field(default=120.0, static=True)
    g_k: float = eqx.field(default=36.0, static=True)
    g_leak: float = eqx.field(default=0.3, static=True)
    v_na: float = eqx.field(default=50.0, static=True)
    v_k: float = eqx.field(default=-77.0, static=True)
    v_leak: float = eqx.field(default=-54.387, static=True)
    v_synapse: float = eqx.field(default=-20.0, static=True)
    slope_synapse: float = eqx.field(default=5.0, static=True)

    def __check_init__(self):
        if not 0 < self.dt <= 0.05:
            raise ValueError(
                f"`dt` must be in (0, 0.05] ms, got {self.dt}: a larger Euler step blows up on a spike."
            )
        if self.capacitance <= 0:
            raise ValueError(f"`capacitance` must be positive, got {self.capacitance}.")

    @property
    def state_size(self) -> int:
        """Length of the state vector: voltage and three gates per neuron."""
        return 4 * self.hidden

    def initial_state(self) -> Float[Array, " state"]:
        """Every neuron at -65 mV with steady gates."""
        voltage = jnp.full(self.hidden, -65.0, self.dtype)
        gates = [opening / (opening + closing) for opening, closing in rates(voltage)]
        return jnp.concatenate([voltage, *gates])

    def velocity(
        self, state: Float[Array, " state"], inputs: Float[Array, " inputs"]
    ) -> Float[Array, " state"]:
        """Time derivative of the state, per ms."""
        voltage, m, n, h = jnp.split(state, 4)
        current = (
            -self.g_k * n**4 * (voltage - self.v_k)
            - self.g_na * m**3 * h * (voltage - self.v_na)
            - self.g_leak * (voltage - self.v_leak)
            + self.w @ self.synapses(voltage)
            + inputs @ self.w_in
            + self.current
        )
        gates = [a * (1 - k) - b * k for (a, b), k in zip(rates(voltage), (m, n, h), strict=True)]
        return jnp.concatenate([current / self.capacitance, *gates])

    def step(self, state: Float[Array, " state"], inputs: Float[Array, " inputs"]) -> Float[Array, " state"]:
        """State after one Euler step."""
        return state + self.dt * self.velocity(state, inputs)

    def synapses(self, voltage: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Synaptic output of each neuron, between 0 and 1."""
        return jax.nn.sigmoid((voltage - self.v_synapse) / self.slope_synapse)

    def readout(self, state: Float[Array, " state"]) -> Float[Array, " outputs"]:
        """Weighted sum of the synaptic outputs."""
        return self.synapses(state[: self.hidden]) @ self.w_out


def rates(voltage: Float[Array, "*shape"]) -> tuple[tuple[Array, Array], ...]:
    """Opening and closing rates of the gates m, n and h, per ms."""
    m = vtrap((voltage + 40) / 10), 4 * jnp.exp(-(voltage + 65) / 18)
    n = 0.1 * vtrap((voltage + 55) / 10), 0.125 * jnp.exp(-(voltage + 65) / 80)
    h = 0.07 * jnp.exp(-(voltage + 65) / 20), jax.nn.sigmoid((voltage + 35) / 10)
    return m, n, h


def vtrap(u: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Compute ``u / (1 - exp(-u))`` with its value and derivative at zero, where the quotient is 0/0."""
    is_small = jnp.abs(u) < 1e-4
    # The second `where` keeps the branch not taken finite: its NaN would leak through the gradient.
    safe = jnp.where(is_small, jnp.ones_like(u), u)
    return jnp.where(is_small, 1 + u / 2 + u**2 / 12, -safe / jnp.expm1(-safe))


def hodgkin_huxley_cell(
    n_in: int,
    n_hidden: int,
    n_out: int,
    *,
    g: float | Float[Array, ""] = 3.0,
    dt: float = 0.01,
    current: float = 10.0,
    dtype: DTypeLike = float,
    key: PRNGKeyArray,
) -> HodgkinHuxleyCell:
    r"""Draw a network: :math:`W_{ij} \sim N(0, g^2/n)`, unit inputs, readout over :math:`\sqrt n`."""
    require_sizes(n_in=n_in, n_hidden=n_hidden, n_out=n_out)
    if isinstance(g, int | float) and not g >= 0:
        raise ValueError(f"`g` must be nonnegative, got {g}.")
    dtype = jnp.zeros((), dtype).dtype
    in_key, w_key, out_key = jr.split(key, 3)
    return HodgkinHuxleyCell(
        jr.normal(in_key, (n_in, n_hidden), dtype),
        jnp.asarray(g, dtype) * jr.normal(w_key, (n_hidden, n_hidden), dtype) / math.sqrt(n_hidden),
        jr.normal(out_key, (n_hidden, n_out), dtype) / math.sqrt(n_hidden),
        dt=dt,
        current=current,
    )
