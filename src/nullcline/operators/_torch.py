"""Operators of PyTorch modules: recurrent layers exactly, other cells through ``torch.func``.

PyTorch is imported inside the functions only; it is an optional extra, ``pip install nullcline[torch]``.
"""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._flow import Flow, linearize
from ._torch_call import step_p
from ._torch_layers import as_array, check_dtype, from_state_dict, linear_readout


def from_torch(
    module: Any,
    inputs: Any,
    initial_state: Any = None,
    weights: Float[Array, "..."] | None = None,
    *,
    readout: Any = None,
    dtype: Any = None,
) -> Flow:
    """Linearize a PyTorch module along its trajectories.

    ``nn.RNN``, ``nn.GRU`` and ``nn.LSTM`` (any number of layers), ``nn.RNNCell``, ``nn.GRUCell`` and
    ``nn.LSTMCell`` become pure JAX programs with PyTorch's own parameter leaves, equal to PyTorch to
    rounding. Every other module is taken as a cell: ``module(input, state)`` must return the next state, for
    a batch of inputs (rows, inputs) and of states (rows, …), each row on its own. Its values and
    derivatives are computed by PyTorch itself, ``torch.func`` on the CPU, so that P, K and their spectra
    work without a Jacobian, but not the closed forms of K.

    Parameters
    ----------
    module
        The module. All its parameters count, whether or not they require gradients;
        :meth:`Flow.preconditioned` freezes some.
    inputs
        An array or a tensor, as the module takes it: (batch, time, inputs), and (time, batch, inputs) for a
        layer without ``batch_first``.
    initial_state
        For layers as PyTorch takes it: h of shape (layers, batch, hidden), or the pair (h, c). For cells one
        state for all trials or one per trial. Zero by default, where the module has a ``hidden_size``.
    weights
        Weight of each trial, as in :func:`linearize`.
    readout
        An ``nn.Linear`` or a pair ``(W, b)`` that reads h of the last layer (of a custom cell: the first so
        many numbers of its state); its leaves are ``readout.weight`` and ``readout.bias``.
    dtype
        Floating-point type to compute in, ``"float64"`` for spectra of large spread; that of the module by
        default. Inputs and states are converted to it.

    Returns
    -------
    The flow; states (batch, time, hidden) hold all layers one after another, h and then c for an LSTM.
    """
    torch = _torch()
    if not isinstance(module, torch.nn.Module):
        raise ValueError(f"`module` must be a torch.nn.Module, got {type(module).__name__}.")
    if isinstance(readout, torch.nn.Linear):
        readout = (_numpy(readout.weight), None if readout.bias is None else _numpy(readout.bias))
    if isinstance(initial_state, tuple | list):
        initial_state = tuple(_numpy(part) for part in initial_state)
    elif initial_state is not None:
        initial_state = _numpy(initial_state)
    inputs = _numpy(inputs)
    if isinstance(module, torch.nn.RNNBase | torch.nn.RNNCellBase):
        return _layers(module, inputs, initial_state, weights, readout, dtype)
    return _custom(module, inputs, initial_state, weights, readout, dtype)


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ImportError("`from_torch` needs PyTorch: pip install 'nullcline[torch]'.") from error
    return torch


