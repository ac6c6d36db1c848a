"""Small cells that follow the protocol, as a user would write them, and the cases that the tests share."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from nullcline import operators

BATCH, TIME, INPUTS, HIDDEN, OUTPUTS = 3, 5, 2, 4, 2


def normal(key, shape):
    """Normal numbers without a compilation for every shape."""
    return jnp.asarray(np.random.default_rng(np.asarray(jr.key_data(key))).normal(size=shape))


class Affine(eqx.Module):
    """Readout that the cells share."""

    weight: jax.Array
    bias: jax.Array

    def __call__(self, z):
        return self.weight @ z + self.bias


def affine(key, hidden):
    return Affine(normal(key, (OUTPUTS, hidden)), 0.3 * normal(jr.fold_in(key, 1), (OUTPUTS,)))


class Rate(eqx.Module):
    """Leaky rate units, F = z + dt (-z + W phi(z) + W_in x + b)."""

    w: jax.Array
    w_in: jax.Array
    b: jax.Array
    out: Affine
    dt: float = eqx.field(static=True, default=0.4)
    phi: object = eqx.field(static=True, default=jnp.tanh)

    def initial_state(self):
        return jnp.zeros(self.w.shape[0])

    def step(self, z, x):
        return z + self.dt * (-z + self.w @ self.phi(z) + self.w_in @ x + self.b)

    def readout(self, z):
        return self.out(z)


class TorchRNN(eqx.Module):
    """h' = tanh(W_ih x + b_ih + W_hh h + b_hh)."""

    w_ih: jax.Array
    w_hh: jax.Array
    b_ih: jax.Array
    b_hh: jax.Array
    out: Affine

    def initial_state(self):
        return jnp.zeros(self.w_hh.shape[0])

    def step(self, h, x):
        return jnp.tanh(self.w_ih @ x + self.b_ih + self.w_hh @ h + self.b_hh)

    def readout(self, h):
        return self.out(h)


class GRU(eqx.Module):
    """Gates r, u, n stacked; the reset gate acts after the product."""

    w_ih: jax.Array
    w_hh: jax.Array
    b_ih: jax.Array
    b_hh: jax.Array
    out: Affine

    def initial_state(self):
        return jnp.zeros(self.w_hh.shape[1])

    def step(self, h, x):
        a, m = jnp.split(self.w_ih @ x + self.b_ih, 3), jnp.split(self.w_hh @ h + self.b_hh, 3)
        r, u = jax.nn.sigmoid(a[0] + m[0]), jax.nn.sigmoid(a[1] + m[1])
        return (1 - u) * jnp.tanh(a[2] + r * m[2]) + u * h

    def readout(self, h):
        return self.out(h)


class LSTM(eqx.Module):
    """A state that is a pair (h, c), not one vector."""

    w_ih: jax.Array
    w_hh: jax.Array
    b_ih: jax.Array
    b_hh: jax.Array
    out: Affine

    def initial_state(self):
        return jnp.zeros(self.w_hh.shape[1]), jnp.zeros(self.w_hh.shape[1])

    def step(self, state, x):
        h, c = state
        i, f, g, o = jnp.split(self.w_ih @ x + self.b_ih + self.w_hh @ h + self.b_hh, 4)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(c), c

    def readout(self, state):
        return self.out(state[0])


class Tied(eqx.Module):
    """One matrix used forward and transposed, and a scalar: no unit is alone with its weights."""

    w: jax.Array
    gain: jax.Array
    out: Affine

    def initial_state(self):
        return jnp.zeros(self.w.shape[0])

    def step(self, z, x):
        return self.gain * jnp.tanh(self.w @ z + jnp.concatenate([x, x])) + 0.5 * self.w.T @ jnp.sin(z)

    def readout(self, z):
        return self.out(z)


class TwiceLocal(eqx.Module):
    """One matrix used twice, both times for its own rows: unit-local, with a double sum in K."""

    w: jax.Array
    out: Affine

    def initial_state(self):
        return jnp.zeros(self.w.shape[0])

    def step(self, z, x):
        return jnp.tanh(self.w @ z + jnp.concatenate([x, x])) * jnp.cos(self.w @ jnp.sin(z))

    def readout(self, z):
        return self.out(z)


def plain_step(params, z, x):
    """A bare step function, with its parameters beside it."""
    return jnp.tanh(params["w"] @ z + params["v"][0] @ x) + 0.2 * z


def gates(key, kind, count, hidden=HIDDEN, inputs=INPUTS, g=1.5):
    keys = jr.split(key, 5)
    return kind(
        normal(keys[0], (count * hidden, inputs)),
        g * normal(keys[1], (count * hidden, hidden)) / hidden**0.5,
        0.3 * normal(keys[2], (count * hidden,)),
        0.3 * normal(keys[3], (count * hidden,)),
        affine(keys[4], hidden),
    )


def rate(key, hidden=HIDDEN, inputs=INPUTS, g=1.5, **settings):
    keys = jr.split(key, 4)
    return Rate(
        g * normal(keys[0], (hidden, hidden)) / hidden**0.5,
        normal(keys[1], (hidden, inputs)),
        0.2 * normal(keys[2], (hidden,)),
        affine(keys[3], hidden),
        **settings,
    )


def make(name, key=None):
    key = jr.key(7) if key is None else key
    keys = jr.split(key, 2)
    match name:
        case "rate":
            return rate(key)
        case "relu":
            return rate(key, phi=jax.nn.relu)
        case "torch_rnn":
            return gates(key, TorchRNN, 1)
        case "gru":
            return gates(key, GRU, 3)
        case "lstm":
            return gates(key, LSTM, 4)
        case "tied":
            return Tied(0.6 * normal(keys[0], (HIDDEN, HIDDEN)), jnp.array(0.9), affine(keys[1], HIDDEN))
        case "twice_local":
            return TwiceLocal(0.6 * normal(keys[0], (HIDDEN, HIDDEN)), affine(keys[1], HIDDEN))
    raise KeyError(name)


def inputs_for(key, batch=BATCH, time=TIME, channels=INPUTS):
    return normal(key, (batch, time, channels))


WEIGHTS = jnp.array([0.5, 0.2, 0.3])
NAMES = ("rate", "relu", "torch_rnn", "gru", "lstm", "tied", "twice_local", "function")
# One by default, all of them in the slow run.
SOME = [name if name == "gru" else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]


def flow_of(name, weights=WEIGHTS, batch=BATCH, time=TIME):
    """One small flow per kind of model, with unequal trial weights."""
    inputs = inputs_for(jr.key(1), batch, time)
    if name == "function":
        keys = jr.split(jr.key(3), 4)
        params = {
            "w": 0.7 * normal(keys[0], (HIDDEN, HIDDEN)),
            "v": [normal(keys[1], (HIDDEN, INPUTS))],
        }
        readout = (normal(keys[2], (OUTPUTS, HIDDEN)), normal(keys[3], (OUTPUTS,)))
        start = 0.3 * jnp.ones(HIDDEN)
        return operators.linearize(plain_step, inputs, start, weights, params=params, readout=readout)
    return operators.linearize(make(name), inputs, weights=weights)
