"""The recurrent layers of PyTorch as pure functions of PyTorch's own parameter leaves.

K depends on the parametrisation, not only on the function (hazelden2025, erratum to Theorem 1): a layer of
PyTorch has two biases, each of which counts. Leaves keep PyTorch's names: ``weight_ih_l0``, ``weight_hh_l0``,
``bias_ih_l0``, ``bias_hh_l0``, and so on for every layer.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._flow import Flow, linearize

GATES = {"rnn": 1, "gru": 3, "lstm": 4}
"""Blocks of rows in the weights of each kind of layer."""
NONLINEARITIES = {"tanh": jnp.tanh, "relu": jax.nn.relu}
_NAME = re.compile(r"(weight|bias)_(ih|hh)_l(\d+)")
UNSUPPORTED = re.compile(r"(?:weight|bias)_(?:ih|hh)_l\d+_reverse|weight_hr_l\d+(?:_reverse)?")
"""Names of a bidirectional layer, or one with ``proj_size``, which no single step leads through."""


@dataclasses.dataclass(frozen=True)
class TorchStep:
    """One step of a stack of layers: layer n + 1 reads the new hidden state of layer n.

    The state is a tuple with one entry per layer: h, or the pair (h, c) of an LSTM.
    """

    kind: str
    layers: int
    has_bias: bool
    nonlinearity: str

    def __call__(self, params: Mapping[str, Array], state: tuple, x: Array) -> tuple:
        """State of every layer after one input."""
        new = []
        for n, now in enumerate(state):
            h = now[0] if self.kind == "lstm" else now
            inner, outer = params[f"weight_hh_l{n}"] @ h, params[f"weight_ih_l{n}"] @ x
            if self.has_bias:
                inner, outer = inner + params[f"bias_hh_l{n}"], outer + params[f"bias_ih_l{n}"]
            new.append(self._layer(now, outer, inner))
            x = new[-1][0] if self.kind == "lstm" else new[-1]
        return tuple(new)

    def _layer(self, now: Any, outer: Array, inner: Array) -> Any:
        if self.kind == "rnn":
            return NONLINEARITIES[self.nonlinearity](outer + inner)
        if self.kind == "gru":
            (a, b, c), (d, e, m) = jnp.split(outer, 3), jnp.split(inner, 3)
            r, z = jax.nn.sigmoid(a + d), jax.nn.sigmoid(b + e)
            # The reset gate multiplies the product with the weights, bias included.
            return (1 - z) * jnp.tanh(c + r * m) + z * now
        i, f, g, o = jnp.split(outer + inner, 4)
        c = jax.nn.sigmoid(f) * now[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(c), c


@dataclasses.dataclass(frozen=True)
class LinearReadout:
    """Outputs ``W h + b`` of a part of the state, with leaves ``readout.weight`` and ``readout.bias``."""

    start: int
    size: int

    def __call__(self, params: Mapping[str, Array], state: Any) -> Array:
        """Output of one state."""
        flat = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(state)])
        y = params["readout.weight"] @ flat[self.start : self.start + self.size]
        return y + params["readout.bias"] if "readout.bias" in params else y


def from_state_dict(
    state: Mapping[str, Any],
    inputs: Any,
    initial_state: Any = None,
    weights: Float[Array, "..."] | None = None,
    *,
    prefix: str = "",
    nonlinearity: str = "tanh",
    readout: Any = None,
    dtype: Any = None,
) -> Flow:
    """Linearize a recurrent network given by the weights of PyTorch's layers; PyTorch is not needed.

    Parameters
    ----------
    state
        Arrays by the names of a PyTorch state dictionary. Whether they are an RNN, a GRU or an LSTM, and how
        many layers, is read off their names and shapes.
    inputs
        Inputs of each trial, (batch, time, inputs).
    initial_state
        As PyTorch takes it: h of shape (layers, batch, hidden), or the pair (h, c); zero by default.
    weights
        Weight of each trial, as in :func:`linearize`.
    prefix
        What stands before ``weight_ih_l0`` in the names, such as ``"rnn."``; other names are left out.
    nonlinearity
        ``"tanh"`` or ``"relu"``, of an RNN.
    readout
        A pair ``(W, b)`` for outputs ``W h + b`` of the last layer's h (b may be None); both are leaves.
    dtype
        Floating-point type to compute in; that of the weights by default.

    Returns
    -------
    The flow. Its states are those of all layers, one after another: h, and after it c for an LSTM.
    """
    params = {
        name.removeprefix(prefix): value
        for name, value in state.items()
        if name.startswith(prefix) and _NAME.fullmatch(name.removeprefix(prefix))
    }
    wrong = sorted(
        name for name in state if name.startswith(prefix) and UNSUPPORTED.fullmatch(name.removeprefix(prefix))
    )
    if wrong:
        raise ValueError(
            f"`state` holds {wrong[0]}, of a bidirectional layer or one with `proj_size`, which no step "
            "leads through: only forward RNNs, GRUs and LSTMs are taken."
        )
    kind, hidden, layers = recognize(params, prefix)
    if nonlinearity not in NONLINEARITIES:
        raise ValueError(f"`nonlinearity` must be 'tanh' or 'relu', got {nonlinearity!r}.")
    step = TorchStep(kind, layers, "bias_ih_l0" in params, nonlinearity)
    leaves, dtype = _leaves(params, dtype)
    inputs = as_array(inputs, dtype)
    channels = leaves["weight_ih_l0"].shape[1]
    if inputs.ndim != 3 or inputs.shape[2] != channels:
        raise ValueError(
            f"`inputs` must have shape (batch, time, inputs) with {channels} inputs, as `weight_ih_l0` has "
            f"columns; got {inputs.shape}."
        )
    start = _initial(initial_state, kind, layers, hidden, inputs.shape[0], dtype)
    width = 2 * hidden if kind == "lstm" else hidden
    reader, extra = linear_readout(readout, (layers - 1) * width, hidden, dtype)
    return linearize(step, inputs, start, weights, params=leaves | extra, readout=reader)


def recognize(params: Mapping[str, Any], prefix: str = "") -> tuple[str, int, int]:
    """Kind, hidden size and number of layers of a full set of weights; refuse any other."""
    if f"{prefix}weight_hh_l0" not in {prefix + name for name in params}:
        raise ValueError(
            f"There is no `{prefix}weight_hh_l0` among the weights: this is no RNN, GRU or LSTM of PyTorch. "
            f"Found {sorted(params) or 'none of its names'}."
        )
    shape = np.shape(params["weight_hh_l0"])
    kinds = {rows: kind for kind, rows in GATES.items()}
    ratio = shape[0] / shape[1] if len(shape) == 2 and shape[1] else 0
    if ratio not in kinds:
        raise ValueError(
            f"`weight_hh_l0` must have shape (n hidden, hidden) with n = 1 (RNN), 3 (GRU) or 4 (LSTM), got "
            f"{shape}. A layer with `proj_size` is not supported."
        )
    kind, hidden = kinds[int(ratio)], shape[1]
    layers = 1 + max(int(match[3]) for name in params if (match := _NAME.fullmatch(name)))
    has_bias = any(name.startswith("bias") for name in params)
    expected: dict[str, tuple[int, ...]] = {}
    for n in range(layers):
        below = np.shape(params["weight_ih_l0"])[-1] if n == 0 and "weight_ih_l0" in params else hidden
        expected |= {f"weight_ih_l{n}": (shape[0], below), f"weight_hh_l{n}": shape}
        expected |= {f"bias_{end}_l{n}": (shape[0],) for end in ("ih", "hh") if has_bias}
    found = {name: np.shape(value) for name, value in params.items()}
    if found != expected:
        wrong = [
            f"{name} (want {expected.get(name, 'none')}, got {found.get(name, 'none')})"
            for name in sorted(found.keys() | expected.keys())
            if found.get(name) != expected.get(name)
        ]
        raise ValueError(
            f"The weights are not those of a {kind.upper()} of {layers} layers: {', '.join(wrong)}."
        )
    return kind, hidden, layers


def _leaves(params: Mapping[str, Any], dtype: Any) -> tuple[dict[str, Array], np.dtype]:
    arrays = {name: np.asarray(value) for name, value in params.items()}
    kinds = {array.dtype for array in arrays.values()}
    if dtype is None:
        if len(kinds) > 1:
            raise ValueError(
                f"The weights have several types, {sorted(map(str, kinds))}: choose one with `dtype=`."
            )
        dtype = kinds.pop()
    dtype = check_dtype(dtype)
    return {name: as_array(array, dtype) for name, array in arrays.items()}, dtype


def check_dtype(given: Any) -> np.dtype:
    """Refuse types that JAX would change silently."""
    dtype = np.dtype(given)
    if str(dtype) not in ("float32", "float64"):
        raise ValueError(f"Operators compute in float32 or float64, got {dtype}: choose one with `dtype=`.")
    if dtype.itemsize == 8 and jnp.zeros(()).dtype != np.float64:
        raise ValueError(
            'float64 needs `jax.config.update("jax_enable_x64", True)` before anything else, or '
            '`dtype="float32"`.'
        )
    return dtype


def as_array(value: Any, dtype: np.dtype) -> Array:
    """A JAX array from an array of any library on the CPU."""
    return jnp.asarray(np.asarray(value), dtype)


def _initial(given: Any, kind: str, layers: int, hidden: int, batch: int, dtype: np.dtype) -> tuple:
    if given is None:
        zeros = jnp.zeros(hidden, dtype)
        return ((zeros, zeros) if kind == "lstm" else zeros,) * layers
    parts = given if isinstance(given, tuple | list) else (given,)
    arrays = [as_array(part, dtype) for part in parts]
    shape, count = (layers, batch, hidden), 2 if kind == "lstm" else 1
    if len(arrays) != count or any(array.shape != shape for array in arrays):
        what = "a pair (h, c) of shape" if kind == "lstm" else "h of shape"
        raise ValueError(
            f"`initial_state` must be {what} (layers, batch, hidden) = {shape}, got "
            f"{[array.shape for array in arrays]}."
        )
    rows = list(zip(*arrays, strict=True))
    return tuple(rows) if kind == "lstm" else tuple(row[0] for row in rows)


def linear_readout(
    readout: Any, start: int, size: int, dtype: np.dtype
) -> tuple[Callable | None, dict[str, Array]]:
    """A readout of part of the state and its parameter leaves."""
    if readout is None:
        return None, {}
    if not isinstance(readout, tuple) or len(readout) != 2:
        raise ValueError(
            f"`readout` must be a pair (W, b) or an `nn.Linear` of the hidden state, got "
            f"{type(readout).__name__}."
        )
    weight = as_array(readout[0], dtype)
    if weight.ndim != 2 or weight.shape[1] != size:
        raise ValueError(
            f"`readout` must read the {size} numbers of the hidden state: W of shape (outputs, {size}), got "
            f"{weight.shape}."
        )
    leaves = {"readout.weight": weight}
    if readout[1] is not None:
        leaves["readout.bias"] = as_array(readout[1], dtype)
        if leaves["readout.bias"].shape != weight.shape[:1]:
            raise ValueError(
                f"`readout`: b must have shape {weight.shape[:1]}, got {leaves['readout.bias'].shape}."
            )
    return LinearReadout(start, size), leaves