def _numpy(value: Any) -> np.ndarray:
    """An array from a tensor or from anything that NumPy takes."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) in ("torch.bfloat16", "torch.float16"):
            value = value.float()
    return np.asarray(value)


def _layers(
    module: Any, inputs: np.ndarray, initial_state: Any, weights: Any, readout: Any, dtype: Any
) -> Flow:
    torch = _torch()
    is_cell = isinstance(module, torch.nn.RNNCellBase)
    known = (torch.nn.RNN, torch.nn.GRU, torch.nn.LSTM, torch.nn.RNNCell, torch.nn.GRUCell, torch.nn.LSTMCell)
    names = [name for name, _ in module.named_parameters()]
    if type(module) not in known or any("." in name for name in names):
        raise ValueError(
            f"`module` is a {type(module).__name__} with parameters {names}: known are nn.RNN, nn.GRU, "
            "nn.LSTM and their cells themselves, without parametrizations or changes. Write it as a cell, "
            "module(input, state) -> state."
        )
    if not is_cell:
        _refuse_options(module)
        if inputs.ndim != 3:
            raise ValueError(
                f"`inputs` must have three axes, as `module` takes a batch, got shape {inputs.shape}."
            )
        inputs = inputs if module.batch_first else np.swapaxes(inputs, 0, 1)
    elif initial_state is not None:
        initial_state = jax.tree.map(lambda part: part[None], initial_state)
    state = {
        f"{name}_l0" if is_cell else name: _numpy(value).copy() for name, value in module.named_parameters()
    }
    return from_state_dict(
        state,
        inputs,
        initial_state,
        weights,
        nonlinearity=getattr(module, "nonlinearity", "tanh"),
        readout=readout,
        dtype=dtype,
    )


def _refuse_options(module: Any) -> None:
    name = type(module).__name__
    if module.bidirectional:
        raise ValueError(
            f"`module` is a bidirectional {name}: its states depend on later inputs, so that no step leads "
            "from one to the next. Use a module with `bidirectional=False`."
        )
    if module.proj_size:
        raise ValueError(
            f"`module` is a {name} with proj_size = {module.proj_size}, which is not supported. Write it as "
            "a cell, module(input, state) -> state."
        )
    if module.dropout > 0 and module.training and module.num_layers > 1:
        raise ValueError(
            f"`module` drops out units at random (dropout = {module.dropout}, training mode): its step is no "
            "function of state and input. Call `module.eval()` first."
        )


class TorchCell:
    """A module as a step of rows: what JAX sees is in :mod:`._torch_call`.

    ``names`` are the parameters that the step uses; buffers keep the values that they have now.
    """

    def __init__(self, module: Any, state: Any, dtype: np.dtype):
        torch = _torch()
        self.module = module
        self.treedef = jax.tree.structure(state)
        self.shapes = [leaf.shape for leaf in jax.tree.leaves(state)]
        self.dtype = torch.float64 if dtype == np.float64 else torch.float32
        given = dict(module.named_parameters())
        for name, leaf in given.items():
            if not leaf.is_floating_point():
                raise ValueError(
                    f"Parameter `{name}` is {leaf.dtype}: gradient descent needs real floating-point leaves."
                )
            if leaf.device.type != "cpu":
                raise ValueError(f"Parameter `{name}` is on {leaf.device}: move the module to the CPU first.")
        self.params = {name: leaf.detach().to(self.dtype).clone() for name, leaf in given.items()}
        self.fixed = {
            name: leaf.detach().clone().to(self.dtype) if leaf.is_floating_point() else leaf.detach().clone()
            for name, leaf in module.named_buffers()
        }
        self.names: tuple[str, ...] = tuple(self.params)

    def __repr__(self) -> str:
        return f"TorchCell({type(self.module).__name__})"

    def rows(self, params: dict, z: Any, x: Any) -> Any:
        """New states of all rows, as PyTorch computes them."""
        from torch.func import functional_call

        parts, start = [], 0
        for shape in self.shapes:
            size = int(np.prod(shape))
            parts.append(z[:, start : start + size].reshape(-1, *shape))
            start += size
        state = jax.tree.unflatten(self.treedef, parts)
        after = functional_call(self.module, {**self.fixed, **params}, (x, state))
        leaves = jax.tree.leaves(after)
        found = [tuple(getattr(leaf, "shape", ())) for leaf in leaves]
        wanted = [(len(z), *shape) for shape in self.shapes]
        if jax.tree.structure(after) != self.treedef or found != wanted:
            raise ValueError(
                "A cell must return the next state alone, like the one it takes: tensors of shape "
                f"{wanted} for {len(z)} rows, got {found}. Wrap a module that also returns outputs."
            )
        return _torch().cat([leaf.reshape(len(z), -1) for leaf in leaves], dim=1)

    def compute(self, mode: str, *arrays: Any) -> list[np.ndarray]:
        """One of the modes of the primitive, on plain arrays."""
        torch = _torch()
        # JAX's arrays are read-only, which PyTorch cannot express.
        tensors = [torch.from_numpy(np.array(array)) for array in arrays]
        n = len(self.names)
        params = dict(zip(self.names, tensors[:n], strict=True))
        (z, x), extra = tensors[n : n + 2], tensors[n + 2 :]
        with torch.enable_grad():
            match mode:
                case "step":
                    outs = [self.rows(params, z, x)]
                case "push_state":
                    outs = [torch.func.jvp(lambda z: self.rows(params, z, x), (z,), (extra[0],))[1]]
                case "pull_state":
                    outs = torch.func.vjp(lambda z: self.rows(params, z, x), z)[1](extra[0])
                case "push_params":
                    along = dict(zip(self.names, extra, strict=True))
                    outs = [torch.func.jvp(lambda p: self.rows(p, z, x), (params,), (along,))[1]]
                case "pull_params":
                    pulled = torch.func.vjp(lambda p: self.rows(p, z, x), params)[1](extra[0])[0]
                    outs = [pulled[name] for name in self.names]
                case _:
                    raise ValueError(mode)
        return [out.detach().numpy() for out in outs]

    def __call__(self, params: dict[str, Array], state: Any, x: Array) -> Any:
        """The step of one trial, for JAX."""
        z = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(state)])
        leaves = [params[name] for name in self.names]
        after = step_p.bind(*leaves, z[None], x[None], cell=self, mode="step")[0][0]
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes])[:-1]
        parts = [part.reshape(shape) for part, shape in zip(jnp.split(after, ends), self.shapes, strict=True)]
        return jax.tree.unflatten(self.treedef, parts)


def _custom(
    module: Any, inputs: np.ndarray, initial_state: Any, weights: Any, readout: Any, dtype: Any
) -> Flow:
    params = [leaf for leaf in module.parameters() if leaf.is_floating_point()]
    if not params:
        raise ValueError(f"`module` ({type(module).__name__}) has no floating-point parameter to train.")
    dtype = check_dtype(_numpy(params[0]).dtype if dtype is None else dtype)
    if initial_state is None:
        hidden = getattr(module, "hidden_size", None)
        if not isinstance(hidden, int):
            raise ValueError(
                f"`initial_state` is needed: `module` ({type(module).__name__}) has no `hidden_size`. Pass "
                "one state for all trials, or one per trial with a leading axis of length batch."
            )
        initial_state = np.zeros(hidden)
    if inputs.ndim != 3:
        raise ValueError(
            f"`inputs` must have shape (batch, time, inputs) for a cell, got {tuple(inputs.shape)}."
        )
    start = jax.tree.map(lambda leaf: as_array(leaf, dtype), initial_state)
    leaves = jax.tree.leaves(start)
    has_trials = all(leaf.ndim > 1 and leaf.shape[0] == len(inputs) for leaf in leaves)
    single = jax.tree.map(lambda leaf: leaf[0], start) if has_trials else start
    cell = TorchCell(module, single, dtype)
    x = np.asarray(inputs, dtype)
    size = sum(int(np.prod(shape)) for shape in cell.shapes)
    _check_cell(cell, np.sin(np.arange(2.0 * size, dtype=dtype)).reshape(2, size), x[[0, -1], [0, -1]])
    width = np.shape(readout[0])[-1] if isinstance(readout, tuple) and len(readout) == 2 else size
    if width > size:
        raise ValueError(
            f"`readout` reads {width} numbers, and the state of `module` has {size}: W must have shape "
            f"(outputs, {size}) or fewer columns."
        )
    reader, extra = linear_readout(readout, 0, width, dtype)
    own = {name: as_array(cell.params[name], dtype) for name in cell.names}
    return linearize(cell, jnp.asarray(x), start, weights, params=own | extra, readout=reader)


def _check_cell(cell: TorchCell, z: np.ndarray, x: np.ndarray) -> None:
    """Refuse a module that is no function of each row, and leave out parameters that it does not use."""
    torch = _torch()
    rows, inputs = torch.from_numpy(z), torch.from_numpy(x)
    state = torch.get_rng_state()
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in cell.params.items()}
    try:
        with torch.enable_grad():
            both = cell.rows(leaves, rows, inputs)
            if both.requires_grad:
                found = torch.autograd.grad(both.sum(), list(leaves.values()), allow_unused=True)
            else:
                found = [None] * len(leaves)
        again = cell.rows(cell.params, rows, inputs)
        try:
            alone = torch.cat([cell.rows(cell.params, rows[i : i + 1], inputs[i : i + 1]) for i in range(2)])
        except ValueError:  # batch normalisation of one row, where two were fine
            alone = None
        with warnings.catch_warnings():
            # PyTorch loads its forward derivatives on their first use, and warns of itself.
            warnings.simplefilter("ignore", DeprecationWarning)
            torch.func.jvp(lambda z: cell.rows(cell.params, z, inputs), (rows,), (rows,))
    except (RuntimeError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(
            f"`module` ({type(cell.module).__name__}) does not take an input of shape {tuple(x.shape)} and a "
            f"state of shape {[(len(x), *shape) for shape in cell.shapes]} as module(input, state): {error}"
        ) from error
    torch.set_rng_state(state)
    scale = 100 * torch.finfo(cell.dtype).eps * (1 + both.abs().max())
    is_mixing = alone is None or (both - alone).abs().max() > scale
    if not torch.equal(both, again):
        raise ValueError(
            f"`module` ({type(cell.module).__name__}) gives different results for the same arguments: it "
            "draws random numbers (dropout? call `module.eval()`) or keeps state of its own."
        )
    if is_mixing:
        raise ValueError(
            f"`module` ({type(cell.module).__name__}) mixes the rows of its batch (batch normalisation in "
            "training mode? call `module.eval()`): its step must treat every trial alone."
        )
    cell.names = tuple(name for name, grad in zip(leaves, found, strict=True) if grad is not None)
    cell.fixed |= {name: leaf for name, leaf in cell.params.items() if name not in cell.names}
    if not cell.names:
        raise ValueError(f"No parameter of `module` ({type(cell.module).__name__}) reaches its next state.")
